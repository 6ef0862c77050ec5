"""Evidence that comes bit by bit, or is what is left of a fault: nothing is named by the first or the last of it."""

from tests.unit.diagnosis.test_fleet_evidence import EDGES, HOSTS, LEAF, PORTS, play
from tests.unit.diagnosis.test_random_faults import names, steady
from tests.unit.diagnosis.virtual_fleet import VirtualFleet

from fabricpulse.diagnosis.evidence.fleet_evidence import FleetEvidence
from fabricpulse.diagnosis.flows.components import Kind, code
from fabricpulse.diagnosis.wire.messages import PROTOCOL, EvidenceReport, FlowEvidence, pack_flows


def test_a_size_that_is_dropped_is_not_that_of_the_first_flows() -> None:
    """Flows are tried with large packets one after the other: the first ones that do not arrive have one source."""
    evidence = FleetEvidence(LEAF)
    named = set()
    play(evidence, lambda *_: 0.0, 14)
    for second in range(14, 23):
        for host in HOSTS:
            cut = [
                FlowEvidence(number, port, False, 0, 0, cut=True)
                for number, edge in enumerate(EDGES[host])
                for port in range(PORTS)
                if LEAF[f"{host}/{edge.device}"] == "leaf1-r0"
                and LEAF[f"{edge.peer}/{edge.peer_device}"] != "leaf1-r0"
                and (edge.peer == "h0" or second >= 17)
            ]
            evidence.report(EvidenceReport(PROTOCOL, host, 1, PORTS, 90.0, 20.0, pack_flows(cut)), second)
        named |= {(s.what, s.kind, s.component, s.peer) for s in evidence.suspects(second + 0.5)}
    assert named == {("mtu", "link", "fabric(h0/r0)", "leaf1-r0")}


def test_flows_that_are_slow_as_the_coordinator_starts_wait_for_their_paths() -> None:
    """Those of one link were said to be slow in the leaf, for as long as their paths were not reported."""
    fleet = VirtualFleet(41, 12, 1, 4, 3)
    link = "link", "spine1-r0", "leaf2-r0"
    fleet.faults = [steady("delay", 1.0, link)]
    fleet.play(16)
    fleet.restart_coordinator()
    assert names(fleet.play(11)) == set()


def test_losses_of_a_pair_are_looked_at_over_time() -> None:
    """As those of all else: or a pair that has recovered is named for each packet that is lost by chance."""
    evidence = FleetEvidence(LEAF)
    pair = "h0/r1", "h3/r1"
    play(evidence, lambda far, near, _: float((far, near) == pair), 3)
    layout = evidence._laid_out(3.0)
    table, component = layout.table, code(Kind.PAIR, *(evidence._names.find(nic) for nic in pair))
    _, history = evidence._log.tables(layout)
    other = code(Kind.PAIR, *map(evidence._names.find, pair[::-1]))
    assert len(history.moments(table, 0.0, component, set())[0]) == 3 * PORTS
    assert not len(history.moments(table, 0.0, other, set())[0])
