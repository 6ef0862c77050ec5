"""Echo tests between the NICs of a fleet: who tests whom, and what the answers mean. Pure.

Each pair of a plan is tested in both directions, small and at the full MTU of the sender's NIC. The echo of a packet
comes back along the way back, so an exchange fails with either direction: the request is sent whole ("do not
fragment"), while the kernel that answers may fragment its answer. A full-size failure of one direction alone is thus
the MTU of that direction; a failure of small packets is connectivity.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fabricpulse.audit.blame import Blame, Nic, PathTest, blame
from fabricpulse.audit.model import Finding, HostReport, clip
from fabricpulse.audit.node.wire import Probe, ProbeResult
from fabricpulse.audit.pairing import Plan, directions, plan_rounds
from fabricpulse.core.fleet.membership import Membership

CONNECTIVITY, MTU = "path-connectivity", "path-mtu"
SMALL = 128


@dataclass(frozen=True)
class Way:
    """One direction between two NICs of a rail. size : 0 where the MTU of the sender's NIC is not known."""

    source: Nic
    target: Nic
    address: str
    size: int

    def probes(self) -> list[Probe]:
        """Small, then whole."""
        sizes = [SMALL, *([self.size] if self.size > SMALL else [])]
        return [Probe(self.source[1], self.address, size) for size in sizes]


def plan_ways(
    membership: Membership, reports: Sequence[HostReport], leaves: Mapping[str, str], most: int | None = None
) -> tuple[dict[str, list[Way]], dict[str, Plan]]:
    """What each host tests, and the plan of each network.

    reports : of the hosts that take part; the MTU of their NICs is from there. leaves : host -> leaf, as far as known.
    most : rounds, 2·log2 n if None.
    """
    mtus = {(r.host, v.subject): v.value for r in reports for v in r.values if v.attribute == "mtu"}
    taking_part = {report.host for report in reports}
    rails: dict[str, list[tuple[Nic, str]]] = defaultdict(list)
    for host in membership.hosts:
        for nic in host.nics:
            if host.name in taking_part:
                rails[nic.network].append(((host.name, nic.device), nic.address))
    by_host: dict[str, list[Way]] = defaultdict(list)
    plans = {}
    for network, nics in sorted(rails.items()):
        plan = plan_rounds([leaves.get(nic[0], "") for nic, _ in nics], most)
        plans[network] = plan
        for a, b in directions(pair for pairs in plan.rounds for pair in pairs):
            (source, _), (target, address) = nics[a], nics[b]
            mtu = mtus.get(source, "")
            by_host[source[0]].append(Way(source, target, address, int(mtu) if mtu.isdigit() else 0))
    return dict(by_host), plans


def judge(ways: Sequence[Way], results: Sequence[ProbeResult]) -> list[tuple[str, PathTest]]:
    """(check, test) of the ways of one host. results : of the probes of all ways, in order.

    MTU is judged only where small packets pass: without connectivity nothing is known of it.
    """
    found = []
    rest = iter(results)
    for way in ways:
        answers = [next(rest) for _ in way.probes()]
        small = answers[0].answered > 0
        found.append((CONNECTIVITY, PathTest(way.source, way.target, small)))
        if small and len(answers) > 1:
            found.append((MTU, PathTest(way.source, way.target, answers[1].answered > 0)))
    return found


def path_findings(tests: Sequence[tuple[str, PathTest]]) -> list[Finding]:
    """What the tests of all hosts say, by whom is to blame."""
    found = []
    for check in (CONNECTIVITY, MTU):
        own = [test for name, test in tests if name == check]
        peers: dict[Nic, set[Nic]] = defaultdict(set)
        for test in own:
            if not test.ok:
                peers[test.source].add(test.target)
                peers[test.target].add(test.source)
        found += [_finding(check, entry, peers) for entry in blame(own)]
    return found


def _finding(check: str, entry: Blame, peers: Mapping[Nic, set[Nic]]) -> Finding:
    what = "packets of the full MTU" if check == MTU else "packets"
    host, device = entry.nic
    evidence = {"blame": entry.kind, "failed_tests": str(entry.failed)}
    if entry.target is not None:
        target = " ".join(entry.target)
        evidence["target"] = target
        doubt = "" if entry.kind == "path" else " (the NIC, its peer or the path: not decided)"
        text = f"{what} do not pass to {target}{doubt}"
    else:
        own = sorted({" ".join(peer) for nic in peers for peer in peers[nic] if nic == entry.nic})
        if own:
            evidence["peers"] = clip(", ".join(own[:12]))
        side = {"sends": "that it sends", "receives": "that it is sent", "both": "between it and its peers"}
        text = f"{what} {side[entry.side]} do not pass"
    return Finding(check, "back-end", "error", host, device, text, evidence)


def coverage_note(plans: Mapping[str, Plan]) -> str:
    """One line of how much was tested."""
    parts = [
        f"{network}: {len(plan.rounds)} rounds, {sum(map(len, plan.rounds))} pairs, "
        f"{plan.covered} of {plan.leaf_pairs} pairs of leaves"
        for network, plan in plans.items()
    ]
    return "paths: " + "; ".join(parts) if parts else "paths: no network with two NICs"
