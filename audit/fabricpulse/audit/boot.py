"""In which start of the kernel this process runs."""

from pathlib import Path


def own_boot() -> str:
    """The kernel's boot_id, the same in all containers of a host, as `HostReport.boot` has it; "" where it cannot be
    read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
