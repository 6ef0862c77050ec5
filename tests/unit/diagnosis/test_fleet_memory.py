"""What the evidence of a fleet takes: 50,000 hosts tell four million paths."""

import tracemalloc

import msgspec
import numpy as np
import pytest
from tests.unit.diagnosis.test_fleet_evidence import EDGES, HOSTS, LEAF, PORTS, play

from fabricpulse.diagnosis.daemon.worker import Moments
from fabricpulse.diagnosis.evidence import fleet_evidence
from fabricpulse.diagnosis.evidence.fleet_evidence import FleetEvidence
from fabricpulse.diagnosis.flows import layout
from fabricpulse.diagnosis.tree.coverage import LEAST_SLOTS
from fabricpulse.diagnosis.tree.learner import TreeLearner
from fabricpulse.diagnosis.tree.minima import SLOTS, TwoWayMinima
from fabricpulse.diagnosis.wire.delay_records import unpack_delays
from fabricpulse.diagnosis.wire.messages import (
    PROTOCOL,
    EdgeName,
    EvidenceReport,
    FlowEvidence,
    FlowPath,
    HostFacts,
    LeastDelay,
    pack_delays,
    pack_flows,
)

STEPS = (1, -1, 7, -7, 31, -31, 101, -101, 131, -131)
HOPS = 5


def report(host: int, hosts: int) -> EvidenceReport:
    """All that one of them has to tell: edges, and paths of five switches each."""
    peers = [(host + step) % hosts for step in STEPS]
    return EvidenceReport(
        *(PROTOCOL, f"host-{host:05}", 1, 8, 135.0, 2.14, b"", False),
        tuple(EdgeName("eth1", f"host-{peer:05}", "eth1") for peer in peers),
        tuple(
            FlowPath(
                edge,
                port,
                (
                    f"10.0.0.{host % 16}",
                    f"10.1.{port}.{host % 16}",
                    f"10.2.{port}.{edge}",
                    f"10.3.{port}.{peer % 16}",
                    f"10.4.{port}.{peer % 16}",
                ),
            )
            for edge, peer in enumerate(peers)
            for port in range(8)
        ),
    )


@pytest.mark.thorough
def test_a_path_takes_few_bytes() -> None:
    """Reported: two bytes a hop and little more; in the table of flows as much again, all else there is by edge. As
    names in tuples a path took 130 bytes.
    """
    evidence, hosts = FleetEvidence(), 300
    tracemalloc.start()
    try:
        for host in range(hosts):
            evidence.report(report(host, hosts), 0.0)
        reported = tracemalloc.get_traced_memory()[0]
        evidence.suspects(1.0)
        whole = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert evidence.paths == evidence.flows == 80 * hosts
    assert reported <= (2 * HOPS + 24) * evidence.paths
    assert whole <= (4 * HOPS + 30) * evidence.paths


def test_a_fork_gives_large_columns_back() -> None:
    """What is on their pages would be its own as soon as its parent replaces them."""
    evidence = FleetEvidence(LEAF)
    play(evidence, lossy, 5)
    assert evidence._layout is not None
    evidence.abandon()
    columns = vars(evidence._layout.table).values()
    assert all(column.size == 0 for column in columns if isinstance(column, np.ndarray))
    assert len(evidence._log) == 0


def lossy(far: str, near: str, _: int) -> float:
    """One NIC sends into the dark."""
    return float(far == "h3/r1")


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Hosts of each table of flows that is made."""
    made: list[int] = []
    laid_out = layout.laid_out

    def counted(hosts, *more):
        made.append(len(hosts))
        return laid_out(hosts, *more)

    monkeypatch.setattr(fleet_evidence, "laid_out", counted)
    return made


def test_an_exporter_that_is_restarted_costs_nothing(layouts: list[int]) -> None:
    """It has the same edges: the table stands, and what it has lost counts as before."""
    evidence = FleetEvidence(LEAF)
    (before,) = play(evidence, lossy, 25)
    assert layouts == [9]
    for host in HOSTS:
        again = EvidenceReport(PROTOCOL, host, 2, PORTS, 90.0, 20.0, b"", False, EDGES[host])
        assert not evidence.report(again, 25.0)
        assert evidence.report(EvidenceReport(PROTOCOL, host, 1, PORTS, 90.0, 20.0, b"", False), 25.1)
    (after,) = evidence.suspects(25.5)
    assert (after.component, after.flows) == (before.component, before.flows)
    assert layouts == [9]


@pytest.mark.thorough
def test_hosts_of_all_names_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts come and go under ever new names: numbers of those that are gone are used again, and mean the new ones."""
    monkeypatch.setattr("fabricpulse.diagnosis.flows.names._SPARE", 20)
    evidence = FleetEvidence(LEAF)
    (before,) = play(evidence, lossy, 25)
    for second in range(25, 425, 5):
        hops = (f"10.0.{second}.1", f"10.1.{second}.1")
        edges = (EdgeName("r1", f"strange-{second + 1}", "r1"),)
        stranger = EvidenceReport(
            *(PROTOCOL, f"strange-{second}", 1, PORTS, 90.0, 20.0, b"", False),
            edges,
            (FlowPath(0, 1, hops),),
        )
        evidence.report(stranger, float(second))
        found = play(evidence, lossy, 1, second, edges_known=True)
    assert len(evidence._names) < 250  # of 450
    (after,) = (s for s in found if s.component == before.component)
    assert (after.kind, after.sufferers, after.flows) == (before.kind, before.sufferers, before.flows)


def test_networks_of_nics_leave_no_trace() -> None:
    """A host that tells of others each time, as no exporter does."""
    evidence = FleetEvidence(LEAF)
    for second in range(50):
        facts = HostFacts((("r0", f"network-{second}"),))
        for host in HOSTS[:2]:
            again = EvidenceReport(
                PROTOCOL, host, second, PORTS, 90.0, 20.0, b"", False, EDGES[host], facts=facts
            )
            evidence.report(again, float(second))
        assert len(evidence._nics) <= 20
        assert evidence._network_of(f"{HOSTS[0]}/r0") == f"network-{second}"


def test_slow_flows_are_those_of_the_table() -> None:
    """Two hosts tell that what comes from one NIC is slow, on all ports."""
    evidence = FleetEvidence(LEAF)
    play(evidence, lambda *_: 0.0, 2)
    for second in range(2, 16):
        for host in HOSTS:
            flows = [
                FlowEvidence(number, port, True, 0, 0)
                for number, edge in enumerate(EDGES[host])
                for port in range(PORTS)
                if (edge.peer, edge.peer_device) == ("h3", "r1")
            ]
            slow = EvidenceReport(PROTOCOL, host, 1, PORTS, 90.0, 20.0, pack_flows(flows), False)
            evidence.report(slow, float(second))
        found = evidence.suspects(second + 0.5)
    assert [(s.what, s.kind, s.component) for s in found] == [("delay", "nic_tx", "h3/r1")]


@pytest.mark.thorough
def test_a_tree_takes_few_bytes() -> None:
    """What the fork that computes it adds at its peak, a NIC: each of its pages is the fork's own."""
    hosts, learner = 1200, TreeLearner(100.0, {}, share_machines=False)
    facts = HostFacts((("eth1", "rail1"),), False)
    for slot in range(LEAST_SLOTS + 1):
        for host in range(hosts):
            whole = msgspec.structs.replace(report(host, hosts), paths=(), facts=facts)
            leaf = host // 16
            delays = pack_delays(
                LeastDelay(edge, 3000, 2000 if (host + step) % hosts // 16 == leaf else 5000)
                for edge, step in enumerate(STEPS)
            )
            edges = whole.edges if slot == 0 else None
            learner.report(msgspec.structs.replace(whole, edges=edges, delays=delays), 10.0 * slot)
    now_s = 10.0 * (LEAST_SLOTS + 1)
    learner.compute(now_s)  # what is loaded once
    tracemalloc.start()
    try:
        tree, document, _ = learner.compute(now_s)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(tree.nics), len(tree.delays)) == (hosts, hosts * len(STEPS) // 2)
    assert document["hosts"] == hosts
    assert peak <= 1900 * hosts
    # In a fork the delays are given back as soon as they have been read.
    again, same, _ = learner.compute(now_s, last=True)
    assert (again.groups, again.terms_ns.tolist(), same) == (tree.groups, tree.terms_ns.tolist(), document)
    assert learner.minima._least.nbytes == learner.minima._samples.nbytes == 0


def test_moments_of_many_reports_are_few_objects() -> None:
    """One that is replaced writes to its page; hosts report at moments of their own."""
    moments = Moments()
    found = [moments.of(at_s) for at_s in (1.0, 1.004, 1.009, 1.012, 0.5, 0.505)]
    assert found == [1.0, 1.0, 1.0, 1.012, 0.5, 0.5]
    assert len({id(moment) for moment in found}) == 3


def test_a_report_of_delays_writes_to_one_slot() -> None:
    """A page that its parent writes to is no longer shared with the fork that computes the tree."""
    minima = TwoWayMinima(100.0)
    for host, peer in (("a", "b"), ("b", "a")):
        minima.edges(host, (EdgeName("eth1", peer, "eth1"),), None, 0.0)
    before: dict[int, np.ndarray] = {}
    for now_s in (1.0, 11.0, 21.0):
        minima.add_delays("a", unpack_delays(pack_delays([LeastDelay(0, 3000, 5000)]), 1), now_s)
        after = {
            n: page.copy()
            for n, page in enumerate(np.split(np.frombuffer(minima._least.tobytes(), np.int32), SLOTS))
        }
        assert before == {} or sum((before[n] != after[n]).any() for n in after) == 1
        before = after
