"""Hosts and the edges between them: what the solve asks of a graph. Pure."""

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Nodes = NDArray[np.intp]


class Matrix(Protocol):
    """What can be multiplied by a vector."""

    def __matmul__(self, vector: Floats) -> Floats: ...


class Graph(ABC):
    """n : hosts. i, j : one entry an edge; parallel edges may be."""

    def __init__(self, n: int, i: Nodes, j: Nodes) -> None:
        self.n, self.i, self.j = n, i, j

    def sum_at_ends(self, value: Floats, sign: float) -> Floats:
        """Per host: the sum of `value` over edges where it is i, plus `sign` times that where it is j."""
        total: Floats = np.bincount(self.i, value, self.n) + sign * np.bincount(self.j, value, self.n)
        return total

    def degrees(self, which: NDArray[np.bool_] | None = None) -> Nodes:
        """Per host: how many edges it has, of those in `which`."""
        i, j = (self.i, self.j) if which is None else (self.i[which], self.j[which])
        return np.bincount(i, minlength=self.n) + np.bincount(j, minlength=self.n)

    @abstractmethod
    def adjacency(self, weight: Floats) -> Matrix:
        """Symmetric, `weight` at both places of each edge; a product adds parallel edges up."""

    @abstractmethod
    def components(self) -> NDArray[np.int32]:
        """Per host, the number of its component; they are numbered by their first hosts."""

    @abstractmethod
    def breadth_first(self, start: int) -> tuple[Nodes, Nodes]:
        """The hosts that `start` reaches, nearest first, and per host the one before it."""

    @abstractmethod
    def distances(self, length: Floats, start: Floats, most: float = np.inf) -> Floats:
        """Per row of `start`, and host: the least of start + path length over all hosts; inf where there is none, and
        above `most`.

        length : per edge, inf for one that is no way; it and start above 0.
        """
