"""On which machine, and in which start of its kernel, this process runs: what a kept audit is of."""

import hashlib
from pathlib import Path

BOOT_ID, MACHINE_ID = Path("/proc/sys/kernel/random/boot_id"), Path("/etc/machine-id")


def own_boot() -> str:
    """The kernel's boot_id, the same in all containers of a host, as `HostReport.boot` has it; "" where it cannot be
    read."""
    return _text(BOOT_ID)


def own_machine() -> str:
    """As `machine_of` has it, "" where there is none."""
    return machine_of(_text(MACHINE_ID))


def machine_of(machine_id: str) -> str:
    """A name of the machine made from its /etc/machine-id, which itself must not leave the host (machine-id(5))."""
    return hashlib.sha256(f"fabricpulse audit {machine_id}".encode()).hexdigest()[:16] if machine_id else ""


def is_another(kept: tuple[str, str, str], now: tuple[str, str, str]) -> bool:
    """Whether what was kept is of another machine, whose disk was copied. kept, now : host, boot, machine, "" for what
    is not known. One start of a kernel is one machine, whatever its containers are named."""
    host, boot, machine = kept
    host_now, boot_now, machine_now = now
    if not boot or not boot_now or boot == boot_now:
        return False
    if machine and machine_now and machine != machine_now:
        return True
    return bool(host and host_now) and _short(host) != _short(host_now)


def _short(name: str) -> str:
    return name.lower().partition(".")[0]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
