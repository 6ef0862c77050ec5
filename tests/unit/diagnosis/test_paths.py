"""Suspects when the switches of the flows are known: links and spines have names."""

import random

import pytest
from tests.unit.diagnosis.test_fleet_evidence import EDGES, HOSTS, LEAF, PORTS, play

from fabricpulse.core.config import load_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.diagnosis.evidence.fleet_evidence import FleetEvidence
from fabricpulse.diagnosis.flows.topology import Topology
from fabricpulse.diagnosis.wire.messages import PROTOCOL, EdgeName, EvidenceReport, FlowPath

SWITCHES = {f"10.9.{s}.{leaf}": f"spine{s}" for s in range(3) for leaf in range(6)}
LEAVES = sorted(set(LEAF.values()))


def spine_of(source: str, destination: str, port: int) -> int:
    """As a hash chooses: another one for another port, of another order for another pair."""
    return (port + sum(map(ord, source + destination))) % 3


def paths_of(host: str, odd: bool = True) -> tuple[FlowPath, ...]:
    """What this host has traced; a spine answers with the address of the port that leads to the leaf asked from. odd :
    every second destination's leaf answers, with an address that nobody has declared.
    """
    found = []
    for number, edge in enumerate(EDGES[host]):
        near, far = f"{host}/{edge.device}", f"{edge.peer}/{edge.peer_device}"
        for port in range(PORTS):
            if LEAF[near] != LEAF[far]:
                spine = spine_of(near, far, port)
                hops = ("10.1.1.1", f"10.9.{spine}.{LEAVES.index(LEAF[near])}", "10.7.7.7")
                found.append(FlowPath(number, port, hops[: 2 + odd * (number % 2)]))
    return tuple(found)


@pytest.fixture
def evidence() -> FleetEvidence:
    """Declared leaves and addresses, all paths known."""
    made = FleetEvidence(LEAF, SWITCHES)
    for host in HOSTS:
        first = EvidenceReport(PROTOCOL, host, 1, PORTS, 90.0, 20.0, b"", False, EDGES[host], paths_of(host))
        made.report(first, 0.0)
    return made


def test_one_direction_of_one_uplink(evidence: FleetEvidence) -> None:
    """What goes from one leaf to one spine is lost in part: that link, by name, and in that direction."""

    def loses(far: str, near: str, port: int) -> float:
        hit = LEAF[far] == "leaf1-r0" != LEAF[near] and spine_of(far, near, port) == 2
        return 0.1 if hit else 0.0

    (suspect,) = play_known(evidence, loses, 12)
    assert (suspect.kind, suspect.component, suspect.peer) == ("link", "leaf1-r0", "spine2")
    assert suspect.confidence > 0.9


def test_a_spine(evidence: FleetEvidence) -> None:
    """What crosses one of three spines is lost in part, on both rails."""

    def loses(far: str, near: str, port: int) -> float:
        return 0.05 if LEAF[far] != LEAF[near] and spine_of(far, near, port) == 0 else 0.0

    (suspect,) = play_known(evidence, loses, 20)
    assert (suspect.kind, suspect.component) == ("switch", "spine0")


def test_hosts_that_come_again_bring_their_paths(evidence: FleetEvidence) -> None:
    """A new revision of the edges has no paths until they are reported: numbers of edges may mean others now."""
    everything = evidence.paths
    again = EvidenceReport(PROTOCOL, "h0", 2, PORTS, 90.0, 20.0, b"", False, EDGES["h0"])
    evidence.report(again, 1.0)
    assert evidence.paths == everything - len(paths_of("h0"))


@pytest.mark.parametrize(
    "path",
    [
        FlowPath(999, 0, ("a",)),
        FlowPath(0, 9, ("a",)),
        FlowPath(0, 0, 9 * ("a",)),
        FlowPath(0, 0, (60 * "1",)),
        FlowPath(0, 0, ("1\0",)),
        FlowPath(0, 0, ("10.0.0.1", "spine\n1")),
    ],
)
def test_nonsense_is_refused(path: FlowPath) -> None:
    """Edges or ports that do not exist, more hops than are traced, a name in place of an address."""
    report = EvidenceReport(PROTOCOL, "h0", 1, PORTS, 90.0, 20.0, b"", False, EDGES["h0"], (path,))
    with pytest.raises(ValueError, match="path"):
        FleetEvidence().report(report, 0.0)


def test_addresses_without_names_are_names() -> None:
    """Nothing is declared: a switch goes by the address that it answers with."""
    evidence = FleetEvidence()
    for source, destination, spine in (("a", "b", "1"), ("b", "a", "2")):
        edges = (EdgeName("e", destination, "e"),)
        paths = tuple(FlowPath(0, port, ("10.0.0.1", f"10.0.0.{spine}", "10.0.0.9")) for port in range(2))
        evidence.report(EvidenceReport(PROTOCOL, source, 1, 2, 90.0, 20.0, b"", False, edges, paths), 0.0)
    evidence.suspects(1.0)
    assert (evidence.flows, evidence.paths) == (4, 4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("switches: {s1: [10.0.0.300]}", "is no IP address"),
        ("switches: {s1: [10.0.0.1], s2: [10.0.0.1]}", "belongs to two switches"),
    ],
)
def test_topology_with_wrong_addresses(tmp_path, text: str, says: str) -> None:
    """Is refused, with the address in question."""
    path = tmp_path / "topology.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_config(path, Topology)


def play_known(evidence: FleetEvidence, loses, seconds: int):
    """As `play`, but the edges are known already and stay, paths included."""
    return play(evidence, loses, seconds, start=1, edges_known=True)


@pytest.mark.parametrize(
    ("old", "new"), [(0.6, 0.05), (0.05, 0.05), (0.05, 0.2), (0.2, 0.6), (0.02, 0.02), (0.015, 0.01)]
)
def test_a_repaired_link_is_not_named_with_another(old: float, new: float) -> None:
    """A link has lost packets for some seconds; ten seconds later another one does that some of its flows cross: only
    that is named then, whichever of them lost more.
    """
    evidence = FleetEvidence(LEAF, SWITCHES)
    for host in HOSTS:
        paths = paths_of(host, odd=False)
        first = EvidenceReport(PROTOCOL, host, 1, PORTS, 90.0, 20.0, b"", False, EDGES[host], paths)
        evidence.report(first, 0.0)
    dice = random.Random(round(100 * (old + 10 * new)))
    names: list[set[tuple[str, str]]] = []
    for second in range(1, 28):

        def loses(far: str, near: str, port: int, second: int = second) -> float:
            sent = 90 if port == 0 else 20
            if LEAF[far] == LEAF[near] or spine_of(far, near, port) != 0:
                return 0.0
            share = old if second <= 5 and LEAF[far] == "leaf0-r0" else 0.0
            share = new if second > 15 and LEAF[near] == "leaf2-r0" else share
            return sum(dice.random() < share for _ in range(sent)) / sent

        names.append({(s.component, s.peer) for s in play(evidence, loses, 1, second, edges_known=True)})
    assert names[4] == {("leaf0-r0", "spine0")}
    assert set().union(*names[15:]) == {("spine0", "leaf2-r0")}
    assert names[-1] == {("spine0", "leaf2-r0")}
