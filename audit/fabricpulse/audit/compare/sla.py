"""What a profile requires and a run does not prove: values that a host does not report, and limits of paths. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from fabricpulse.audit.checks.fleet import profile_unproven, sla_path
from fabricpulse.audit.compare.profile import PathLimits
from fabricpulse.audit.model import Category, Finding, Measurement, MeasurementKind, Value
from fabricpulse.audit.pair_tests.blame import PathTest, blame
from fabricpulse.audit.pair_tests.path_tests import ends_of, of_way
from fabricpulse.audit.pair_tests.transfer_tests import BUSY, LEAST_LOST, LIMITED, UNSTATED

LIMIT_OF: Mapping[MeasurementKind, str] = {
    "bandwidth": "least_gbps",
    "loss": "most_loss",
    "owd": "most_delay_us",
}


def unproven(
    values: Mapping[str, Iterable[Value]], roles: Mapping[str, Mapping[str, str | list[str]]]
) -> list[Finding]:
    """Hosts of which the profile pins nothing, and pinned values that a host does not report: neither is known to be
    right."""
    found = []
    for host, own in sorted(values.items()):
        reported: dict[str, set[str]] = defaultdict(set)
        for value in own:
            reported[value.role].add(value.attribute)
        everything = set().union(*reported.values()) if reported else set()
        if not roles.get("*") and not reported.keys() & roles.keys():
            text = (
                f"the profile has none of its roles: {', '.join(sorted(reported)) or 'it has reported none'}"
            )
            found.append(_finding("fleet", host, text))
            continue
        own_roles = {role.partition(": ")[0] for role in reported}
        for role in sorted(roles.keys() - reported.keys()):
            if ": " in role and role.partition(": ")[0] in own_roles and roles[role]:
                text = f"the profile pins values of {role}, which the host has not"
                found.append(_finding("fleet", host, text))
        for role in sorted(reported.keys() & roles.keys()):
            if missing := sorted(roles[role].keys() - reported[role]):
                text = f"the profile pins {', '.join(missing)} of {role}, the host does not report"
                found.append(_finding("fleet", host, text))
        if missing := sorted(roles.get("*", {}).keys() - everything):
            text = f"the profile pins {', '.join(missing)} of any role, the host does not report"
            found.append(_finding("fleet", host, text))
    return found


def limit_findings(
    limits: PathLimits, hosts: Sequence[str], measured: Sequence[Measurement], datagrams: int
) -> list[Finding]:
    """NICs and paths beyond a limit, whatever the rest of the fleet reaches; hosts of which a limit was not tested.
    datagrams : of one transfer."""
    found = []
    for kind, name in LIMIT_OF.items():
        limit = getattr(limits, name)
        if limit is None:
            continue
        own = [
            (m, ok) for m in measured if m.kind == kind and (ok := within(m, limits, datagrams)) is not None
        ]
        for entry in blame(PathTest(*ends_of(m), ok) for m, ok in own):
            target = f" to {' '.join(entry.target)}" if entry.target else ""
            what = "path" if entry.kind == "undecided" else entry.kind
            text = f"{kind} of the {what}{target}: {name} {limit:g} is not kept"
            evidence = {"blame": entry.kind, "limit": f"{name} {limit:g}", "failed_tests": str(entry.failed)}
            if entry.target is None:
                evidence["side"] = entry.side
            finding = sla_path.CHECK.finding(*entry.nic, text, evidence)
            found.append(of_way(finding, entry) if entry.target else finding)
        known = {nic[0] for m, _ in own for nic in ends_of(m)}
        for host in hosts:
            if host not in known:
                text = f"{name} {limit:g}: no test of {kind} shows it"
                found.append(_finding("back-end", host, text))
    return found


def enough_datagrams(most_loss: float) -> int:
    """Of which none lost shows a loss below the limit, 95 times of 100 (rule of three, Hanley 1983)."""
    return math.ceil(3 / most_loss)


def limit_of(m: Measurement) -> str:
    """Name of the limit that a test is judged by, "" if there is none."""
    return LIMIT_OF.get(m.kind, "")


def within(m: Measurement, limits: PathLimits, datagrams: int) -> bool | None:
    """Whether the limit of its kind is kept; None where the test does not say, or there is none."""
    limit = getattr(limits, limit_of(m), None)
    if limit is None or m.detail == BUSY:
        return None
    if m.kind == "bandwidth":
        # What an agent is set to send no faster says nothing of what lies beyond.
        return None if m.detail in (LIMITED, UNSTATED) and m.value < limit * 1e9 else m.value >= limit * 1e9
    if m.kind == "loss":
        sent = datagrams * m.attempts
        if m.value > limit:
            # One lost datagram is chance.
            return False if m.ok is not None and round(m.value * sent) >= LEAST_LOST else None
        return True if m.ok is not None and sent >= enough_datagrams(limit) else None
    if m.value - m.bound > limit * 1e-6:
        return False
    return True if m.value + m.bound <= limit * 1e-6 and m.value + m.bound >= 0 else None


def _finding(category: Category, host: str, text: str) -> Finding:
    return profile_unproven.CHECK.finding(host, "", text, category=category)
