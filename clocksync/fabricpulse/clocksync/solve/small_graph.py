"""A graph of a few dozen hosts, as whole matrices. Pure."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.graph import Floats, Graph, Nodes


class SmallGraph(Graph):
    """See Graph."""

    def __init__(self, n: int, i: Nodes, j: Nodes) -> None:
        super().__init__(n, i, j)
        self._places = np.concatenate([i * n + j, j * n + i])

    def adjacency(self, weight: Floats) -> Floats:
        cells = np.bincount(self._places, np.concatenate([weight, weight]), self.n * self.n)
        return cells.astype(np.float64, copy=False).reshape(self.n, self.n)

    def components(self) -> NDArray[np.int32]:
        first = np.arange(self.n)
        while True:
            before = first.copy()
            low = np.minimum(first[self.i], first[self.j])
            np.minimum.at(first, self.i, low)
            np.minimum.at(first, self.j, low)
            if (first == before).all():
                return np.unique(first, return_inverse=True)[1].astype(np.int32)

    def breadth_first(self, start: int) -> tuple[Nodes, Nodes]:
        neighbours: list[list[int]] = [[] for _ in range(self.n)]
        for one, other in zip(self.i.tolist(), self.j.tolist(), strict=True):
            neighbours[one].append(other)
            neighbours[other].append(one)
        before = np.full(self.n, -1, np.intp)
        order, waiting, seen = [start], deque([start]), {start}
        while waiting:
            node = waiting.popleft()
            for neighbour in neighbours[node]:
                if neighbour not in seen:
                    seen.add(neighbour)
                    before[neighbour] = node
                    order.append(neighbour)
                    waiting.append(neighbour)
        return np.array(order, np.intp), before

    def distances(self, length: Floats, start: Floats, most: float = np.inf) -> Floats:
        lengths = np.full((self.n, self.n), np.inf)
        # Of parallel edges the shortest counts.
        np.minimum.at(lengths, (self.i, self.j), length)
        lengths = np.minimum(lengths, lengths.T)
        found = start
        while True:
            # One edge further at a time: as often as the longest of the shortest paths has edges.
            further = np.minimum(found, (found[:, :, np.newaxis] + lengths).min(axis=1))
            if (further == found).all():
                return np.where(found <= most, found, np.inf)
            found = further
