"""The processes of a host as their control sockets report them, and what that means for a NIC. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fabricpulse.remediation.protocol import MAX_USERS, MAX_WORKLOADS, DesiredNic, Traffic

Status = Mapping[str, Any]

# NICs of one process, and of a host; the length of a name (docs/control-protocol.md).
_MAX_NICS = 64
_MAX_HOST_NICS = 128
_MAX_NAME = 31
_MAX_WORKLOAD = 128
# What the plugin reports for a job without a name.
_NO_WORKLOAD = "unknown"
_MAX_COUNT = 2**63 - 1


@dataclass(frozen=True)
class Nic:
    """A NIC as one process sees it."""

    link_up: bool
    avoided: bool


def nics_of(status: Status) -> dict[str, Nic]:
    """The NICs that a process uses, from its `status`; entries that make no sense are left out."""
    found = {}
    devices = status.get("devices")
    for entry in devices[:_MAX_NICS] if isinstance(devices, list) else ():
        if isinstance(entry, dict) and _is_device(entry.get("device")):
            found[entry["device"]] = Nic(entry.get("link") != "down", entry.get("avoided") is True)
    return found


def _is_device(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable() and "/" not in name


@dataclass(frozen=True)
class Survey:
    """All processes that answered, by name (the pid). ranks : see kernel_nics; what it does not name comes last.
    owners : uid of the user of each one, where it is known, see subordinate_ids."""

    processes: Mapping[str, Status] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict, compare=False)
    owners: Mapping[str, int] = field(default_factory=dict, compare=False)

    def devices(self) -> dict[str, bool]:
        """NIC -> whether any process could use it now."""
        return {
            device: any(nic.link_up and not nic.avoided for nic in seen)
            for device, seen in self._nics().items()
        }

    def links(self) -> dict[str, bool]:
        """NIC -> whether its link is up for every process that uses it."""
        return {device: all(nic.link_up for nic in seen) for device, seen in self._nics().items()}

    def _nics(self) -> dict[str, list[Nic]]:
        """The NICs as each process sees them; of more than a host has, those that a process may have invented are left
        out first."""
        found: dict[str, list[Nic]] = {}
        for status in self.processes.values():
            for device, nic in nics_of(status).items():
                found.setdefault(device, []).append(nic)
        last = 1 + max(self.ranks.values(), default=0)
        kept = sorted(found, key=lambda device: self.ranks.get(device, last))[:_MAX_HOST_NICS]
        return {device: found[device] for device in kept}

    def workloads(self) -> list[str]:
        """Jobs that have a name."""
        names = {str(status.get("workload", ""))[:_MAX_WORKLOAD] for status in self.processes.values()}
        return sorted(names - {"", _NO_WORKLOAD})[:MAX_WORKLOADS]

    def users(self) -> list[int]:
        """Users of the processes; none where they are more than a report has, or not known of all: some alone would
        mislead."""
        found = {self.owners.get(name, -1) for name in self.processes}
        return sorted(found) if len(found) <= MAX_USERS and -1 not in found else []

    def divergent_processes(self, nic: DesiredNic) -> list[str]:
        """Processes that use the NIC and are not in its desired state."""
        return self._processes_that_show(nic, nic.desired != "avoid")

    def following_processes(self, nic: DesiredNic) -> list[str]:
        """Processes that use the NIC and are in its desired state."""
        return self._processes_that_show(nic, nic.desired == "avoid")

    def _processes_that_show(self, nic: DesiredNic, avoided: bool) -> list[str]:
        return [
            name
            for name, status in self.processes.items()
            if (seen := nics_of(status).get(nic.device)) is not None and seen.avoided == avoided
        ]

    def refusal(self, device: str, fraction: float) -> str:
        """Why the processes cannot do without this NIC, "" if they can: one would have no usable one left, or less than
        this part of its own; one of two or more may leave.

        By what each reports of itself: NICs that another process invents do not count.
        """
        for name, status in self.processes.items():
            nics = nics_of(status)
            if device not in nics:
                continue
            others = [nic for other, nic in nics.items() if other != device]
            if not any(nic.link_up and not nic.avoided for nic in others):
                return f"pid {name} would have no usable NIC left"
            out = 1 + sum(nic.avoided for nic in others)
            if out > max(1, int(len(nics) * (1 - fraction))):
                return f"pid {name} would have {out} of its {len(nics)} NICs out of service"
        return ""


def carried_bytes(status: Status) -> dict[str, int]:
    """NIC -> bytes that one process' lanes over it have carried since their start, both directions."""
    carried: dict[str, int] = {}
    for entry in _dicts(status.get("devices"))[:_MAX_NICS]:
        device = str(entry.get("device"))
        carried[device] = (
            carried.get(device, 0) + _count(entry.get("sent_bytes")) + _count(entry.get("received_bytes"))
        )
    return carried


def bytes_elsewhere(status: Status, device: str) -> int:
    """Bytes that one process' lanes over other NICs have carried since their start, both directions."""
    return sum(count for name, count in carried_bytes(status).items() if name != device)


def traffic_outcome(before: Survey, after: Survey, device: str) -> Traffic:
    """Traffic of the other lanes between two surveys: moved bytes, idle, or stalled with requests under way.

    One process that has stalled is a stall, whatever the others do: they may be of another job. `waiting` counts
    connections with requests that only local lanes hold up, not those that wait for their peer. `partly_stalled` where
    another user's processes do not stall: every user can say that his own do.
    """
    moved = False
    stalled, others = set(), set()
    for name, status in after.processes.items():
        earlier = before.processes.get(name)
        if earlier is not None and bytes_elsewhere(status, device) > bytes_elsewhere(earlier, device):
            moved = True
            others.add(after.owners.get(name))
        elif _count(status.get("waiting")):
            stalled.add(after.owners.get(name))
        else:
            others.add(after.owners.get(name))
    if stalled:
        return "partly_stalled" if others - stalled else "stalled"
    return "moved" if moved else "idle"


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value <= _MAX_COUNT else 0
