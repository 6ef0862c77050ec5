"""Which loops of edges prove how far apart two hosts may be, and in which solves they are searched for."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from fabricpulse.clocksync.coordinator import edge_loops
from fabricpulse.clocksync.coordinator.doubted_hosts import DoubtedHosts
from fabricpulse.clocksync.coordinator.edge_loops import LOOPS, EdgeLoops
from fabricpulse.clocksync.coordinator.members import Columns
from fabricpulse.clocksync.solve.graph_forms import graph_of
from fabricpulse.clocksync.solve.graph_solve import Edges, Solution
from fabricpulse.clocksync.solve.shortest_paths import ShortestPaths

HIDES_NS, DOUBT_NS = 1_000.0, 1e6


def edges_of(*pairs: tuple[int, int]) -> Edges:
    """All of them measured just now."""
    i, j = np.array(pairs, np.intp).T
    none = np.zeros(len(i))
    return Edges(i, j, none.astype(np.int64), none, none, none, none + HIDES_NS, none, none)


def lengths(
    loops: EdgeLoops, edges: Edges, residual_ns: dict[int, float], asked: list[int], now_s: float = 0.0
) -> NDArray[np.float64]:
    """Where `asked` edges need a loop, as their first ends are in doubt; residual_ns : by edge."""
    n = int(max(edges.i.max(), edges.j.max())) + 1
    residuals, doubt_ns, unchecked = np.zeros(len(edges.i)), np.zeros(n), np.zeros(len(edges.i), np.bool_)
    for edge, residual in residual_ns.items():
        residuals[edge] = residual
    unchecked[asked] = True
    doubt_ns[edges.i[asked]] = DOUBT_NS
    names = np.arange(1, n + 1, dtype=np.uint64) << np.uint64(40)
    return loops.lengths_ns(names, edges, residuals, doubt_ns, unchecked, now_s)


def test_a_loop_is_as_long_as_all_that_its_edges_hide() -> None:
    """With their residuals, by which hosts are not where the edges say."""
    found = lengths(EdgeLoops(), edges_of((0, 1), (1, 2), (2, 0)), {1: -300.0}, [0])
    assert found[0] == pytest.approx(3 * HIDES_NS + 300.0)
    assert np.isinf(found[1:]).all()


@pytest.mark.parametrize("edge", [0, 1, 2])
@pytest.mark.parametrize("sign", [-1, 1])
def test_an_edge_that_contradicts_the_solution_proves_nothing(edge: int, sign: int) -> None:
    """The one that is checked, or another of the only loop."""
    found = lengths(EdgeLoops(), edges_of((0, 1), (1, 2), (2, 0)), {edge: sign * (HIDES_NS + 1)}, [0])
    assert np.isinf(found).all()


def test_edges_of_the_same_two_hosts_are_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends may fit an edge; then nothing is searched for, either."""
    monkeypatch.setattr(edge_loops, "graph_of", None)
    assert np.isinf(lengths(EdgeLoops(), edges_of((0, 1), (1, 0), (1, 2)), {}, [0])).all()


def test_each_edge_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight whose only way round is none, with more than one peer at each end, do not keep the ninth from its loop;
    and what was found counts while others have their turn. A solve builds one graph.
    """
    graphs: list[int] = []

    def counted(n: int, i: NDArray[np.intp], j: NDArray[np.intp]) -> object:
        graphs.append(n)
        return graph_of(n, i, j)

    monkeypatch.setattr(edge_loops, "graph_of", counted)
    # A path of hosts, and at its end a triangle.
    useless = [(host, host + 1) for host in range(LOOPS + 2)]
    last = LOOPS + 2
    edges = edges_of(*useless, (last, last + 1), (last + 1, last + 2), (last + 2, last))
    loops, asked = EdgeLoops(), [*range(1, LOOPS + 1), len(useless)]
    assert np.isinf(lengths(loops, edges, {}, asked, 0.0)).all()
    assert len(graphs) == 1
    for now_s in 1.0, 2.0, 3.0:
        assert lengths(loops, edges, {}, asked, now_s)[len(useless)] < DOUBT_NS, now_s
    assert len(graphs) == 3  # in the third solve none was due


@pytest.mark.parametrize("now_s", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("edge", [1, 2])
@pytest.mark.parametrize("fault", ["contradicts", "old", "gone"])
def test_a_way_counts_no_more_once_an_edge_of_it_proves_nothing(now_s: float, edge: int, fault: str) -> None:
    """At once, also before it is searched for again."""
    loops, edges = EdgeLoops(), edges_of((0, 1), (1, 2), (2, 0))
    assert np.isfinite(lengths(loops, edges, {}, [0], 0.0)[0])
    residuals = {edge: 2 * HIDES_NS} if fault == "contradicts" else {}
    if fault == "old":
        edges.bound_age_s[edge] = 3.0
    elif fault == "gone":
        edges = edges_of((0, 1), [(1, 2), (2, 0)][2 - edge])
    assert np.isinf(lengths(loops, edges, residuals, [0], now_s)[0])


def test_a_kept_way_is_as_long_as_it_is_now() -> None:
    """Of edges between the same two hosts by the better one."""
    loops, edges = EdgeLoops(), edges_of((0, 1), (1, 2), (2, 3), (3, 0), (2, 1))
    assert lengths(loops, edges, {}, [0], 0.0)[0] == pytest.approx(4 * HIDES_NS)
    found = lengths(loops, edges, {1: 2 * HIDES_NS, 2: 200.0, 4: 100.0}, [0], 1.0)
    assert found[0] == pytest.approx(4 * HIDES_NS + 300.0)


@pytest.mark.parametrize("hosts", [20, 90])
def test_the_way_is_the_shortest(hosts: int) -> None:
    """In graphs of both forms, with parallel edges, against the distance itself."""
    random = np.random.default_rng(hosts)
    pairs = [(0, 1), *((int(a), int(b)) for a, b in random.integers(0, hosts, (4 * hosts, 2)) if a != b)]
    edges = edges_of(*pairs)
    edges.bound_ns[:] = random.integers(1, 50, len(pairs)) * 1_000.0
    found = lengths(EdgeLoops(), edges, {}, [0])[0]
    beside = (np.minimum(edges.i, edges.j) == 0) & (np.maximum(edges.i, edges.j) == 1)
    graph = graph_of(hosts, edges.i[~beside], edges.j[~beside])
    paths = ShortestPaths(graph, edges.bound_ns[~beside])
    way_ns = paths.between(np.array([0]), np.array([1]))[0, 0]
    assert found == pytest.approx(edges.bound_ns[0] + way_ns, abs=0.1)


@pytest.mark.parametrize("hosts", [8, 40, 100])
def test_no_host_is_confirmed_by_ways_that_contradict_by_now(hosts: int) -> None:
    """Many in doubt, whose ways were found in earlier rounds; then each of them breaks."""
    hub = 0
    pairs = [
        pair for host in range(1, 2 * hosts, 2) for pair in ((host, hub), (host, host + 1), (host + 1, hub))
    ]
    edges, loops, asked = edges_of(*pairs), EdgeLoops(), list(range(0, 3 * hosts, 3))
    for second in range(4):
        assert np.isfinite(lengths(loops, edges, {}, asked, float(second))).any()
    broken = dict.fromkeys(range(2, 3 * hosts, 3), 50 * HIDES_NS)
    for second in range(4, 14):
        assert np.isinf(lengths(loops, edges, broken, asked, float(second))).all(), second


@pytest.mark.parametrize(("residual_ns", "left_ns"), [(0.0, 3 * HIDES_NS), (HIDES_NS + 1, 0.0)])
def test_a_doubt_is_left_where_the_only_loop_contradicts(residual_ns: float, left_ns: float) -> None:
    """Of the host whose only edge with a say is checked by nothing else: no witness confirms it then."""
    edges, held_out = edges_of((0, 1), (1, 2), (2, 0)), np.array([np.nan, 0.0, np.nan])
    fit = SimpleNamespace(
        residual_ns=np.array([0.0, residual_ns, 0.0]), held_out_ns=held_out, doubt_ns=np.zeros(3)
    )
    doubt_ns, names = np.array([DOUBT_NS, 0.0, 0.0]), np.arange(1, 4, dtype=np.uint64)
    checked, hidden_ns = DoubtedHosts(Columns())._checked(edges, cast(Solution, fit), names, doubt_ns, 0.0)
    assert hidden_ns[0] == pytest.approx(left_ns)
    assert checked[0][0] == (left_ns > 0)
