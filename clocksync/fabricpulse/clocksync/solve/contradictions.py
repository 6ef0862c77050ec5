"""Bounds where edges contradict each other by more than their error bounds.

The bound of a host is the length of the shortest path to a source of truth. That assumes that no edge is wrong by more
than its bound (half of a round trip). A host with two NICs of which one stamps by another clock, or half of whose
stamps jumped, breaks this: the solution follows the majority of edges, which are no evidence for the others. So a
solution outside the interval of an edge means that a host at one of its ends is wrong by as much; it is not known
which. The bounds of both are then wide enough for each of their edges to be right.

Of a host most of whose edges contradict each other it is not known whether any of them is right. It is unknown. Pure.
"""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.graph import Floats, Graph
from fabricpulse.clocksync.solve.shortest_paths import ShortestPaths

Nodes = NDArray[np.intp]
Bools = NDArray[np.bool_]

# A host of at least so many edges of which more than this share contradict is unknown, and not those at their ends.
_FEWEST_EDGES, _MOST_CONTRADICTING = 3, 0.6


def bounds(
    paths: ShortestPaths, hides_ns: Floats, residual_ns: Floats, source_ns: Floats
) -> tuple[Floats, Bools, Floats]:
    """The bound of each host, inf where no path leads to one with fleet time, or most of its edges contradict each
    other; who is in doubt by its edges; and the bounds if no edge contradicted.

    paths : each edge as long as it hides and its residual. hides_ns : what its offset may be wrong by. residual_ns :
    measured minus solved. source_ns : as in ShortestPaths.from_nearest.
    """
    bound = paths.from_nearest(source_ns)
    contradicting = np.abs(residual_ns) > hides_ns
    if not contradicting.any():
        return bound, np.zeros(len(bound), np.bool_), bound
    wide = _doubted(paths, contradicting, hides_ns, residual_ns, bound)
    # A host that is reached by way of one in doubt is in as much doubt; but not if that host knows by itself, as the
    # root does: then others are right about fleet time, and it is the host that may not be.
    more = np.zeros_like(bound)
    np.subtract(wide, bound, out=more, where=np.isfinite(bound) & (bound < source_ns))
    through = paths.through(more).from_nearest(source_ns) if more.any() else bound
    return np.maximum(wide, through), wide > bound, bound


def contradict_most(graph: Graph, doubts: Nodes, residual_ns: Floats, hides_ns: Floats) -> Bools:
    """Hosts most of whose edges contradict each other, so that what they say says nothing of the other ends.

    doubts : how many edges each host has that contradict the solution.
    """
    most, edges = np.zeros(graph.n, np.bool_), graph.degrees()
    # Less than half of its edges are on the far side of the middle one, seen from where the host was put, and none of
    # the others is outside without contradicting the solution. Sorting all edges of a large fleet takes half a second.
    possible = (edges >= _FEWEST_EDGES) & (doubts > 1 + (_MOST_CONTRADICTING - 0.5) * edges)
    if not possible.any():
        return most
    near = np.flatnonzero(possible[graph.i] | possible[graph.j])
    begin = np.concatenate([graph.i[near], graph.j[near]])
    # Where the edge wants the host at its end.
    wanted_ns = np.concatenate([residual_ns[near], -residual_ns[near]])
    its = np.flatnonzero(possible[begin])
    begin, wanted_ns, hides_ns = begin[its], wanted_ns[its], np.tile(hides_ns[near], 2)[its]
    count = np.bincount(begin, minlength=graph.n)
    order = np.lexsort((wanted_ns, begin))
    middle = order[np.maximum(np.cumsum(count) - 1 - count // 2, 0)][begin]
    outside = np.abs(wanted_ns - wanted_ns[middle]) > hides_ns + hides_ns[middle]
    bad = np.bincount(begin[outside], minlength=graph.n)
    most |= possible & (bad > _MOST_CONTRADICTING * edges)
    return most


def _doubted(
    paths: ShortestPaths, contradicting: Bools, hides_ns: Floats, residual_ns: Floats, bound: Floats
) -> Floats:
    """`bound`, wider where a contradicting edge may be right.

    A host of whose edges no more than half are beyond doubt may have been moved by those that are not, and its
    neighbours with it: in a ring the wrong edge cannot be identified.
    """
    graph, way = paths.graph, hides_ns + np.abs(residual_ns)
    edges = graph.degrees()
    in_doubt = contradicting.copy()
    doubts = graph.degrees(in_doubt)
    alone = contradict_most(graph, doubts, residual_ns, hides_ns)
    wide = bound.copy()
    wrong = np.flatnonzero(in_doubt)
    # Each edge in both directions: if `begin` is right, `end` is wrong.
    for begin, end in _directions(graph, wrong):
        reached = ~alone[begin] | alone[end]
        np.maximum.at(wide, end[reached], (bound[begin] + way[wrong])[reached])
    spread = np.zeros(graph.n, np.bool_)
    while True:
        now = (wide > bound) & (2 * doubts >= edges) & ~spread & ~alone
        spread |= now
        more = np.flatnonzero((now[graph.i] | now[graph.j]) & ~in_doubt) if now.any() else wrong[:0]
        if not len(more):
            break
        before = wide.copy()
        for begin, end in _directions(graph, more):
            reached = now[begin]
            np.maximum.at(wide, end[reached], (before[begin] + way[more])[reached])
        in_doubt[more] = True
        doubts = graph.degrees(in_doubt)
    # The wrong edge was shared out among those of its ring, or of its part of it.
    shared_ns = float(way[wrong][spread[graph.i[wrong]] | spread[graph.j[wrong]]].sum())
    wide = np.where(spread, np.maximum(wide, bound + shared_ns), wide)
    return np.where(alone, np.inf, wide)


def _directions(graph: Graph, some: Nodes) -> tuple[tuple[Nodes, Nodes], tuple[Nodes, Nodes]]:
    i, j = graph.i[some], graph.j[some]
    return (i, j), (j, i)
