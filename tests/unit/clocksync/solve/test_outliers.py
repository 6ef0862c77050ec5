"""Who is named for edges that do not fit: all faulty hosts, however many, and nobody else."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.fixtures.clocksync.election import undisputed

from fabricpulse.clocksync.solve.graph_solve import Edges, SolveParameters, solve
from fabricpulse.clocksync.solve.hosts import Hosts
from fabricpulse.clocksync.solve.outliers import faulty_hosts, outlier_limits_ns, typical_size


def pairs(rng: np.random.Generator, hosts: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    """A ring, and random edges until hosts have `degree` on average."""
    found = {(k, (k + 1) % hosts) for k in range(hosts - 1)} | {(0, hosts - 1)}
    while len(found) < min(hosts * degree // 2, hosts * (hosts - 1) // 2):
        i, j = sorted(rng.integers(0, hosts, 2).tolist())
        if i != j:
            found.add((i, j))
    ends = np.array(sorted(found))
    return ends[:, 0], ends[:, 1]


@dataclass
class Judged:
    """What a fleet with faulty hosts was found to be.

    outvoted : honest hosts without a majority of edges to honest ones. safe_error_ns : of the honest hosts most of
    whose edges are to honest ones, the largest.
    """

    faulty: set[int]
    named: set[int]
    outvoted: set[int]
    safe_error_ns: float


def judge(seed: int, hosts: int, degree: int, count: int) -> Judged:
    """Stamps of up to `count` hosts of a running fleet are off by about a millisecond, on each edge by another one.

    No more than a fifth of the hosts. Faulty hosts with hardly an edge to honest ones cannot be
    separated from them, and are not among those drawn.
    """
    rng = np.random.default_rng(seed)
    i, j = pairs(rng, hosts, degree)
    faulty = rng.permutation(hosts)[: min(count, hosts // 5)]
    honest = np.ones(hosts, np.bool_)
    honest[faulty] = False
    to_honest = np.bincount(i, honest[j], hosts) + np.bincount(j, honest[i], hosts)
    faulty = faulty[to_honest[faulty] >= 5]
    offset = rng.normal(0, 20, len(i))
    for faulty_host in faulty:
        at = np.where(i == faulty_host, -1, np.where(j == faulty_host, 1, 0))
        offset += at * rng.choice([-1, 1], len(i)) * rng.uniform(0.5e6, 1.5e6, len(i))
    ones = np.ones(len(i))
    edges = Edges(
        i, j, np.rint(offset).astype(np.int64), 0 * ones, 20 * ones, 5 * ones, 600 * ones, 0 * ones, 0 * ones
    )
    nothing = np.full(hosts, np.nan)
    known = Hosts(
        np.zeros(hosts, np.int64),
        np.zeros(hosts),
        np.ones(hosts, np.bool_),
        np.full(hosts, 700.0),
        nothing,
        np.full(hosts, np.inf),
    )
    solution = solve(known, edges, undisputed(hosts, 0), SolveParameters())
    residual_ns = solution.residual_ns
    limits_ns = outlier_limits_ns(hosts, i, j, residual_ns, edges.bound_ns)
    named = faulty_hosts(hosts, i, j, residual_ns, limits_ns)
    total = np.bincount(np.concatenate([i, j]), minlength=hosts)
    safe = honest & (3 * to_honest > 2 * total)
    return Judged(
        set(faulty.tolist()),
        set(named),
        set(np.flatnonzero(honest & (2 * to_honest <= total)).tolist()),
        float(np.abs(solution.correction_ns[safe]).max()),
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    hosts=st.integers(12, 64),
    degree=st.integers(8, 10),
    count=st.integers(0, 4),
)
def test_all_faulty_hosts_are_named_and_nobody_else(seed: int, hosts: int, degree: int, count: int) -> None:
    """As long as each honest host has a majority of edges to honest ones; else nobody can tell who is right.

    Nor are others drawn along whose edges mostly are to honest hosts: by a thousandth of what faulty hosts are wrong
    by.
    """
    judged = judge(seed, hosts, degree, count)
    assume(not judged.outvoted)
    assert judged.named == judged.faulty
    assert judged.safe_error_ns < 1_000


def test_an_outvoted_host_that_others_place_is_not_named() -> None:
    """Three of the five edges of an honest host are to faulty ones; where its other edges put it is where it is."""
    judged = judge(270_066, hosts=41, degree=9, count=3)
    assert judged.outvoted
    assert judged.named == judged.faulty


def test_a_host_with_one_faulty_host_among_two_peers_is_not_named() -> None:
    """By two edges nobody is judged, and a faulty host's own edges count only once."""
    i, j = np.array([0, 0, 0, 0, 1, 2]), np.array([1, 2, 3, 4, 5, 5])
    residual_ns = np.array([4e5, -1e6, 9e5, -3e5, 0.0, 0.0])
    assert faulty_hosts(6, i, j, residual_ns, np.full(len(i), 300.0)) == [0]


def test_when_everything_is_wrong_not_everybody_is_named() -> None:
    """Of more than a third of the hosts nobody can tell who is right."""
    rng = np.random.default_rng(3)
    i, j = pairs(rng, 30, 8)
    residual_ns = rng.uniform(-1e6, 1e6, len(i))
    assert len(faulty_hosts(30, i, j, residual_ns, np.full(len(i), 300.0))) <= 10


@pytest.mark.parametrize("queue_ns", [3e4, 3e5])
def test_a_host_behind_a_long_queue_is_not_named(queue_ns: float) -> None:
    """All its packets of one direction wait: its edges contradict each other by as much as their bounds allow. Where
    bounds do not allow it, it is named.
    """
    rng = np.random.default_rng(4)
    for _ in range(50):
        i, j = pairs(rng, 12, 8)
        queued = (i == 3) | (j == 3)
        wrong_ns = np.where(queued, rng.uniform(0, queue_ns / 2, len(i)), 0.0)
        residual_ns = np.where(i == 3, wrong_ns, -wrong_ns)
        residual_ns = np.where(
            queued, residual_ns - np.median(residual_ns[queued]), rng.normal(0, 20, len(i))
        )
        bounds_ns = 600 + np.where(queued, queue_ns / 2, 0.0)
        limits_ns = outlier_limits_ns(12, i, j, residual_ns, bounds_ns)
        assert faulty_hosts(12, i, j, residual_ns, limits_ns) == []
    unsaid_ns = outlier_limits_ns(12, i, j, residual_ns, np.full(len(i), 600.0))
    assert faulty_hosts(12, i, j, residual_ns, unsaid_ns) == [3]


def test_a_host_with_one_edge_that_hides_nothing_has_no_queue() -> None:
    """Its stamps are late by 20 us on one edge, by 40 us on another, and right on the third. Each edge that is off
    hides as much as it is off by, as behind a queue; but that would be before all of them.
    """
    i, j = np.array([0, 0, 0, 1, 1, 2]), np.array([1, 2, 3, 2, 3, 3])
    late_ns = np.array([0.0, 1e4, 0.0, 0.0, 0.0, 2e4])
    noise_ns = np.array([0.0, 10.0, 20.0, 40.0, 5.0, 30.0])
    limits_ns = outlier_limits_ns(4, i, j, late_ns + noise_ns, 1_700 + late_ns + noise_ns)
    assert faulty_hosts(4, i, j, late_ns + noise_ns, limits_ns) == [2]


def test_typical_size_errors_are_those_of_most_edges_or_of_those_that_agree() -> None:
    """Of normal errors the median; where more than half are far off, what is typical_size of the others."""
    rng = np.random.default_rng(1)
    good = np.abs(rng.normal(0, 20, 10_000))
    assert typical_size(good) == pytest.approx(13.5, rel=0.05)
    assert typical_size(np.concatenate([good, np.full(12_000, 1e6)])) == pytest.approx(30, rel=0.2)
