"""What on-call gets of a replay, and whether it is right: of each fault an alert, its cause, and nothing else.

A real Alertmanager with the shipped inhibitions is given what fires at each minute, each set of alerts that is new in a
cluster of its own. What it does not mute is a notification, from when it appears until it is over.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.bench.rules.replay.history import History, host_name
from tests.bench.rules.replay.trace import OTHER, Fault

Labels = dict[str, str]
# Alerts that name the cause, by kind of fault; and what else is true of it and may be said first.
CAUSES = {
    "link down": {"FabricNicDisconnected"},
    "GID error": {"FabricGidInconsistent", "FabricGidMoved", "FabricGidRoceV1"},
    "low speed": {"FabricPortsMissing"},
    "NIC lost": {"FabricNicGone"},
    "PCIe width low": {"FabricPcieDegraded"},
    "host down": {"FabricHostDown"},
}
SYMPTOMS = {"NIC lost": {"FabricNicDisconnected"}}
# For so long after its end an alert may still begin that is about a fault: what is counted over a quarter of an hour.
_GRACE_MIN = 3


@dataclass(frozen=True)
class Notification:
    """minute : when it is first not muted."""

    minute: int
    labels: Labels

    @property
    def name(self) -> str:
        """Of the alert."""
        return self.labels["alertname"]

    @property
    def critical(self) -> bool:
        """Whether it pages."""
        return self.labels.get("severity") == "critical"

    def __str__(self) -> str:
        about = [self.labels.get(name, "") for name in ("instance", "device", "attribute", "network")]
        return f"{self.minute} min: {self.name} {' '.join(filter(None, about))}"


@dataclass(frozen=True)
class Judged:
    """A fault and what on-call got of it."""

    fault: Fault
    notifications: Sequence[Notification]

    @property
    def right(self) -> bool:
        """Whether some of it names the cause, and nothing says another one."""
        names = {each.name for each in self.notifications} - SYMPTOMS.get(self.fault.kind, set())
        return bool(names) and names <= CAUSES[self.fault.kind]


def notifications(
    firing: Sequence[Sequence[Labels]],
    not_muted: Callable[[Sequence[Sequence[Labels]]], Sequence[Sequence[Labels]]],
) -> list[Notification]:
    """By minute. not_muted : of some sets of alerts what Alertmanager leaves of each."""
    keys = [tuple(sorted(tuple(sorted(labels.items())) for labels in alerts)) for alerts in firing]
    kinds = list(dict.fromkeys(keys))
    left = dict(zip(kinds, not_muted([[dict(labels) for labels in key] for key in kinds]), strict=True))
    found, before = [], set[tuple[tuple[str, str], ...]]()
    for minute, key in enumerate(keys):
        now = {tuple(sorted(labels.items())) for labels in left[key]}
        found += [Notification(minute, dict(labels)) for labels in sorted(now - before)]
        before = now
    return found


def judged(
    history: History, faults: Sequence[Fault], notified: Sequence[Notification]
) -> tuple[list[Judged], list[Notification]]:
    """Each fault of the fabric, and the notifications that none of them explains."""
    real = [fault for fault in faults if fault.kind != OTHER]
    own: dict[int, list[Notification]] = {number: [] for number in range(len(real))}
    false = []
    for each in notified:
        explained = [number for number, fault in enumerate(real) if _is_about(history, fault, each)]
        for number in explained:
            own[number].append(each)
        if not explained:
            false.append(each)
    return [Judged(fault, own[number]) for number, fault in enumerate(real)], false


def _is_about(history: History, fault: Fault, each: Notification) -> bool:
    if not fault.start_min <= each.minute <= fault.end_min + _GRACE_MIN:
        return False
    host = each.labels.get("instance") or each.labels.get("peer")
    device = each.labels.get("device")
    named = device is None or fault.kind == "host down" or device == history.nic_of(fault)
    return host == host_name(fault.server) and named


def by_kind(found: Sequence[Judged]) -> Iterator[tuple[str, list[Judged]]]:
    """The faults of each kind."""
    for kind in CAUSES:
        yield kind, [each for each in found if each.fault.kind == kind]
