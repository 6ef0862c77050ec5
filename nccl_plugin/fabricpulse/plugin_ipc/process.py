"""Which process a file `<name>.telemetry` or `<name>.sock` of the NCCL plugin belongs to, and whether it still lives.

The name is the process id and the inode of its PID namespace: containers that share the run directory each have a
process 1 (core/native/job/run_files.h, process_file_name()).
"""

import errno
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PluginProcess:
    """pid : in its own PID namespace. namespace : that namespace's inode, None when the name has none."""

    pid: int
    namespace: int | None

    def is_foreign(self) -> bool:
        """Whether it lives in another PID namespace than this process, so that it is not in this process table."""
        return self.namespace is not None and self.namespace != own_namespace()


def parse_name(name: str) -> PluginProcess | None:
    """`4711-effffffc` or `4711`; None for anything else."""
    match = re.fullmatch(r"([1-9]\d{0,9})(?:-([0-9a-f]{1,16}))?", name)
    if match is None:
        return None
    return PluginProcess(int(match[1]), int(match[2], 16) if match[2] else None)


def own_namespace() -> int | None:
    """Inode of this process's PID namespace, None without /proc."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


def is_stale(control_socket: Path) -> bool:
    """Whether the process of a control socket has ended and left it behind.

    By the process table; in another PID namespace, by whether anybody listens on the socket.
    """
    process = parse_name(control_socket.stem)
    if process is None:
        return True
    return refuses(control_socket) if process.is_foreign() else not process_exists(process.pid)


def process_exists(pid: int) -> bool:
    """Whether a process `pid` exists, of whatever user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def refuses(path: Path) -> bool:
    """Whether nothing listens there. A server that is busy, or that refuses us, does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as client:
        client.setblocking(False)
        return client.connect_ex(os.fspath(path)) in (errno.ECONNREFUSED, errno.ENOENT)
