"""What an answer costs grows as the job does. Instructions of the interpreter are counted, which no load changes."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from tests.fixtures.why.facts import RAILS, healthy, slow, with_flows

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.causes import lane_imbalance
from fabricpulse.why.facts import Clock, Facts, Flow, Nic, NicId, Process, Rank, Wait
from fabricpulse.why.infer import infer

SMALL, LARGE = 24, 96
# Of four times as many hosts; 16 where each of them is compared with each.
MOST = 4.2


def instructions(work: Callable[[], object]) -> int:
    """Executed by the interpreter, in Python code alone."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def hosts(count: int) -> tuple[str, ...]:
    return tuple(f"h{number:04d}" for number in range(count))


def uneven_rail(facts: Facts) -> Facts:
    """On every host one NIC carries little."""
    return with_flows(facts, lambda f: f.source.device == RAILS[0], sent=2e9)


def lossy(facts: Facts) -> Facts:
    """Every NIC loses packets, and each flow waits."""
    nics = tuple(replace(n, loss_in=0.05, lossy_edges=4.0, edges=8) for n in facts.nics)
    waits = with_flows(facts, lambda _: True, delay_s=4e-4, floor_s=3e-4, sent=1e9)
    return replace(waits, nics=nics)


def longer_ways(facts: Facts) -> Facts:
    """The quickest chunks of every second flow are slow, and no probes go there."""
    return with_flows(
        facts,
        lambda f: f.source.device == RAILS[0],
        delay_s=9e-4,
        delay_before_s=2e-5,
        floor_s=8e-4,
        probe_s=None,
    )


def plugin_gone(facts: Facts) -> Facts:
    """From every second host nothing is sent."""
    return replace(facts, flows=tuple(f for f in facts.flows if int(f.source.host[1:]) % 2))


def lost_clocks(facts: Facts) -> Facts:
    return replace(facts, clocks=tuple(Clock(h.name, False, 1e-2, 3, True) for h in facts.hosts))


def _stands(facts: Facts, waits: list[Wait]) -> Facts:
    return replace(facts, ranks=tuple(replace(r, rate=0) for r in facts.ranks), waits=tuple(waits))


def pairs_hang(facts: Facts) -> Facts:
    """Every second rank waits for its neighbour, which waits for nobody."""
    names = [h.name for h in facts.hosts]
    waits = [Wait(names[i], i, names[i + 1], i + 1, "peer_send", 60.0) for i in range(0, len(names), 2)]
    return _stands(facts, waits)


def pairs_hang_without_ranks(facts: Facts) -> Facts:
    return replace(
        (pairs := pairs_hang(facts)), waits=tuple(replace(w, rank=None, peer_rank=None) for w in pairs.waits)
    )


def all_silent(facts: Facts) -> Facts:
    """No process gives a sign of life."""
    processes = tuple(Process(r.host, r.rank, 60.0) for r in facts.ranks)
    return replace(pairs_hang(facts), processes=processes)


def many_communicators(facts: Facts) -> Facts:
    """Each host has one of its own beside that of all."""
    own = tuple(
        Rank(f"own {h.name}", number, h.name, 2, 1000, 0, 10, 0.05, 1)
        for h in facts.hosts
        for number in range(2)
    )
    stands = _stands(facts, [])
    return replace(stands, ranks=(*stands.ranks, *own))


CHANGES = (
    *(slow, uneven_rail, lossy, longer_ways, plugin_gone, lost_clocks),
    *(pairs_hang, pairs_hang_without_ranks, all_silent, many_communicators),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_an_answer_costs_in_proportion_to_the_job(change: Callable[[Facts], Facts]) -> None:
    """Whatever is wrong with all of it."""
    small, large = (change(slow(healthy(hosts(count)))) for count in (SMALL, LARGE))
    costs = instructions(lambda: infer(small)), instructions(lambda: infer(large))
    assert costs[1] < MOST * costs[0], costs


def all_wait(count: int) -> Facts:
    """An all-to-all on four rails, of which every flow waits in a queue and every NIC loses packets."""
    rails = ("rail0", "rail1", "rail2", "rail3")
    flows = tuple(
        Flow(
            *(NicId(a, rail), NicId(b, rail), 1e8, 1e8, 400e-6, 20e-6, 100e-6, 300e-6),
            marked=900.0,
            retransmits=9.0,
        )
        for a in hosts(count)
        for b in hosts(count)
        for rail in rails
        if a != b
    )
    nics = tuple(
        Nic(NicId(h, rail), rail, connected=True, loss_in=0.02, drops=20.0, edges=3)
        for h in hosts(count)
        for rail in rails
    )
    return replace(healthy(hosts(count)), flows=flows, nics=nics)


def test_an_all_to_all_costs_in_proportion_to_its_flows() -> None:
    """And not to their square."""
    small, large = all_wait(6), all_wait(16)
    costs = instructions(lambda: infer(small)), instructions(lambda: infer(large))
    assert costs[1] / costs[0] < 1.05 * len(large.flows) / len(small.flows), costs


def test_shares_of_all_flows_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several causes need them: what is sent and what arrives, now and before."""
    asked: list[tuple[bool, bool]] = []
    compute = lane_imbalance._shares

    def counted(
        a: Analysis, flows: Iterable[Flow], arriving: bool, before: bool
    ) -> dict[str, dict[str, float]]:
        if flows is a.facts.flows:
            asked.append((arriving, before))
        return compute(a, flows, arriving, before)

    monkeypatch.setattr(lane_imbalance, "_shares", counted)
    infer(uneven_rail(slow(healthy(hosts(SMALL)))))
    assert len(asked) == len(set(asked)) > 1


def test_no_more_is_shown_than_anybody_reads() -> None:
    answer = infer(lossy(slow(healthy(hosts(200)))))
    assert len(answer.causes) == 300
    assert "100 more findings" in answer.unknown[-1]
