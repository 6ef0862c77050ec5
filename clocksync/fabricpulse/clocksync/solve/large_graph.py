"""A graph of any size, as sparse matrices. Pure."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, dijkstra

from fabricpulse.clocksync.solve.graph import Floats, Graph, Nodes

# Before a search edges are relaxed (Bellman and Ford): on average each so often at most, and only while no more than
# this share of them shortens a path.
_RELAXED, _MOST_SHORTER = 3, 0.1


class _Symmetric:
    """A matrix and its transpose, added up: half of the memory, and nothing to sort."""

    def __init__(self, upper: csr_array) -> None:
        self._upper, self._lower = upper, csc_array(upper.T)

    def __matmul__(self, vector: Floats) -> Floats:
        product: Floats = self._upper @ vector
        product += self._lower @ vector
        return product


class LargeGraph(Graph):
    """See Graph. An edge has one place in a matrix, that of i and j. Where edges are grouped by i, as reports bring
    them, the matrix is their arrays as they are.
    """

    def __init__(self, n: int, i: Nodes, j: Nodes) -> None:
        super().__init__(n, i, j)
        self._order = None if (i[1:] >= i[:-1]).all() else np.argsort(i, kind="stable")
        self._columns = (j if self._order is None else j[self._order]).astype(np.int32)
        self._starts = np.zeros(n + 1, np.int32)
        np.cumsum(np.bincount(i, minlength=n), out=self._starts[1:])

    def _sorted(self, value: Floats) -> Floats:
        return value if self._order is None else value[self._order]

    def _matrix(self, value: Floats) -> csr_array:
        return csr_array((self._sorted(value), self._columns, self._starts), shape=(self.n, self.n))

    def adjacency(self, weight: Floats) -> _Symmetric:
        return _Symmetric(self._matrix(weight))

    def components(self) -> NDArray[np.int32]:
        labels: NDArray[np.int32] = connected_components(self._matrix(np.ones(len(self.i))), directed=False)[
            1
        ]
        return labels

    def breadth_first(self, start: int) -> tuple[Nodes, Nodes]:
        order, before = breadth_first_order(self._matrix(np.ones(len(self.i))), start, directed=False)
        return order.astype(np.intp), before.astype(np.intp)

    def _relaxed(self, length: Floats, start: Floats) -> tuple[Floats, bool]:
        """Distances of one row of distances(), and whether they are final. Where next to no edge shortens a path, as in
        most rounds, relaxing all edges is a fifth of the work of a search. Else the search goes on from there, to the
        same sums.
        """
        at, left = start.copy(), _RELAXED * len(length)
        some: Nodes | slice = slice(None)
        while left > 0:
            i, j, way = self.i[some], self.j[some], length[some]
            left -= len(way)
            forth, back = at[i] + way, at[j] + way
            to_j, to_i = np.flatnonzero(forth < at[j]), np.flatnonzero(back < at[i])
            if not len(to_j) and not len(to_i):
                return at, True
            if len(to_j) + len(to_i) > _MOST_SHORTER * len(length):
                break
            np.minimum.at(at, j[to_j], forth[to_j])
            np.minimum.at(at, i[to_i], back[to_i])
            nearer = np.zeros(self.n, np.bool_)
            nearer[j[to_j]] = nearer[i[to_i]] = True
            some = np.flatnonzero(nearer[self.i] | nearer[self.j])
        return at, False

    def distances(self, length: Floats, start: Floats, most: float = np.inf) -> Floats:
        found = np.empty_like(start)
        in_order = self._sorted(length)
        for row, given in enumerate(start):
            of, done = self._relaxed(length, given) if most == np.inf else (given, False)
            if done:
                found[row] = of
                continue
            # With a host more, that has an edge to each at which a path may begin.
            begins = np.flatnonzero(np.isfinite(of))
            columns = np.concatenate([self._columns, begins.astype(np.int32)])
            starts = np.append(self._starts, np.int32(len(columns)))
            graph = csr_array(
                (np.concatenate([in_order, of[begins]]), columns, starts), shape=(self.n + 1, self.n + 1)
            )
            found[row] = dijkstra(graph, directed=False, indices=self.n, limit=most)[: self.n]
        return found
