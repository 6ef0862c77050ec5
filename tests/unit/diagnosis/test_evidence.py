"""The rows and columns that the search works on are what a plain count gives, and its short cuts change no answer."""

from collections import defaultdict

import numpy as np
import pytest
from tests.bench.map.fabric import Clos, Simulation

from fabricpulse.diagnosis.flows.components import LOG_PRIOR, Kind, code, codes, nodes, parts
from fabricpulse.diagnosis.flows.flow_table import Floats, Flows, FlowTable, Totals, totals
from fabricpulse.diagnosis.search import locate as search
from fabricpulse.diagnosis.search.locate import Diagnosis, locate
from fabricpulse.diagnosis.search.losses import Evidence, Parameters, evidence_of

WINDOW_S = 30.0
P = Parameters()
Observed = tuple[Flows, Floats, Floats]


@pytest.fixture(scope="module")
def fabric() -> Simulation:
    """96 hosts below 12 leaves; a fifth of the switches above them is silent, and hosts have two NICs."""
    simulation = Simulation(Clos(hosts=96, leaves=12, pods=3, spines=4, cores=2), silent=0.2, seed=11)
    hosts = simulation.seen.host_of
    hosts[:] = 96 + 12 + np.arange(96) // 2
    return simulation


def windows(fabric: Simulation, count: int) -> list[Observed]:
    """What some faults at once do, of any size."""
    return [
        fabric.lose(
            {fabric.fault(): 10 ** fabric.random.uniform(-3, 0) for _ in range(1 + number % 5)},
            WINDOW_S,
            1e-5,
        )
        for number in range(count)
    ]


def plain(
    table: FlowTable, summed: Totals, observed: Observed, window_s: float | None
) -> dict[int, tuple[float, float, list[int]]]:
    """Loss, packets and flows of every component, one by one."""
    flows, lost, sent = observed
    crossing = defaultdict(set)
    pairs = codes(Kind.PAIR, *table.ends_of(flows))
    singles = np.int64(code(Kind.FLOW, 0)) + flows
    for column in (*table.shared(flows), pairs, singles):
        for row in np.flatnonzero(column >= 0).tolist():
            crossing[int(column[row])].add(row)
    found = {}
    for component, rows in crossing.items():
        at = sorted(rows)
        (rate,), (count,) = summed.of(np.array([component]))
        kind = parts(component)[0]
        if kind == Kind.PAIR:
            own = np.flatnonzero(table.edge_of(np.arange(len(table))) == table.edge_of(flows[at[:1]]))
            rate, count = table.rate_of(own).sum(), len(own)
        elif kind == Kind.FLOW:
            rate, count = table.rate_of(flows[at[:1]])[0], 1.0
        hit = lost[at].sum()
        packets = count
        if window_s is not None:
            packets = rate * window_s + (sent[at] - table.rate_of(flows[at]) * window_s).sum()
        found[component] = hit, max(packets, hit), flows[at].tolist()
    return found


@pytest.mark.parametrize("window_s", [WINDOW_S, None])
def test_evidence_is_that_of_a_plain_count(fabric: Simulation, window_s: float | None) -> None:
    """Each component that can be faulty has its losses, its packets and its flows; none that could be is left out."""
    table, summed = fabric.seen, totals(fabric.seen)
    for played in windows(fabric, 4):
        ones = np.ones(len(played[0]))
        observed = played if window_s is not None else (played[0], ones, ones)
        evidence = evidence_of(table, summed, *observed, window_s, P)
        assert evidence.components.tolist() == sorted(set(evidence.components.tolist()))
        wanted = plain(table, summed, observed, window_s)
        for number, component in enumerate(evidence.components.tolist()):
            hit, packets, crossing = wanted[component]
            assert evidence.hit[number] == hit
            assert evidence.packets[number] == pytest.approx(packets)
            assert evidence.flows[evidence.rows(number)].tolist() == crossing
        assert set(evidence.components.tolist()) == {c for c in wanted if explains(table, c, wanted[c])}
        assert (evidence.lost > 0).all()


def explains(table: FlowTable, component: int, of: tuple[float, float, list[int]]) -> bool:
    """Whether it is worth its prior probability, by the formula of binomial losses."""
    hit, packets, _ = of
    share = min(hit / packets, 1 - 1e-9)
    if share <= P.background:
        return False
    gain = hit * np.log(share / P.background) + (packets - hit) * np.log((1 - share) / (1 - P.background))
    kind = parts(component)[0]
    several = {table.first_unnamed + number for number, may_be in enumerate(table.may_be) if may_be}
    a, b = nodes(np.array([component]))
    one_of_several = kind in (Kind.SWITCH, Kind.LINK) and bool(several & {int(a[0]), int(b[0])})
    return bool(gain / P.dispersion + LOG_PRIOR[kind] > P.threshold) and not one_of_several


def test_hopeless_trials_may_be_given_up(fabric: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice that is taken back for a trial: to give up what could not be better anyway changes no answer."""
    table, summed = fabric.seen, totals(fabric.seen)
    played = windows(fabric, 5)
    short = [locate(table, summed, *observed, WINDOW_S) for observed in played]
    gives_up = search._greedy
    given_up = []

    def patient(evidence: Evidence, chosen, close, most, p, target=-np.inf):
        full = gives_up(evidence, chosen, close, most, p)
        given_up.append(full.components != gives_up(evidence, chosen, close, most, p, target).components)
        return full

    monkeypatch.setattr(search, "_greedy", patient)

    def reported(diagnosis: Diagnosis) -> list[tuple[int, float]]:
        return [(finding.component, round(finding.share, 9)) for finding in diagnosis.findings]

    assert [reported(locate(table, summed, *observed, WINDOW_S)) for observed in played] == [
        *map(reported, short)
    ]
    assert any(given_up)
