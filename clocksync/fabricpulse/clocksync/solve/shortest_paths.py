"""Worst-case offset error along the shortest path between two hosts, where the length of an edge is its error bound."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

Floats = NDArray[np.float64]


class ShortestPaths:
    """Paths along edges between `hosts` hosts; i, j, length_ns : one entry an edge."""

    def __init__(self, hosts: int, i: NDArray[np.intp], j: NDArray[np.intp], length_ns: Floats) -> None:
        self._hosts = hosts
        low, high = np.minimum(i, j), np.maximum(i, j)
        # Of parallel edges the shortest counts; csr_array would add them up.
        order = np.lexsort((length_ns, high, low))
        low, high, length_ns = low[order], high[order], length_ns[order]
        first = np.ones(len(low), np.bool_)
        first[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
        self._low, self._high, self._length = low[first], high[first], length_ns[first]

    def _graph(self, more: NDArray[np.intp], length_ns: Floats) -> csr_array:
        """With a node added, that has an edge to each of `more`."""
        n = self._hosts
        # Zero would be no edge at all in a sparse matrix.
        values = np.maximum(np.concatenate([self._length, length_ns]), 1e-3)
        rows = np.concatenate([self._low, np.full(len(more), n)])
        return csr_array((values, (rows, np.concatenate([self._high, more]))), shape=(n + 1, n + 1))

    def from_nearest(self, source_ns: Floats) -> Floats:
        """Per host: the least of source_ns + path length over all hosts; inf where no path leads to a finite one."""
        start = np.flatnonzero(np.isfinite(source_ns))
        graph = self._graph(start, source_ns[start])
        distance: Floats = dijkstra(graph, directed=False, indices=self._hosts)[: self._hosts]
        return distance

    def between(self, some: NDArray[np.intp], others: NDArray[np.intp]) -> Floats:
        """From each of `some`, a row each, to each of `others`, a column each. A search for each row."""
        graph = self._graph(np.empty(0, np.intp), np.empty(0))
        distance: Floats = dijkstra(graph, directed=False, indices=some)[:, others]
        return distance
