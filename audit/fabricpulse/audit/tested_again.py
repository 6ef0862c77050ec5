"""The rule by which a run of the fleet clears what an earlier one has found: it has made the same test again, and that
decided. Pure; for people: docs/audit-gate.md.

That a finding is not found again proves nothing by itself: the test may not have been made, at a lower rate, with other
partners, in the other direction alone, or without deciding anything.
"""

from collections.abc import Iterable, Mapping, Sequence

from fabricpulse.audit.checks.fleet import (
    clock_offset,
    fleet_divided,
    nccl_data,
    nccl_delay,
    nccl_ring,
    nccl_untested,
    odd_one_out,
    path_untested,
    profile,
    sla_path,
    value_missing,
    wiring,
    wiring_unknown,
)
from fabricpulse.audit.evidence import kinds_named, way_of
from fabricpulse.audit.host.attributes import BY_NAME
from fabricpulse.audit.model import (
    MOST_PEERS,
    VALUE,
    Finding,
    FleetFindings,
    MeasurementKind,
    OpenFinding,
    Tested,
)
from fabricpulse.audit.registry import all_checks

# Which check a test of pairs makes again.
CHECK_OF: Mapping[MeasurementKind, str] = {
    "connectivity": "path-connectivity",
    "mtu": "path-mtu",
    "loss": "path-loss",
    "owd": "path-delay",
    "bandwidth": "path-bandwidth",
    "duplex": "path-duplex",
    "rdma": "path-rdma",
    "ecmp_loss": "path-ecmp",
    "ecmp_delay": "path-ecmp",
}
# Those whose result depends on how fast NICs were asked to send.
BY_RATE = {"path-loss", "path-bandwidth", "path-duplex", "path-rdma", "path-ecmp", sla_path.CHECK.id}
# And on how many datagrams were sent: few lose nothing.
_BY_DATAGRAMS = {"path-loss", "path-ecmp", sla_path.CHECK.id}
# Those of one value.
_BY_VALUE = {odd_one_out.CHECK.id, profile.CHECK.id}
OF_CABLES = {wiring.CHECK.id, wiring_unknown.CHECK.id}
# Those that compare hosts with one another: fewer hosts show less.
COMPARED = {
    odd_one_out.CHECK.id,
    fleet_divided.CHECK.id,
    clock_offset.CHECK.id,
    value_missing.CHECK.id,
}
# Of each side of a NIC: as many as it takes to blame it.
LEAST_PARTNERS = 2
RING_CHECKS = (nccl_ring.CHECK.id, nccl_data.CHECK.id, nccl_untested.CHECK.id)


def value_name(attribute: str, device: str) -> str:
    """What Tested calls a value of a host."""
    return f"{attribute} {device}".strip()[:128]


def tested_again(one: OpenFinding, now: FleetFindings) -> bool:
    """Whether the run has made the test of the finding again, or what it is of is no more."""
    finding = one.finding
    if _is_no_more(finding, now):
        return True
    if not _as_hard(one, now):
        return False
    check = finding.check
    if check == sla_path.CHECK.id:
        check = f"{check} {finding.evidence.get('limit', '').partition(' ')[0]}"
    made = [test for test in now.tested if test.check == check]
    if check.startswith("profile"):
        return any(test.subject == one.profile[:128] for test in made)
    if check == path_untested.CHECK.id:
        return _covers(finding, now.tested)
    if check in CHECK_OF.values() or finding.check == sla_path.CHECK.id:
        return _pairs_passed(finding, made, now)
    if check in RING_CHECKS:
        # A ring of the hosts beside it says less than one of all.
        return any(2 * (len(test.peers) + 1) >= min(one.hosts, MOST_PEERS) for test in made)
    if check in OF_CABLES:
        return any(test.subject == finding.subject for test in made)
    if check == nccl_delay.CHECK.id:
        target = finding.evidence.get("target", "").partition(" ")[0]
        peers = {peer for test in made if test.subject == finding.subject for peer in test.peers}
        return target in peers or target in now.removed
    return bool(made)


def partner_of(finding: Finding, host: str) -> str:
    """The host that `host` must be tested with again, "" if that does not matter."""
    if finding.check == nccl_delay.CHECK.id:
        return finding.evidence.get("target", "").partition(" ")[0]
    way = _own_way(finding, host)
    return way[2] if way else ""


def _is_no_more(finding: Finding, now: FleetFindings) -> bool:
    """Whether neither the agent nor the run knows the check any more, the agent the value, or the fleet the NIC."""
    if now.checks and finding.check not in now.checks and finding.check not in all_checks():
        return True
    attribute = finding.evidence.get("attribute", "")
    if finding.check in _BY_VALUE and attribute and attribute not in BY_NAME:
        return True
    # A plan of cables may have NICs that are no rails.
    of_rail = finding.host and finding.category == "back-end" and finding.check not in OF_CABLES
    of_nic = of_rail or finding.check in _BY_VALUE
    return bool(of_nic and finding.subject and now.devices and finding.subject not in now.devices)


def _as_hard(one: OpenFinding, now: FleetFindings) -> bool:
    """Whether the run was such as would show it."""
    finding = one.finding
    if finding.check in BY_RATE and now.rate_bps < one.rate_bps:
        return False
    if finding.check in _BY_DATAGRAMS and now.datagrams < one.datagrams:
        return False
    if finding.check in COMPARED and 2 * now.hosts < one.hosts:
        return False
    if finding.check == sla_path.CHECK.id and one.profile != now.profile:
        return False
    attribute = finding.evidence.get("attribute", "")
    if finding.check not in _BY_VALUE or not attribute:
        return True
    wanted = value_name(attribute, finding.subject)
    return any(test.check == VALUE and test.subject == wanted for test in now.tested)


def _pairs_passed(finding: Finding, made: Sequence[Tested], now: FleetFindings) -> bool:
    way = _own_way(finding, now.host)
    if way is not None:
        nic, side, other = way
        if any(test.subject == nic and test.side == side and other in test.peers for test in made):
            return True
        # Nobody can use that path any more; what is left is the NIC itself.
        return other in now.removed and _nic_passed(nic, [side], made, now)
    if way_of(now.host) in finding.evidence:
        return False  # of whom it is cannot be read
    if finding.suspects:
        # The one that it was not tested with is the host itself. Nobody can be tested with those that are gone; that
        # the host was tested with somebody is still asked for.
        peers = {peer for test in made for peer in test.peers}
        return bool(peers) and len(set(finding.suspects) - peers - set(now.removed)) <= 1
    accused = finding.evidence.get("side", "both")
    sides = ["sends", "receives"] if accused == "both" else [accused]
    nics = [finding.subject] if finding.subject else finding.evidence.get("nics", "").split(", ")
    if nics == [""]:
        nics = sorted({test.subject for test in made})
    nics = [nic for nic in nics if not now.devices or nic in now.devices]
    return bool(nics) and all(_nic_passed(nic, sides, made, now) for nic in nics)


def _nic_passed(nic: str, sides: Iterable[str], made: Sequence[Tested], now: FleetFindings) -> bool:
    """Whether each side of a NIC was decided with as many partners as it takes to blame it, where the fleet has them,
    and no more ways were left undecided."""
    least = min(LEAST_PARTNERS, max(1, now.members - 1)) if now.members else LEAST_PARTNERS
    by_side = {test.side: test for test in made if test.subject == nic}
    return all(
        (test := by_side.get(side)) is not None  # type: ignore[call-overload]
        and len(test.peers) >= max(least, test.undecided)
        for side in sides
    )


def _own_way(finding: Finding, host: str) -> tuple[str, str, str] | None:
    """Of a finding about a way between two NICs: the one of `host`, whether it sends or receives there, and the host at
    the other end; None if it is about none."""
    source, target = finding.evidence.get("source", ""), finding.evidence.get("target", "")
    if one := finding.evidence.get(way_of(host), ""):
        source, _, target = one.partition(" > ")
    if not finding.suspects or not source or not target:
        return None
    (source_host, _, source_nic), (target_host, _, target_nic) = source.partition(" "), target.partition(" ")
    if source_host == host:
        return source_nic, "sends", target_host
    return (target_nic, "receives", source_host) if target_host == host else None


def _covers(finding: Finding, tested: Sequence[Tested]) -> bool:
    """Whether all that was not known of a NIC has been decided; a reason that an agent gave names no kind of test."""
    sides: dict[str, set[str]] = {}
    for test in tested:
        if test.side and test.peers and finding.subject in ("", test.subject):
            sides.setdefault(test.check, set()).add(test.side)
    known = {check for check, both in sides.items() if len(both) == 2}
    kinds = kinds_named(finding.evidence.get("reason", ""))
    if kinds:
        return known.issuperset(CHECK_OF[kind] for kind in kinds)
    return bool(known & {CHECK_OF["connectivity"], CHECK_OF["loss"], CHECK_OF["bandwidth"]})
