"""Reports of a fleet become suspects: three leaves, declared; hosts with two NICs."""

from collections.abc import Callable

import pytest

from fabricpulse.diagnosis.evidence.fleet_evidence import FleetEvidence
from fabricpulse.diagnosis.search.suspect import Suspect
from fabricpulse.diagnosis.wire.flow_records import unpack_flows
from fabricpulse.diagnosis.wire.messages import (
    PROTOCOL,
    EdgeName,
    EvidenceReport,
    FlowEvidence,
    HostFacts,
    pack_flows,
)

PORTS = 4
HOSTS = [f"h{i}" for i in range(9)]
LEAF = {f"{host}/{rail}": f"leaf{i % 3}-{rail}" for i, host in enumerate(HOSTS) for rail in ("r0", "r1")}
EDGES = {
    host: tuple(EdgeName(rail, peer, rail) for rail in ("r0", "r1") for peer in HOSTS if peer != host)
    for host in HOSTS
}
Loses = Callable[[str, str, int], float]
"""Loss of a flow by source and destination (host/device) and port."""
STARTED_S = 12  # from when on a coordinator names what has no path


def nothing(_far: str, _near: str, _port: int) -> float:
    """No fault."""
    return 0.0


def play(
    evidence: FleetEvidence,
    loses: Loses,
    seconds: int,
    start: int = 0,
    without: str = "",
    edges_known: bool = False,
    networks: tuple[str, str] = ("", ""),
) -> tuple[Suspect, ...]:
    """Each host reports each second; what is lost is exact. networks : of r0 and r1."""
    facts = HostFacts(tuple(zip(("r0", "r1"), networks, strict=True)))
    found: tuple[Suspect, ...] = ()
    for second in range(start, start + seconds):
        for host in HOSTS:
            if host == without:
                continue
            flows = []
            for number, edge in enumerate(EDGES[host]):
                for port in range(PORTS):
                    sent = 90 if port == 0 else 20
                    far, near = f"{edge.peer}/{edge.peer_device}", f"{host}/{edge.device}"
                    if lost := round(sent * loses(far, near, port)):
                        flows.append(FlowEvidence(number, port, False, sent, lost))
            edges = EDGES[host] if second == start and not edges_known else None
            report = EvidenceReport(
                PROTOCOL, host, 1, PORTS, 90.0, 20.0, pack_flows(flows), False, edges, facts=facts
            )
            evidence.report(report, second)
        found = evidence.suspects(second + 0.5)
    return found


def test_dead_nic_is_reported_once() -> None:
    """Every edge of a NIC is dead on eight other hosts: one suspect, the NIC, and not before it has lasted."""
    evidence = FleetEvidence(LEAF)

    def loses(far: str, near: str, _: int) -> float:
        return float("h3/r1" in (far, near))

    assert play(evidence, loses, 10) == ()
    (suspect,) = play(evidence, loses, 20, start=10)
    assert (suspect.kind, suspect.component, suspect.what) == ("nic", "h3/r1", "loss")
    assert suspect.confidence > 0.99


def test_a_pair_that_was_named_stays_while_a_nic_at_its_end_is_in_question() -> None:
    """The NIC that dies after it waits for 20 s; a pair would, too, that was not named before."""
    evidence = FleetEvidence(LEAF)
    pair = {"h0/r1", "h3/r1"}
    named = play(evidence, lambda far, near, _: float({far, near} == pair), 6)
    assert {(suspect.kind, suspect.silent) for suspect in named} == {("pair", True)}
    for second in range(6, 10):
        found = play(
            evidence, lambda far, near, _: float("h3/r1" in (far, near)), 1, second, edges_known=second > 0
        )
        assert {(s.component, s.peer) for s in found} == {(s.component, s.peer) for s in named}
    assert any(kind == "nic" for _, kind, *_ in evidence._seen)


def test_dead_leaf_is_one_suspect() -> None:
    """All that a leaf carries is lost: the leaf, not its NICs."""
    evidence = FleetEvidence(LEAF)
    (suspect,) = play(evidence, lambda far, near, _: float("leaf1-r0" in (LEAF[far], LEAF[near])), 8)

    assert (suspect.kind, suspect.component) == ("switch", "leaf1-r0")
    assert (suspect.silent, suspect.leaf) == (True, "leaf1-r0")
    # Three NICs of rail 0 below the leaf, six beside it; to and from each of these.
    assert (suspect.pairs, len(suspect.sufferers)) == (6 + 36, 8)
    assert all("/r0 to " in pair for pair in suspect.sufferers)


def test_a_dead_leaf_is_dead_from_the_first_to_the_last() -> None:
    """The label that mutes the alerts of its NICs is there from the first report of it, and still while it is
    repaired.
    """
    evidence = FleetEvidence(LEAF)
    reported = []
    share = {0: 0.4, 20: 0.6}
    for second in range(40):

        def loses(far: str, near: str, _: int, loss: float = share.get(second, float(second < 20))) -> float:
            return loss * float("leaf1-r0" in (LEAF[far], LEAF[near]))

        reported += [(s.component, s.leaf) for s in play(evidence, loses, 1, second, edges_known=second > 0)]
    assert set(reported) == {("leaf1-r0", "leaf1-r0")}
    assert len(reported) > 10


def test_what_a_better_explanation_has_replaced_leaves_with_its_first_word() -> None:
    """A way out of a leaf is lost and named; then the whole leaf dies. Once the leaf is named it alone is."""
    evidence = FleetEvidence(LEAF)

    def way(far: str, near: str, port: int) -> float:
        return float(LEAF[far] == "leaf1-r0" != LEAF[near] and port == 2)

    play(evidence, nothing, STARTED_S)
    found = play(evidence, way, 6, STARTED_S, edges_known=True)
    reported = [{(s.kind, s.component) for s in found}]
    for second in range(STARTED_S + 6, STARTED_S + 20):
        found = play(
            evidence,
            lambda far, near, _: float("leaf1-r0" in (LEAF[far], LEAF[near])),
            1,
            second,
            edges_known=True,
        )
        reported.append({(s.kind, s.component) for s in found})
    whole = ("switch", "leaf1-r0")
    assert reported[0] == {("link", "leaf1-r0")}
    assert [names for names in reported if whole in names] == [{whole}] * (
        len(reported) - reported.index({whole})
    )


def test_a_gap_in_the_evidence_ends_no_suspect() -> None:
    """Some seconds without a loss are no end of a fault that loses little, whatever else is at fault."""
    evidence = FleetEvidence(LEAF)

    def two(far: str, near: str, _: int, gap: bool = False) -> float:
        return float("leaf1-r0" in (LEAF[far], LEAF[near]) or (far == "h0/r1" and not gap))

    assert len(play(evidence, two, 8)) == 1
    named = {s.component for s in play(evidence, two, 18, start=8, edges_known=True)}
    assert named == {"leaf1-r0", "h0/r1"}
    found = play(evidence, lambda far, near, port: two(far, near, port, True), 4, start=26, edges_known=True)
    assert {s.component for s in found} == named


def test_a_lossy_leaf_mutes_no_nic() -> None:
    """A leaf that loses a fifth is named, and does not pass for dead: what is dead below it has another cause."""
    evidence = FleetEvidence(LEAF)
    (suspect,) = play(evidence, lambda far, near, _: 0.2 * float("leaf1-r0" in (LEAF[far], LEAF[near])), 8)
    assert (suspect.component, suspect.silent, suspect.leaf) == ("leaf1-r0", False, "")


def test_loss_out_of_a_leaf_on_one_port() -> None:
    """What leaves a leaf loses a fifth on one source port of four: the way from the leaf into the fabric."""
    evidence = FleetEvidence(LEAF)

    def loses(far: str, near: str, port: int) -> float:
        return 0.2 if LEAF[far] == "leaf2-r1" != LEAF[near] and port == 2 else 0.0

    found = play(evidence, loses, 15)
    assert [(s.kind, s.component, s.peer) for s in found] == [("link", "leaf2-r1", "fabric(h0/r1)")]


@pytest.mark.parametrize(
    ("networks", "component", "network"),
    [
        (("rail0", "rail1"), "leaf1-r0", "rail0"),
        (("", "rail1"), "leaf1-r0", ""),
        (("one", "one"), "fabric", "one"),
    ],
)
def test_a_suspect_has_the_network_of_all_that_cross_it(
    networks: tuple[str, str], component: str, network: str
) -> None:
    """A lossy leaf of one rail, and what both rails cross between leaves. It is a label of the alert: it stays."""

    def loses(far: str, near: str, _: int) -> float:
        across = LEAF[far] != LEAF[near] if component == "fabric" else component in (LEAF[far], LEAF[near])
        return 0.2 * float(across)

    evidence = FleetEvidence(LEAF)
    play(evidence, nothing, STARTED_S, networks=networks)
    found = play(evidence, loses, 5, start=STARTED_S, networks=networks)
    assert [(s.component, s.leaf, s.network) for s in found] == [(component, "", network)]
    found = play(evidence, loses, 2, start=STARTED_S + 5, networks=("renamed", "renamed"))
    assert [(s.component, s.network) for s in found] == [(component, network)]


def test_the_network_of_a_suspect_may_become_known_until_it_is_reported() -> None:
    """Of a host that has not reported yet. A label of the alert, which without it mutes what is lost in all networks;
    another one would page again.
    """

    def loses(far: str, near: str, _: int) -> float:
        return 0.2 * float("leaf1-r0" in (LEAF[far], LEAF[near]))

    for seconds, network in ((2, "rail0"), (5, "")):
        evidence = FleetEvidence(LEAF)
        found = play(evidence, loses, seconds, without="h1", networks=("rail0", "rail1"))
        assert [s.network for s in found] == ([""] if seconds == 5 else [])
        found = play(evidence, loses, 3, start=seconds, networks=("rail0", "rail1"))
        assert [(s.component, s.network) for s in found] == [("leaf1-r0", network)]


def test_nothing_wrong_nothing_reported() -> None:
    """No loss, no suspect; and what was reported ends some seconds after the last loss."""
    evidence = FleetEvidence(LEAF)
    assert play(evidence, lambda *_: 0.0, 5) == ()
    assert play(evidence, lambda far, near, _: float("leaf1-r0" in (LEAF[far], LEAF[near])), 5, start=5) != ()
    assert play(evidence, lambda *_: 0.0, 30, start=10) == ()


def test_a_repaired_fault_does_not_come_back_with_another() -> None:
    """A NIC lost packets on one port and is well; then a leaf dies that some of its flows cross: only the leaf."""
    evidence = FleetEvidence(LEAF)

    def nic(far: str, _near: str, port: int) -> float:
        return 0.2 if far == "h0/r0" and port == 1 else 0.0

    assert {s.component for s in play(evidence, nic, 2)} <= {"h0/r0"}
    assert play(evidence, lambda *_: 0.0, 14, start=2) == ()
    found = play(evidence, lambda far, near, _: float("leaf1-r0" in (LEAF[far], LEAF[near])), 8, start=16)

    assert [(s.kind, s.component) for s in found] == [("switch", "leaf1-r0")]


def test_restarted_coordinator_asks_for_the_edges() -> None:
    """A report of edges that it has never seen is answered with the wish for them, and counts for nothing."""
    evidence = FleetEvidence()
    report = EvidenceReport(PROTOCOL, "h0", 7, PORTS, 90.0, 20.0, b"", False, None)

    assert evidence.report(report, 0.0)
    assert evidence.reports == 0


@pytest.mark.parametrize(
    "flow",
    [FlowEvidence(5, 0, False, 10, 1), FlowEvidence(0, 4, False, 10, 1), FlowEvidence(0, 0, False, 1, 10)],
)
def test_nonsense_is_refused(flow: FlowEvidence) -> None:
    """An edge or port that does not exist, or more lost than sent, is an error and not evidence."""
    with pytest.raises(ValueError, match="does not exist"):
        unpack_flows(pack_flows([flow]), edges=5, ports=4)
    with pytest.raises(ValueError, match="cut short"):
        unpack_flows(b"12345", edges=5, ports=4)


def test_switch_that_drops_large_packets_is_named() -> None:
    """All flows into one leaf drop large packets and lose nothing: the leaf is named, as an MTU fault, not a loss."""
    evidence = FleetEvidence(LEAF)
    found: tuple[Suspect, ...] = ()
    for second in range(18):
        for host in HOSTS:
            flows = [
                FlowEvidence(number, port, False, 0, 0, cut=True)
                for number, edge in enumerate(EDGES[host])
                for port in range(PORTS)
                if "leaf1-r0" in (LEAF[f"{host}/{edge.device}"], LEAF[f"{edge.peer}/{edge.peer_device}"])
            ]
            edges = EDGES[host] if second == 0 else None
            evidence.report(
                EvidenceReport(PROTOCOL, host, 1, PORTS, 90.0, 20.0, pack_flows(flows), False, edges), second
            )
        found = evidence.suspects(second + 0.5)
    assert [(s.what, s.kind, s.component) for s in found] == [("mtu", "switch", "leaf1-r0")]
    assert found[0].leaf == ""
