"""How far the rates of hosts may be off, beside what clocks may drift: what a line without corrections needs.

A first window under load knows the rate of an edge to some ppm. Whoever is cut off just then goes on with it for as
long as it is in holdover. Pure.
"""

import numpy as np

from fabricpulse.clocksync.solve.graph import Floats, Graph
from fabricpulse.clocksync.solve.shortest_paths import ShortestPaths

# As of the bound of an edge (edge.filter).
_SIGMAS = 6.0
# Where no edge is less sure than this share of what bounds allow for, no way is looked for; a search takes 0.04 s of a
# core at 50,000 hosts with ten edges each.
_SURE = 0.5


def rate_doubt_ppb(
    graph: Graph, root: int, rate_sigma_ppb: Floats, residual_ppb: Floats, drift_ppb: float
) -> Floats:
    """Per host how far its rate may be off that of `root`, less what bounds allow for anyway (drift_ppb).

    rate_sigma_ppb, residual_ppb : per edge. inf where no edge leads to the root.
    """
    length = _SIGMAS * rate_sigma_ppb + np.abs(residual_ppb)
    if length.max(initial=0.0) <= _SURE * drift_ppb:
        return np.zeros(graph.n)
    source = np.full(graph.n, np.inf)
    source[root] = 0.0
    return np.maximum(ShortestPaths(graph, length).from_nearest(source) - drift_ppb, 0.0)
