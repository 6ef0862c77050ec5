"""Bounds of hosts that were in doubt, once those who contradicted them are silent.

What edges hide is seen only while others contradict them (`contradictions`). Where the host dies whose edges proved it,
all that is left fits, and is as wrong as before. So how far each host may be off is remembered from solve to solve, by
the caller (coordinator.doubted_hosts), and its bound is as wide as that unless its edges still say it. Who was
unknown stays unknown: all of its edges may have been false. Pure.
"""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve import contradictions
from fabricpulse.clocksync.solve.graph import Floats, Graph
from fabricpulse.clocksync.solve.shortest_paths import ShortestPaths


def bounds(
    paths: ShortestPaths,
    hides_ns: Floats,
    residual_ns: Floats,
    source_ns: Floats,
    kept_ns: Floats,
    remembered_ns: Floats | float,
) -> tuple[Floats, Floats]:
    """The bound of each host, inf where it is unknown; and how far each that edges put in doubt now may be off, once
    whatever contradicts it is silent, 0 for all others.

    kept_ns : bounds by what hosts knew of themselves before this solve. remembered_ns : the second of what former
    solves said, per host. Others as in contradictions.bounds.
    """
    bound, in_doubt, nearest = contradictions.bounds(paths, hides_ns, residual_ns, source_ns)
    doubt = np.zeros(len(bound))
    if in_doubt.any():
        # Without those of its edges that move it least it would be where another wants it.
        largest = _largest(paths.graph, residual_ns, in_doubt)
        doubt = np.where(in_doubt & np.isfinite(nearest), bound + largest, 0.0)
    more = np.zeros(len(bound))
    np.subtract(remembered_ns, doubt, out=more, where=np.greater(remembered_ns, doubt))
    if not more.any():
        return bound, doubt
    # As in contradictions.bounds: a host that is reached by way of one in doubt is in as much doubt, but not if that
    # host knows by itself. Half of it is paid on the way in, half on the way out.
    passing = np.where(nearest < source_ns, more, 0.0)
    through = paths.through(passing).from_nearest(source_ns) if passing.any() else nearest
    unknown = np.isinf(more)
    rest = np.where(unknown, 0.0, more) - np.where(unknown, 0.0, passing) / 2
    kept = np.minimum(kept_ns, through + rest)
    return np.where(unknown, np.inf, np.maximum(bound, kept)), doubt


def _largest(graph: Graph, residual_ns: Floats, which: NDArray[np.bool_]) -> Floats:
    """Per host of those in `which` the largest residual of its edges."""
    largest = np.zeros(graph.n)
    for ends in graph.i, graph.j:
        its = np.flatnonzero(which[ends])
        np.maximum.at(largest, ends[its], np.abs(residual_ns[its]))
    return largest
