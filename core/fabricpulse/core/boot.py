"""Which boot of the kernel this is."""

from pathlib import Path


def boot_id(procfs: Path = Path("/proc")) -> str:
    """Changes with each boot of this kernel; empty if it has none."""
    try:
        return (procfs / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
