"""A graph of any size, as sparse matrices. Pure."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, dijkstra

from fabricpulse.clocksync.solve.graph import Floats, Graph, Nodes


class LargeGraph(Graph):
    """See Graph. The pattern of the normal equations is made once and filled with new weights at each round."""

    def __init__(self, n: int, i: Nodes, j: Nodes) -> None:
        super().__init__(n, i.astype(np.int32), j.astype(np.int32))
        rows = np.concatenate([self.i, self.j])
        self._order = np.argsort(rows, kind="stable")
        self._columns = np.concatenate([self.j, self.i])[self._order]
        self._starts = np.zeros(n + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=n), out=self._starts[1:])

    def adjacency(self, weight: Floats) -> csr_array:
        data = np.concatenate([weight, weight])[self._order]
        return csr_array((data, self._columns, self._starts), shape=(self.n, self.n))

    def components(self) -> NDArray[np.int32]:
        labels: NDArray[np.int32] = connected_components(
            self.adjacency(np.ones(len(self.i))), directed=False
        )[1]
        return labels

    def breadth_first(self, start: int) -> tuple[Nodes, Nodes]:
        order, before = breadth_first_order(self.adjacency(np.ones(len(self.i))), start, directed=False)
        return order.astype(np.intp), before.astype(np.intp)

    def distances(self, length: Floats, start: Floats) -> Floats:
        found = np.empty_like(start)
        for row, of in enumerate(start):
            # With a host more, that has an edge to each at which a path may begin.
            begins = np.flatnonzero(np.isfinite(of))
            rows = np.concatenate([self.i, np.full(len(begins), self.n)])
            places = rows, np.concatenate([self.j, begins])
            graph = csr_array((np.concatenate([length, of[begins]]), places), shape=(self.n + 1, self.n + 1))
            found[row] = dijkstra(graph, directed=False, indices=self.n)[: self.n]
        return found
