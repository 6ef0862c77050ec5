"""Which NICs of a plan are not known to be good, and why not. Pure.

What was not measured has not passed: a NIC of which a kind of test that was asked for has decided nothing, in one of
its directions, is reported as untested. That is the case where it has no partner, where hosts were too busy for each
test, and where there is nothing to compare it with. A NIC that is named, or suspected, by another finding is not
reported once more.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from fabricpulse.audit.evidence import KIND_NAMES, SIDES
from fabricpulse.audit.model import Finding, Measurement, MeasurementKind
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.path_tests import FRONT_ENDS, WORDING, Rail, ends_of
from fabricpulse.audit.pair_tests.transfer_tests import Transfers


def kinds_of(transfers: Transfers | None) -> tuple[MeasurementKind, ...]:
    """The kinds of tests that a run makes of each NIC. transfers : None for echoes alone."""
    found: list[MeasurementKind] = ["connectivity", "mtu"]
    if transfers is not None:
        found += ["loss", "bandwidth", "owd"]
        found += ["duplex"] if transfers.duplex else []
        found += ["rdma"] if transfers.rdma else []
    return tuple(found)


def uncovered(
    rails: Mapping[str, Rail],
    measured: Sequence[Measurement],
    kinds: Collection[MeasurementKind],
    findings: Iterable[Finding] = (),
) -> dict[Nic, str]:
    """NICs of the back end of which something that was asked for is not known, with what and why. findings : of the
    same tests; NICs that these are about are left out.

    One-way delay is asked for of networks in which others have it: without fleet time nobody does.
    """
    own: dict[tuple[str, Nic], list[Measurement]] = defaultdict(list)
    for m in measured:
        for nic in ends_of(m):
            own[m.kind, nic].append(m)
    delayed = {m.network for m in measured if m.kind == "owd" and m.ok is not None}
    named = _named(findings, measured)
    found = {}
    for network, rail in rails.items():
        if network in FRONT_ENDS:
            continue
        met = {rail.nics[end][0] for pairs in rail.plan.rounds for pair in pairs for end in pair}
        for nic, _ in rail.nics:
            if nic in named:
                continue
            if nic not in met:
                found[nic] = f"no other host with a NIC of {network} takes part"
                continue
            by_reason: dict[str, list[str]] = defaultdict(list)
            for kind in kinds:
                if kind == "owd" and network not in delayed:
                    continue
                sides = _open_sides(nic, own[kind, nic])
                if any(sides):
                    why = _why(kind, nic, own[kind, nic], own["connectivity", nic])
                    by_reason[why].append(KIND_NAMES[kind] + SIDES[sides])
            if by_reason:
                found[nic] = "; ".join(f"{', '.join(what)}: {why}" for why, what in by_reason.items())
    return found


def _open_sides(nic: Nic, own: Sequence[Measurement]) -> tuple[bool, bool]:
    """Whether no test has decided anything of what the NIC sends, and of what it is sent."""
    decided = [ends_of(m) for m in own if m.ok is not None]
    return all(source != nic for source, _ in decided), all(target != nic for _, target in decided)


def _why(kind: str, nic: Nic, own: Sequence[Measurement], echoes: Sequence[Measurement]) -> str:
    details = sorted({m.detail for m in own if m.ok is None and m.detail})
    if details:
        return " or ".join(details)
    if kind != "connectivity" and echoes and all(m.ok is False for m in echoes):
        return "no echo passes between it and its partners"
    if kind == "owd":
        if own:
            return "a clock is off, or too few ways are like its own"
        return "it or its partners have no fleet time (clocksync sidecar)"
    if kind == "mtu" and all(ends_of(m)[0] != nic for m in own):
        return "no packet of the full MTU was sent, as its host does not report it"
    if own:
        return "too few ways to say what is usual"
    return "no test of it was made to its end"


def _named(findings: Iterable[Finding], measured: Iterable[Measurement]) -> set[Nic]:
    """The NICs that errors in paths are about, and ends of failed tests whose hosts are suspected."""
    checks = {wording.check.id for wording in WORDING.values()} | {"path-ecmp"}
    hosts: set[str] = set()
    suspects: set[str] = set()
    found: set[Nic] = set()
    for finding in findings:
        if finding.check not in checks or finding.severity != "error":
            continue
        suspects |= set(finding.suspects)
        if finding.host and finding.subject:
            found.add((finding.host, finding.subject))
        elif finding.host:
            hosts.add(finding.host)
    for m in measured:
        for nic in ends_of(m):
            if nic[0] in hosts or (m.ok is False and nic[0] in suspects):
                found.add(nic)
    return found
