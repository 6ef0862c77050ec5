"""The few system calls on namespaces and mounts that Python 3.11 does not wrap."""

import ctypes
import os
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Moves this process (a user namespace: only a process of one thread) into new namespaces. Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Moves this thread into the namespace behind `descriptor`, of CLONE_NEW… `kind`. Raises OSError."""
    _check(_libc.setns(descriptor, kind), "setns")


def mount(
    source: str, target: Path, filesystem: str | None = None, flags: int = 0, data: str | None = None
) -> None:
    """mount(2). Raises OSError."""

    def text(value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    _check(
        _libc.mount(text(source), os.fsencode(target), text(filesystem), ctypes.c_ulong(flags), text(data)),
        f"mount {filesystem or source} on {target}",
    )


def sethostname(name: str) -> None:
    """Sets the name of this UTS namespace. Raises OSError."""
    encoded = name.encode()
    _check(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))), "sethostname")


def die_with_parent(signum: int) -> None:
    """The kernel sends `signum` to this process when the thread that forked it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signum), 0, 0, 0), "prctl")
