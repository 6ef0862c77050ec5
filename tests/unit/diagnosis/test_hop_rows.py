"""Paths as rows of small numbers: what they say is the same when the numbers become too large for them."""

import numpy as np
import pytest
from tests.unit.diagnosis.test_silent_hops import FREE, without

from fabricpulse.diagnosis.evidence.fleet_evidence import FleetEvidence
from fabricpulse.diagnosis.flows import hop_rows
from fabricpulse.diagnosis.flows.components import NO_HOP
from fabricpulse.diagnosis.flows.known_paths import KnownPaths
from fabricpulse.diagnosis.flows.silent_hops import named
from fabricpulse.diagnosis.wire.messages import (
    PROTOCOL,
    EdgeName,
    EvidenceReport,
    FlowEvidence,
    FlowPath,
    pack_flows,
)

HOSTS = 60


def test_a_large_number_makes_room_for_itself() -> None:
    """Paths that were reported before keep their switches, also where the host then gets other peers."""
    paths = KnownPaths()
    paths.update([0, 2], [(7, 32_767), (1,)], 3)
    assert paths.hops.dtype == np.int16
    assert paths.update([1], [(40_000, 2, 3)], 3)
    wanted = [[7, 32_767, NO_HOP], [40_000, 2, 3], [1, NO_HOP, NO_HOP]]
    assert paths.hops.tolist() == wanted
    moved = paths.moved(np.array([2, 0, 1]), 3)
    assert moved.hops.tolist() == [wanted[1], wanted[2], wanted[0]]


def test_hosts_that_have_reported_all_paths_share_their_state() -> None:
    """A fleet has fifty thousand of them. What one of them reports later is its own."""
    one, other = KnownPaths(), KnownPaths()
    for paths in (one, other):
        paths.update([0, 1, 2], [(7,), (8,), (9,)], 3)
    assert one._state is other._state
    one.begin_anew()
    one.update([1], [(5,)], 3)
    assert (one.reported, other.reported) == (1, 3)
    assert one.forget_before()
    assert one.hops.tolist() == [[NO_HOP], [5], [NO_HOP]]
    other.update([2], [(6,)], 4)
    assert other.reported == 3
    assert not other.forget_before()
    assert other.hops.tolist() == [[7], [8], [6], [NO_HOP]]


def test_silent_switches_may_be_more_than_small_numbers() -> None:
    """Their numbers come after those of all others."""
    last = np.iinfo(np.int16).max
    hops = without(10, 13, 14)
    planes = np.zeros(len(hops), np.uint8)
    rows, switches = named(hops.copy(), FREE, planes)
    small, same = named(hops.astype(np.int16), last, planes)
    assert len(same) == len(switches)
    assert small.max() == last + len(same) - 1
    assert (np.where(small >= last, small - last + FREE, small) == rows).all()


@pytest.mark.parametrize("small", [np.int8, np.int16])
def test_a_fleet_of_more_switches_than_small_numbers(small: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host has a leaf of its own, half of the hosts trace half of their ports: a spine that loses is named."""
    monkeypatch.setattr(hop_rows, "_SMALL", small)
    monkeypatch.setattr("fabricpulse.diagnosis.flows.known_paths._NO_ROWS", np.zeros((0, 0), small))
    evidence = FleetEvidence()
    for second in range(8):
        for number in range(HOSTS):
            evidence.report(report(number, second), float(second))
        found = evidence.suspects(second + 0.5)
    assert len(evidence._switches) > 3 * HOSTS
    assert [(s.kind, s.component) for s in found] == [("switch", "10.9.9.1")]


def report(host: int, second: int) -> EvidenceReport:
    """Hosts have two or four ports; every third flow crosses one spine, of which a fifth is lost."""
    peers = [(host + step) % HOSTS for step in (1, -1, 2, -2, 7, -7)]
    ports = 2 + host % 2 * 2
    edges = tuple(EdgeName("e", f"h{peer}", "e") for peer in peers)
    paths = tuple(
        FlowPath(edge, port, (f"10.0.0.{host}", spine(host, peer, port), f"10.0.1.{peer}"))
        for edge, peer in enumerate(peers)
        for port in range(ports)
    )
    lost = [
        FlowEvidence(edge, port, False, 20, 4)
        for edge, peer in enumerate(peers)
        for port in range(min(ports, 2 + peer % 2 * 2))
        if spine(peer, host, port) == "10.9.9.1"
    ]
    known = second > 0
    return EvidenceReport(
        *(PROTOCOL, f"h{host}", 1, ports, 20.0, 20.0, pack_flows(lost), False),
        None if known else edges,
        () if known else paths,
    )


def spine(source: int, destination: int, port: int) -> str:
    """Of a third of the flows it is one, of the others one of many."""
    at = source + 2 * destination + port
    return "10.9.9.1" if at % 3 == 0 else f"10.8.{at % 7}.{source}"


def test_a_path_without_hops_stops_nothing() -> None:
    """A host may tell that nothing at all answered: the others' paths are used."""
    evidence = FleetEvidence()
    edges = (EdgeName("e", "b", "e"),)
    nothing = EvidenceReport(PROTOCOL, "a", 1, 2, 90.0, 20.0, b"", False, edges, (FlowPath(0, 0, ()),))
    assert not evidence.report(nothing, 0.0)
    assert evidence.suspects(0.5) == ()
    assert evidence.flows == 2
