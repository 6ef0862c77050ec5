"""On which machine, and in which start of its kernel, this process runs: what a kept audit is of."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from fabricpulse.audit.model import FleetFindings, HostReport

BOOT_ID, MACHINE_ID = Path("/proc/sys/kernel/random/boot_id"), Path("/etc/machine-id")
HOSTNAME = Path("/proc/sys/kernel/hostname")


def own_boot() -> str:
    """The kernel's boot_id, the same in all containers of a host, as `HostReport.boot` has it; "" where it cannot be
    read."""
    return _text(BOOT_ID)


def own_hostname() -> str:
    """As the kernel has it, "" where it cannot be read."""
    return _text(HOSTNAME)


def own_machine() -> str:
    """As `machine_of` has it, "" where there is none."""
    return machine_of(_text(MACHINE_ID))


def machine_of(machine_id: str) -> str:
    """A name of the machine made from its /etc/machine-id, which itself must not leave the host (machine-id(5))."""
    return hashlib.sha256(f"fabricpulse audit {machine_id}".encode()).hexdigest()[:16] if machine_id else ""


class Origin(NamedTuple):
    """Whose an audit is. host : in the fleet. boot, machine, hostname : as in HostReport; "" for what is not known."""

    host: str
    boot: str
    machine: str
    hostname: str


def origin_of(record: HostReport | FleetFindings) -> Origin:
    """Of what was kept."""
    return Origin(record.host, record.boot, record.machine, record.hostname)


def is_another(kept: Origin, now: Origin) -> bool:
    """Whether what was kept is of another machine, whose disk was copied. One start of a kernel is one machine,
    whatever its containers are named; of two starts the kernel's own names are compared, as a copy may have the same
    machine-id, and only where one is not known those in the fleet."""
    if not kept.boot or not now.boot or kept.boot == now.boot:
        return False
    if kept.machine and now.machine and kept.machine != now.machine:
        return True
    if kept.hostname and now.hostname:
        return _short(kept.hostname) != _short(now.hostname)
    return bool(kept.host and now.host) and _short(kept.host) != _short(now.host)


def _short(name: str) -> str:
    return name.lower().partition(".")[0]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
