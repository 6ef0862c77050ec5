"""Both directions at once beside each alone."""

import itertools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.audit.paths import nics

from fabricpulse.audit.fleet.duplex import recalled, sound
from fabricpulse.audit.model import Measurement
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.duplex import BothWays, Ends, alone, evaluate_both
from fabricpulse.audit.pair_tests.pairing import plan_rounds
from fabricpulse.audit.pair_tests.path_tests import PathDirection, PathDirections, Rail, path_findings

RATE = 10e9


def singles(fleet: list[Nic]) -> dict[Ends, float]:
    return dict.fromkeys(itertools.permutations(fleet, 2), RATE)


def both(a: Nic, b: Nic, ratio: float, attempts: int = 1) -> BothWays:
    bps = ratio * 2 * RATE
    return BothWays(PathDirection(a, b, "10.0.0.2", 9000, "rail0", "10.0.0.1"), bps, bps, attempts)


def reported(done: list[BothWays], rates: dict[Ends, float]) -> set[tuple[str, str, str, str]]:
    measured, _ = evaluate_both(done, rates)
    return {(f.check, f.evidence["blame"], f.host, f.subject) for f in path_findings(measured)}


@settings(deadline=None, max_examples=50)
@given(st.integers(4, 8), st.data())
def test_who_shares_is_named_and_nobody_else(hosts: int, data: st.DataObject) -> None:
    """One NIC of a fleet at half, and all at a share that one processor core explains: only the NIC is named."""
    fleet = nics(hosts)
    bad = data.draw(st.sampled_from([None, *fleet]))
    usual = data.draw(st.sampled_from([1.0, 0.6]))
    noise = data.draw(st.randoms())
    done = [
        both(a, b, usual * noise.uniform(0.93, 1.0) * (0.5 if bad in (a, b) else 1))
        for a, b in itertools.combinations(fleet, 2)
    ]
    named = {("path-duplex", "nic", *bad)} if bad else set()
    assert reported(done, singles(fleet)) == named


def test_what_each_carries_at_another_time_is_no_pass() -> None:
    """Beside other load the directions of a NIC that runs half duplex were held up by turns, and each looked whole in
    the rest of the time: two of its three pairs failed, the third passed, and its paths were named. That pair is not
    judged, so that the NIC is named.
    """
    fleet = nics(4)
    bad, busy = fleet[1], fleet[2]
    done = [both(a, b, 0.5 if bad in (a, b) else 1.0) for a, b in itertools.combinations(fleet, 2)]
    by_turns = [
        replace(one, bps=2 * RATE, unhindered=2 * RATE)
        if {one.way.source, one.way.target} == {bad, busy}
        else one
        for one in done
    ]
    measured, notes = evaluate_both(by_turns, singles(fleet))
    assert {m.ok for m in measured if {m.source_host, m.target_host} == {bad[0], busy[0]}} == {None}
    assert any("a host was too busy: h1 and h2" in note for note in notes)
    assert reported(by_turns, singles(fleet)) == {("path-duplex", "nic", *bad)}


def test_a_way_that_was_spoilt_alone_is_no_measure() -> None:
    """What is half of the half that a busy host left is no pass; less than that is slow all the same."""
    fleet = nics(4)
    bad, busy = fleet[1], fleet[2]
    rates = singles(fleet)
    for way in ((bad, busy), (busy, bad)):
        rates[way] = RATE / 2
    done = [both(a, b, 0.5 if bad in (a, b) else 1.0) for a, b in itertools.combinations(fleet, 2)]
    measured, _ = evaluate_both(done, rates, {(bad, busy)})
    assert {f.evidence["blame"] for f in path_findings(measured)} == {"nic"}
    worse = [
        replace(one, bps=one.bps / 2, reached=one.reached / 2) if one.way.source == bad else one
        for one in done
    ]
    measured, _ = evaluate_both(worse, rates, {(bad, busy)})
    assert {m.ok for m in measured if {m.source_host, m.target_host} == {bad[0], busy[0]}} == {False}


def test_too_few_pairs_decide_nothing() -> None:
    """One pair at half: the hosts may be what is slow."""
    a, b = nics(2)
    measured, notes = evaluate_both([both(a, b, 0.5)], singles([a, b]))
    assert [m.ok for m in measured] == [None, None]
    assert "too few pairs" in notes[0]


def test_without_both_single_directions_nothing_is_said() -> None:
    """A ratio needs what it is a ratio to."""
    a, b = nics(2)
    assert evaluate_both([both(a, b, 0.5)], {(a, b): RATE}) == ([], [])


def test_the_better_of_two_tests_counts_and_is_recalled() -> None:
    """Slow once is chance; an interrupted run has the same ratio and the same attempts afterwards."""
    fleet = nics(4)
    rates = singles(fleet)
    done = [both(a, b, 1.0) for a, b in itertools.combinations(fleet, 2)]
    done.append(both(fleet[1], fleet[0], 0.4))
    measured, _ = evaluate_both(done, rates)
    assert {m.ok for m in measured} == {True}
    rail = Rail(tuple((nic, f"10.0.0.{i}") for i, nic in enumerate(fleet)), plan_rounds([""] * 4))
    assert evaluate_both(recalled(measured, rates, PathDirections({"rail0": rail}, [])), rates)[0] == measured
    assert {m.attempts for m in measured} == {1, 2}


def test_alone_takes_bandwidth_only() -> None:
    """Other kinds have other units."""
    kinds = ("loss", "bandwidth", "duplex")
    measured = [Measurement(kind, "r", "a", "e", "b", "e", 7.0, True) for kind in kinds]  # type: ignore[arg-type]
    assert alone(measured) == {(("a", "e"), ("b", "e")): 7.0}


def test_a_pair_that_fails_in_one_direction_is_not_sound() -> None:
    """Neither of its directions is compared with both at once; others are."""
    good = [
        Measurement("bandwidth", "r", a, "e", b, "e", 7.0, True) for a, b in itertools.permutations("xyz", 2)
    ]
    lossy = Measurement("loss", "r", "x", "e", "y", "e", 0.1, False)
    kept = {(a[0], b[0]) for a, b in sound([*good, lossy])}
    assert kept == {("x", "z"), ("z", "x"), ("y", "z"), ("z", "y")}
