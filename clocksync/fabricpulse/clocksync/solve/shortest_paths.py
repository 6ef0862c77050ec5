"""Worst-case offset error along the shortest path between two hosts, where the length of an edge is its error bound."""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.graph import Floats, Graph

# A length of nothing would be no edge at all in a sparse matrix.
_LEAST_NS = 1e-3


class ShortestPaths:
    """Paths along the edges of `graph`; length_ns : one entry an edge."""

    def __init__(self, graph: Graph, length_ns: Floats) -> None:
        self.graph, self.length_ns = graph, np.maximum(length_ns, _LEAST_NS)

    def through(self, more_ns: Floats) -> "ShortestPaths":
        """Where each host that lies on the way adds more_ns: half on the way in, half on the way out."""
        return ShortestPaths(self.graph, self.length_ns + (more_ns[self.graph.i] + more_ns[self.graph.j]) / 2)

    def from_nearest(self, source_ns: Floats) -> Floats:
        """Per host: the least of source_ns + path length over all hosts; inf where no path leads to a finite one."""
        start = np.maximum(source_ns, _LEAST_NS)[np.newaxis]
        nearest: Floats = self.graph.distances(self.length_ns, start)[0]
        return nearest

    def between(self, some: NDArray[np.intp], others: NDArray[np.intp], most_ns: float = np.inf) -> Floats:
        """From each of `some`, a row each, to each of `others`, a column each; inf above most_ns. A search for each
        row, which goes no further than that.
        """
        start = np.full((len(some), self.graph.n), np.inf)
        start[np.arange(len(some)), some] = _LEAST_NS
        distance: Floats = self.graph.distances(self.length_ns, start, most_ns)[:, others]
        return distance
