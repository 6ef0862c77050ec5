"""Worst-case offset error along the shortest path between two hosts, where the length of an edge is its error bound."""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.graph_forms import graph_of

Floats = NDArray[np.float64]

# A length of nothing would be no edge at all in a sparse matrix.
_LEAST_NS = 1e-3


class ShortestPaths:
    """Paths along edges between `hosts` hosts; i, j, length_ns : one entry an edge."""

    def __init__(self, hosts: int, i: NDArray[np.intp], j: NDArray[np.intp], length_ns: Floats) -> None:
        low, high = np.minimum(i, j), np.maximum(i, j)
        # Of parallel edges the shortest counts.
        order = np.lexsort((length_ns, high, low))
        low, high, length_ns = low[order], high[order], length_ns[order]
        first = np.ones(len(low), np.bool_)
        first[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
        self._graph = graph_of(hosts, low[first], high[first])
        self._length = np.maximum(length_ns[first], _LEAST_NS)

    def from_nearest(self, source_ns: Floats) -> Floats:
        """Per host: the least of source_ns + path length over all hosts; inf where no path leads to a finite one."""
        start = np.maximum(source_ns, _LEAST_NS)[np.newaxis]
        nearest: Floats = self._graph.distances(self._length, start)[0]
        return nearest

    def between(self, some: NDArray[np.intp], others: NDArray[np.intp]) -> Floats:
        """From each of `some`, a row each, to each of `others`, a column each. A search for each row."""
        start = np.full((len(some), self._graph.n), np.inf)
        start[np.arange(len(some)), some] = _LEAST_NS
        distance: Floats = self._graph.distances(self._length, start)[:, others]
        return distance
