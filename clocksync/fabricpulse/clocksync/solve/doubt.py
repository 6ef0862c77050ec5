"""Bounds of hosts that were in doubt, once those who contradicted them are silent.

What edges hide is seen only while others contradict them (`contradictions`). Where the host dies whose edges proved it,
all that is left fits, and is as wrong as before. So how far each host may be off is remembered from solve to solve, by
whoever calls this (coordinator.doubted_hosts), and its bound is as wide as that unless its edges still say it. Pure.
"""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve import contradictions
from fabricpulse.clocksync.solve.shortest_paths import ShortestPaths

Floats = NDArray[np.float64]
Nodes = NDArray[np.intp]


def bounds(
    paths: ShortestPaths,
    i: Nodes,
    j: Nodes,
    hides_ns: Floats,
    residual_ns: Floats,
    source_ns: Floats,
    kept_ns: Floats,
    remembered_ns: Floats | float,
) -> tuple[Floats, Floats]:
    """The bound of each host, inf where nothing leads to one that knows something; and how far each that edges put in
    doubt now may be off, once whatever contradicts it is silent, 0 for all others.

    kept_ns : bounds by what hosts knew of themselves before this solve. remembered_ns : the second of what former
    solves said, per host. Others as in contradictions.bounds.
    """
    n = len(source_ns)
    bound, in_doubt = contradictions.bounds(paths, i, j, hides_ns, residual_ns, source_ns)
    doubt = np.zeros(n)
    if in_doubt.any():
        # Without those of its edges that move it least it would be where another wants it.
        for ends in (i, j):
            np.maximum.at(doubt, ends, np.abs(residual_ns))
        doubt = np.where(in_doubt & np.isfinite(bound), bound + doubt, 0.0)
    more = np.maximum(remembered_ns - doubt, 0.0)
    if not more.any():
        return bound, doubt
    # As in contradictions.bounds: whoever is reached by way of a host in doubt is in as much doubt, but not if that
    # host knows by itself. Half of it is paid on the way in, half on the way out.
    nearest, length_ns = paths.from_nearest(source_ns), hides_ns + np.abs(residual_ns)
    passing = np.where(nearest < source_ns, more, 0.0)
    through = ShortestPaths(n, i, j, length_ns + (passing[i] + passing[j]) / 2).from_nearest(source_ns)
    return np.maximum(bound, np.minimum(kept_ns, through + more - passing / 2)), doubt
