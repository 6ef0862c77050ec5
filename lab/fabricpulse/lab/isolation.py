"""Enters the namespaces of a lab, and says what forbids it on this machine."""

import os
from contextlib import suppress
from pathlib import Path

from fabricpulse.core.errors import UserError
from fabricpulse.lab import syscalls


def unshare_all() -> bool:
    """Enters the new namespaces; True if it took a user namespace. Raises UserError that says what forbids it."""
    kinds = (
        syscalls.CLONE_NEWNS
        | syscalls.CLONE_NEWPID
        | syscalls.CLONE_NEWNET
        | syscalls.CLONE_NEWIPC
        | syscalls.CLONE_NEWUTS
    )
    if os.geteuid() == 0:
        # Root of a container without CAP_SYS_ADMIN is as good as not root.
        with suppress(PermissionError):
            syscalls.unshare(kinds)
            return False
    uid, gid = os.geteuid(), os.getegid()
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
    except OSError as error:
        raise UserError(
            f"the lab needs root or user namespaces, and {_why_no_user_namespace(error)}"
        ) from error
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        syscalls.unshare(kinds)
    except OSError as error:
        raise UserError(
            "the lab needs root or user namespaces, and the user namespace gives no power over networks here "
            f"({error.strerror}); run as root, or allow it (on Ubuntu: sysctl "
            "kernel.apparmor_restrict_unprivileged_userns=0)"
        ) from error
    return True


def _why_no_user_namespace(error: OSError) -> str:
    for path, bad, remedy in (
        ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces is 0; run as root or raise it"),
        (
            "/proc/sys/kernel/unprivileged_userns_clone",
            "0",
            "kernel.unprivileged_userns_clone is 0; run as root or set it to 1",
        ),
    ):
        with suppress(OSError):
            if Path(path).read_text().strip() == bad:
                return remedy
    if not Path("/proc/self/ns/user").exists():
        return "this kernel is built without user namespaces; run as root"
    return f"this machine forbids user namespaces to this user ({error.strerror}); run as root"
