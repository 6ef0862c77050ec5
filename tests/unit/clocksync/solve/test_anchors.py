"""Anchors that are wrong: UTC is where most of them say, and bounds hold as long as most are right."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.clocksync.election import undisputed
from tests.unit.clocksync.solve.test_graph_solve import PARAMETERS, fleet, unknown

from fabricpulse.clocksync.solve.anchors import intersection, weighted_median
from fabricpulse.clocksync.solve.graph_solve import Edges, solve

_HOSTS = 16
_ASYMMETRY_NS = 1_900


def test_what_more_than_half_of_the_intervals_share() -> None:
    """From the first to the last such point; touching is sharing; two that are apart share nothing."""
    low, high = np.array([0.0, 1.0, 10.0]), np.array([2.0, 3.0, 11.0])
    assert intersection(low, high) == (1.0, 2.0)
    assert intersection(low[:2], high[:2]) == (1.0, 2.0)
    assert intersection(low[1:], high[1:]) is None
    assert intersection(np.array([0.0, 2.0]), np.array([2.0, 3.0])) == (2.0, 2.0)
    assert intersection(np.array([-1.0, 0.9, -3.0]), np.array([1.0, 3.0, -0.9])) == (-1.0, 1.0)
    assert intersection(low[:1], high[:1]) == (0.0, 2.0)


def test_a_weighted_median_is_where_half_of_the_weight_is() -> None:
    """One that weighs more than all others wins."""
    assert weighted_median(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0])) == 2.0
    assert weighted_median(np.array([3.0, 1.0, 2.0]), np.array([5.0, 1.0, 1.0])) == 3.0


def anchored(
    seed: int, right: int, wrong: int
) -> tuple[np.ndarray, int, dict[int, tuple[float, float]], set[int], Edges]:
    """A fleet with anchors, some wrong, on edges that hide asymmetries: clocks, UTC, anchors, the wrong ones, edges."""
    rng, clock, _, edges = fleet(seed, _HOSTS, 4)
    edges.offset_ns[:] += rng.integers(-_ASYMMETRY_NS, _ASYMMETRY_NS + 1, len(edges.i))
    utc = int(rng.integers(-(10**9), 10**9))
    anchors: dict[int, tuple[float, float]] = {}
    hosts = rng.permutation(_HOSTS)[: right + wrong].tolist()
    for number, host in enumerate(hosts):
        bound = float(10 ** rng.uniform(2, 7))
        error = rng.uniform(-bound, bound)
        if number >= right:
            error = rng.choice([-1, 1]) * bound * 10 ** rng.uniform(0.01, 4)
        anchors[host] = (float(utc - clock[host] + error), bound)
    return clock, utc, anchors, set(hosts[right:]), edges


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), right=st.integers(1, 7), wrong=st.integers(0, 6))
def test_bounds_hold_when_most_anchors_are_right(seed: int, right: int, wrong: int) -> None:
    """However sure of themselves the wrong ones are, and whether or not it shows; no right one is called wrong."""
    wrong = min(wrong, right - 1)
    clock, utc, anchors, faulty, edges = anchored(seed, right, wrong)
    solution = solve(unknown(_HOSTS, anchors), edges, undisputed(_HOSTS), PARAMETERS)
    assert (np.abs(solution.correction_ns + clock - utc) <= solution.bound_ns + 4).all()
    assert set(np.flatnonzero(solution.falsetickers).tolist()) <= faulty
    assert not solution.disputed.any()


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 6))
def test_bounds_tell_of_all_anchors_when_no_majority_agrees(seed: int, count: int) -> None:
    """Each says something else: every bound covers what each of them claims, and each is named."""
    clock, utc, anchors, _, edges = anchored(seed, count, 0)
    for number, host in enumerate(anchors):
        anchors[host] = (float(utc - clock[host] + number * 100_000_000), anchors[host][1])
    solution = solve(unknown(_HOSTS, anchors), edges, undisputed(_HOSTS), PARAMETERS)
    assert set(np.flatnonzero(solution.disputed).tolist()) == set(anchors)
    assert not solution.falsetickers.any()
    for host, (claimed, bound) in anchors.items():
        says = claimed + clock[host]
        error = np.abs(solution.correction_ns + clock - says)
        assert (error + bound <= solution.bound_ns + 4 + 2 * _ASYMMETRY_NS * _HOSTS).all()
        # The truth, if this one is right.
        assert (np.abs(solution.correction_ns + clock - says) <= solution.bound_ns + 4).all()


def test_a_wrong_anchor_that_is_surest_of_itself_is_outvoted() -> None:
    """Two that may be off by 1 ms, against one 10 ms away within 1 us: it moves nobody, and is named."""
    _, clock, _, edges = fleet(9, 20, 4)
    anchors = {k: (float(-clock[k]), 1e6) for k in (2, 11)} | {5: (float(10_000_000 - clock[5]), 1e3)}
    solution = solve(unknown(20, anchors), edges, undisputed(20), PARAMETERS)
    assert np.abs(solution.correction_ns + clock).max() <= 4
    assert np.flatnonzero(solution.falsetickers).tolist() == [5]
    # Of the two that are left both must be right, or there were no majority.
    assert solution.bound_ns.max() < 1.05e6
