"""Bounds where edges contradict each other beyond what any of them can hide.

The bound of a host is the length of the shortest way to whoever is right. That trusts each edge to be wrong by no more
than it can hide (half of a round trip). A host with two NICs of which one stamps by another clock, or half of whose
stamps jumped, breaks this: the solution takes the side of most edges, and these tell nothing of the others. So a
solution that lies outside of what an edge allows says that somebody at its ends is wrong by as much; nobody can tell
who. Both have bounds then within which each of their edges may be right. Pure.
"""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.shortest_paths import ShortestPaths

Floats = NDArray[np.float64]
Nodes = NDArray[np.intp]
Bools = NDArray[np.bool_]

# A host of at least so many edges of which more than this share contradict is in doubt, and not those at their ends.
_FEWEST_EDGES, _MOST_CONTRADICTING = 3, 0.6


def bounds(
    paths: ShortestPaths, i: Nodes, j: Nodes, hides_ns: Floats, residual_ns: Floats, source_ns: Floats
) -> tuple[Floats, Bools]:
    """The bound of each host, inf where nothing leads to one that knows something; and who is in doubt by its edges.

    paths : of all edges, each as long as it hides and its residual. i, j : hosts at its ends. hides_ns : what its
    offset may be wrong by. residual_ns : measured minus solved. source_ns : as in ShortestPaths.from_nearest.
    """
    n = len(source_ns)
    length = hides_ns + np.abs(residual_ns)
    bound = paths.from_nearest(source_ns)
    if (np.abs(residual_ns) <= hides_ns).all():
        return bound, np.zeros(n, np.bool_)
    wide = _doubted(i, j, hides_ns, residual_ns, bound)
    # Whoever is reached by way of a host in doubt is in as much doubt; but not if that host knows by itself, as the
    # root does: then others are right about fleet time, and it is the host that may not be.
    more = np.where(np.isfinite(bound) & (bound < source_ns), wide - bound, 0.0)
    through = ShortestPaths(n, i, j, length + (more[i] + more[j]) / 2).from_nearest(source_ns)
    return np.maximum(wide, through), wide > bound


def _contradicts_most(begin: Nodes, wanted_ns: Floats, hides_ns: Floats, edges: NDArray[np.intp]) -> Bools:
    """Hosts most of whose edges contradict each other, so that what they say says nothing of the other ends.

    begin : the host of each end of an edge. wanted_ns : where the edge wants it. edges : how many each host has.
    """
    order = np.lexsort((wanted_ns, begin))
    middle = order[np.maximum(np.cumsum(edges) - 1 - edges // 2, 0)][begin]
    outside = np.abs(wanted_ns - wanted_ns[middle]) > hides_ns + hides_ns[middle]
    bad = np.bincount(begin[outside], minlength=len(edges))
    most: Bools = (edges >= _FEWEST_EDGES) & (bad > _MOST_CONTRADICTING * edges)
    return most


def _doubted(i: Nodes, j: Nodes, hides_ns: Floats, residual_ns: Floats, bound: Floats) -> Floats:
    """`bound`, wider where a contradicting edge may be right.

    A host of whose edges no more than half are beyond doubt may have been moved by those that are not, and its
    neighbours with it: in a ring nobody can tell where the wrong edge is.
    """
    n = len(bound)
    edges = np.bincount(i, minlength=n) + np.bincount(j, minlength=n)
    # Each edge in both directions: if `begin` is right, `end` is wrong.
    begin, end = np.concatenate([i, j]), np.concatenate([j, i])
    length, contradicting = hides_ns + np.abs(residual_ns), np.abs(residual_ns) > hides_ns
    way = np.tile(length, 2)
    in_doubt = np.tile(contradicting, 2)
    doubts = np.bincount(begin[in_doubt], minlength=n)
    alone = _contradicts_most(begin, np.concatenate([residual_ns, -residual_ns]), np.tile(hides_ns, 2), edges)
    wide = bound.copy()
    told = in_doubt & (~alone[begin] | alone[end])
    np.maximum.at(wide, end[told], (bound[begin] + way)[told])
    spread = np.zeros(n, np.bool_)
    while True:
        now = (wide > bound) & (2 * doubts >= edges) & ~spread & ~alone
        spread |= now
        told = now[begin] & ~in_doubt
        if not told.any():
            break
        np.maximum.at(wide, end[told], (wide[begin] + way)[told])
        in_doubt |= np.tile(np.logical_or(*told.reshape(2, -1)), 2)
        doubts = np.bincount(begin[in_doubt], minlength=n)
    # The wrong edge was shared out among those of its ring, or of its part of it.
    shared_ns = float(length[contradicting & (spread[i] | spread[j])].sum())
    return np.where(spread, np.maximum(wide, bound + shared_ns), wide)
