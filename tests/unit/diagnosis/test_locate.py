"""Which component explains the losses: known fabrics, known faults."""

import numpy as np
import pytest
from tests.bench.map.fabric import Clos, Simulation

from fabricpulse.diagnosis.flows.components import Kind, code, parts
from fabricpulse.diagnosis.flows.flow_table import FlowTable, totals
from fabricpulse.diagnosis.search.locate import _levels, locate
from fabricpulse.diagnosis.search.losses import Parameters
from fabricpulse.diagnosis.search.unseen import NOTHING_UNSEEN, Unseen

SMALL = Clos(hosts=96, leaves=12, pods=3, spines=4, cores=2)
WINDOW_S = 30.0


@pytest.fixture(scope="module")
def fabric() -> Simulation:
    """96 hosts below 12 leaves in 3 pods; every switch answers."""
    return Simulation(SMALL, silent=0.0, seed=3)


def found(fabric: Simulation, faults: dict[int, float], background: float = 1e-5) -> set[int]:
    observed = fabric.lose(faults, WINDOW_S, background)
    return {f.component for f in locate(fabric.seen, totals(fabric.seen), *observed, WINDOW_S).findings}


@pytest.mark.parametrize("kind", [Kind.NIC, Kind.NIC_TX, Kind.NIC_RX, Kind.SWITCH, Kind.LINK])
@pytest.mark.parametrize("loss", [0.01, 0.2, 1.0])
def test_one_fault_of_each_kind(fabric: Simulation, kind: Kind, loss: float) -> None:
    """Exactly the component that loses is named, whatever share of its packets it loses."""
    fault = 0
    while not fault or parts(fault)[0] != kind:
        fault = fabric.fault()

    assert found(fabric, {fault: loss}) == {fault}


def test_several_at_once(fabric: Simulation) -> None:
    """Two links, a NIC and one direction of another, of different loss: four names."""
    wanted: dict[int, float] = {}
    for kind, loss in ((Kind.LINK, 0.05), (Kind.LINK, 0.01), (Kind.NIC, 0.03), (Kind.NIC_TX, 0.5)):
        fault = 0
        while not fault or parts(fault)[0] != kind or fault in wanted:
            fault = fabric.fault()
        wanted[fault] = loss

    assert found(fabric, wanted) == set(wanted)


def test_two_links_of_a_switch_are_no_switch(fabric: Simulation) -> None:
    """A switch explains both with one name; the links explain why its other links are well."""
    hops = fabric.table.hops_of(slice(None))
    links = sorted({(int(a), int(b)) for a, b in hops[:, :2] if b >= 0})
    switch = links[0][1]
    two = [code(Kind.LINK, a, b) for a, b in links if b == switch][:2]

    assert found(fabric, dict.fromkeys(two, 0.03)) == set(two)


def test_healthy_fabric_has_no_finding(fabric: Simulation) -> None:
    """Random loss at and below the background that is assumed names nothing, fifty windows long."""
    for number in range(50):
        assert found(fabric, {}, (1e-5, 2e-5)[number % 2]) == set()


def test_one_pair_is_nobody_elses_fault(fabric: Simulation) -> None:
    """All source ports of one pair dead: the pair is named, no link that its packets cross."""
    table = fabric.table
    flows = np.arange(table.first[1])
    lost = table.rate_of(flows).astype(np.float64) * WINDOW_S
    diagnosis = locate(table, totals(table), flows, lost, lost, WINDOW_S)

    pair = code(Kind.PAIR, int(table.source[0]), int(table.destination[0]))
    assert [finding.component for finding in diagnosis.findings] == [pair]
    assert diagnosis.unexplained == ()


def test_alternatives_that_cross_the_same_flows() -> None:
    """Where every flow of a link also is all that its switch has, both are named; the first alone would be a guess."""
    # Ten pairs; all of them cross switch 100 and then 101, nothing else does.
    source = np.arange(10, dtype=np.int32)
    destination = np.arange(10, 20, dtype=np.int32)
    hops = np.tile(np.array([0, 1], np.int16), (10, 1))
    rate, first = np.full(10, 100, np.float32), np.arange(11)
    table = FlowTable(source, destination, np.full(100, -1, np.int32), rate, rate, first, hops, 100)
    diagnosis = locate(table, totals(table), np.arange(10), np.full(10, 50.0), np.full(10, 3000.0), WINDOW_S)

    (finding,) = diagnosis.findings
    same = {code(Kind.SWITCH, 100), code(Kind.SWITCH, 101), code(Kind.LINK, 100, 101)}
    assert {finding.component, *finding.alternatives} == same
    assert finding.confidence == pytest.approx(1 / 3, abs=0.01)


def test_a_name_that_was_given_makes_nothing_surer() -> None:
    """A link that was named a moment ago and another one lose the same flows: the first keeps the name, and is no more
    certain for it. It was, as what is known is a prior of the search.
    """
    source, destination = np.arange(10, dtype=np.int32), np.arange(10, 20, dtype=np.int32)
    hops = np.tile(np.array([0, 1, 2, 3], np.int16), (10, 1))
    rate, first = np.full(10, 100, np.float32), np.arange(11)
    table = FlowTable(source, destination, np.full(100, -1, np.int32), rate, rate, first, hops, 100)
    links = [code(Kind.LINK, a, a + 1) for a in (100, 101, 102)]
    for named in links:
        observed = np.arange(10), np.full(10, 50.0), np.full(10, 3000.0), WINDOW_S
        (finding,) = locate(table, totals(table), *observed, known=[named]).findings
        assert finding.component == named
        assert {*links} <= {named, *finding.alternatives}
        assert finding.confidence < 0.5


def test_slow_flows(fabric: Simulation) -> None:
    """Without counts, flows that are slow name the link that all of them cross."""
    fault = 0
    while not fault or parts(fault)[0] != Kind.LINK:
        fault = fabric.fault()
    flows = fabric.crossing(fault)
    suffering = np.ones(len(flows))
    diagnosis = locate(fabric.table, totals(fabric.table), flows, suffering, suffering, None)

    assert [finding.component for finding in diagnosis.findings] == [fault]


def test_what_nobody_would_have_missed_is_no_sign_of_health() -> None:
    """Below a switch two NICs of three lose all. The third one is away: it is the switch. Were it well, two NICs."""
    source = np.repeat(np.arange(3, dtype=np.int32), 10)
    destination = np.arange(10, 40, dtype=np.int32)
    hops = np.column_stack([np.zeros(30, np.int16), np.arange(1, 31, dtype=np.int16)])
    rate, first = np.full(30, 100, np.float32), np.arange(31)
    table = FlowTable(source, destination, np.full(200, -1, np.int32), rate, rate, first, hops, 100)
    lost = np.full(20, 3000.0)
    away = Unseen(np.arange(20, 30), np.full(10, 3000.0))

    def found(unseen: Unseen) -> set[int]:
        located = locate(table, totals(table), np.arange(20), lost, lost, WINDOW_S, unseen=unseen)
        return {finding.component for finding in located.findings}

    assert found(NOTHING_UNSEEN) == {code(Kind.NIC, 0), code(Kind.NIC, 1)}
    assert found(away) == {code(Kind.SWITCH, 100)}


def test_silent_switch_is_named_by_its_neighbours() -> None:
    """Of a link to a switch that does not answer the best finding, or what it cannot be distinguished from, has the end
    that answers, and a number for the other.
    """
    fabric = Simulation(SMALL, silent=0.3, seed=5)
    tried = 0
    while tried < 5:
        fault = fabric.fault()
        kind, near, far = parts(fault)
        if kind != Kind.LINK or fabric.quiet[near] or not fabric.quiet[far]:
            continue
        tried += 1
        observed = fabric.lose({fault: 0.1}, WINDOW_S, 1e-5)
        best = locate(fabric.seen, totals(fabric.seen), *observed, WINDOW_S).findings[0]

        assert {best.component, *best.alternatives} & fabric.names(fault)


def test_levels_stand_for_the_losses_of_all_rows() -> None:
    """Thousands of different losses become some hundred levels, each within 1 % of what it stands for, and the mean
    of the packets is kept."""
    random = np.random.default_rng(4)
    p = Parameters()
    loss = np.exp(random.uniform(np.log(p.background), 0, 20_000))
    lost = random.integers(1, 90, len(loss)).astype(float)
    levels, level = _levels(loss, lost, p)
    assert len(levels) < 1000
    assert np.abs(levels[level] / loss - 1).max() < 0.016
    assert np.isclose((levels[level] * lost).sum(), (loss * lost).sum())
