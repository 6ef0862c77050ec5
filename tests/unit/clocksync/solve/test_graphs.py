"""Small graphs and large ones are the same, but for what they cost."""

import numpy as np
import pytest

from fabricpulse.clocksync.solve import graph_forms, large_graph
from fabricpulse.clocksync.solve.graph import Graph
from fabricpulse.clocksync.solve.graph_forms import FEW, graph_of
from fabricpulse.clocksync.solve.large_graph import LargeGraph
from fabricpulse.clocksync.solve.least_squares import robust_least_squares
from fabricpulse.clocksync.solve.shortest_paths import ShortestPaths
from fabricpulse.clocksync.solve.small_graph import SmallGraph


def random_edges(rng: np.random.Generator, n: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Parallel edges and hosts without one among them; none from a host to itself."""
    i = rng.integers(0, n, count)
    return i, (i + rng.integers(1, n, count)) % n


def both(n: int, i: np.ndarray, j: np.ndarray) -> tuple[Graph, Graph]:
    return SmallGraph(n, i, j), LargeGraph(n, i, j)


@pytest.mark.thorough
def test_random_graphs_have_one_answer() -> None:
    """Components, ways from a host, least squares and distances of 300 graphs, connected or not."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        n = int(rng.integers(2, FEW + 1))
        count = int(rng.integers(1, 3 * n))
        i, j = random_edges(rng, n, count)
        small, large = both(n, i, j)
        component = small.components()
        assert (component == large.components()).all()
        assert component[0] == 0

        start = int(rng.integers(0, n))
        depths = []
        for graph in small, large:
            order, before = graph.breadth_first(start)
            assert order[0] == start
            assert sorted(order) == np.flatnonzero(component == component[start]).tolist()
            depth = {start: 0}
            for node in order[1:].tolist():
                assert ((i == node) & (j == before[node]) | (j == node) & (i == before[node])).any()
                depth[node] = depth[int(before[node])] + 1
            assert list(depth.values()) == sorted(depth.values())
            depths.append(depth)
        assert depths[0] == depths[1]

        x = rng.normal(0, 1e4, n)
        sigma = rng.uniform(5, 50, count)
        m = x[i] - x[j] + rng.normal(0, sigma) + (rng.random(count) < 0.1) * 5_000
        answers = [robust_least_squares(graph, m, sigma) for graph in (small, large)]
        np.testing.assert_allclose(answers[0][0], answers[1][0], atol=0.5)
        np.testing.assert_allclose(answers[0][1], answers[1][1], atol=0.05)


def test_random_graphs_have_one_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the nearest source, of which some may be nowhere, and between hosts, also no further than so far; equal
    edges and such of no length.
    """
    rng = np.random.default_rng(2)
    for _ in range(200):
        n = int(rng.integers(2, FEW + 1))
        i, j = random_edges(rng, n, int(rng.integers(0, 3 * n)))
        length = (rng.choice([0.0, 5.0, 1e9], len(i)) + rng.integers(0, 3, len(i))).astype(np.float64)
        source = np.where(rng.random(n) < 0.2, rng.uniform(0, 100, n) * (rng.random(n) < 0.9), np.inf)
        some = rng.integers(0, n, 3)
        found = []
        for few in FEW, 0:
            monkeypatch.setattr(graph_forms, "FEW", few)
            paths = ShortestPaths(graph_of(n, i, j), length)
            near = paths.between(some, np.arange(n), 9.5)
            found.append((paths.from_nearest(source), paths.between(some, np.arange(n)), near))
        for small, large in zip(*found, strict=True):
            np.testing.assert_allclose(small, large, atol=0.01)
        assert (found[0][1][np.arange(3), some] < 0.01).all()
        np.testing.assert_array_equal(np.isfinite(found[0][2]), found[0][1] <= 9.5)


@pytest.mark.parametrize("nearer", [0, 2, 30, 1_000])
def test_asking_all_edges_and_a_search_find_the_same_sums(
    monkeypatch: pytest.MonkeyPatch, nearer: int
) -> None:
    """Of hosts that know themselves how far they are, `nearer` are so near that others go by them."""
    rng = np.random.default_rng(nearer)
    n = 1_000
    i, j = random_edges(rng, n, 8 * n)
    graph = LargeGraph(n, i, j)
    length = rng.uniform(900.0, 1_100.0, len(i))
    start = rng.uniform(4_000.0, 4_100.0, n)
    start[rng.choice(n, nearer, replace=False)] = rng.uniform(0.0, 4_000.0, nearer)
    found = graph.distances(length, np.array([start, np.where(start < 4_000.0, start, np.inf)]))
    monkeypatch.setattr(large_graph, "_RELAXED", 0)
    searched = graph.distances(length, np.array([start, np.where(start < 4_000.0, start, np.inf)]))
    np.testing.assert_array_equal(found, searched)


def test_the_form_goes_by_the_number_of_hosts() -> None:
    """What few hosts need never loads SciPy (test_light_start)."""
    none = np.empty(0, np.intp)
    assert isinstance(graph_of(FEW, none, none), SmallGraph)
    assert isinstance(graph_of(FEW + 1, none, none), LargeGraph)
