"""Loops of edges that check an edge which the solve itself cannot: one that has all the say at one of its ends.

An edge whose residual exceeds its bound contradicts the solution and proves nothing, neither as part of a loop nor as
the edge that is checked. Around a loop of others the ends of the edge are no further apart, from where the solve put
them, than what all edges of the loop hide and their residuals. Pure: time is passed in.
"""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.graph import Floats, Graph
from fabricpulse.clocksync.solve.graph_forms import graph_of
from fabricpulse.clocksync.solve.graph_solve import Edges
from fabricpulse.clocksync.solve.shortest_paths import ShortestPaths

Bools = NDArray[np.bool_]
Nodes = NDArray[np.intp]

# A fit whose last train is older than this is of no use now.
FRESH_S = 2.0
# Loops that are searched for in a solve, each in the whole graph; the others wait for their turn.
LOOPS = 8
# An edge is searched for again after so long; what was found counts for so long, while others have their turn.
_AGAIN_S, _KEPT_S = 3.0, 10.0
# For so long it is known whose turn it was.
_TURNS_S = 600.0
# By which clocks may have gone apart since a fit.
_DRIFT_PPB = 1_000.0
# Any odd number; names are hashes already.
_MIX = np.uint64(0x9E3779B97F4A7C15)


class EdgeLoops:
    """Of each pair of hosts that had its turn: a hash of their names, in ascending order, when that was, and the
    shortest path besides its own edges, ns.
    """

    def __init__(self) -> None:
        self._pair = np.zeros(0, np.uint64)
        self._tried_s, self._path_ns = np.zeros((2, 0))

    def lengths_ns(
        self,
        name: NDArray[np.uint64],
        edges: Edges,
        residual_ns: Floats,
        asked_ns: Floats,
        unchecked: Bools,
        now_s: float,
    ) -> Floats:
        """Per edge the length of its loop; inf where none is known that is shorter than what is asked about.

        name : hash of each host's. residual_ns : Solution.residual_ns. asked_ns : per host, the doubt that loops may
        lessen, 0 for none. unchecked : edges that need a loop.
        """
        length_ns = np.full(len(edges.i), np.inf)
        # Without drift: what contradicts in the solve is to contradict here.
        agrees = (edges.bound_age_s <= FRESH_S) & (np.abs(residual_ns) <= edges.bound_ns)
        largest_ns = np.maximum(asked_ns[edges.i], asked_ns[edges.j])
        wanted = np.flatnonzero(agrees & unchecked & (largest_ns > 0))
        if len(wanted):
            wanted = wanted[_has_others(len(name), edges, agrees, wanted)]
        if not len(wanted):
            return length_ns
        hides_ns = edges.bound_ns + _DRIFT_PPB * np.maximum(edges.bound_age_s, 0.0) + np.abs(residual_ns)
        i, j = edges.i[wanted], edges.j[wanted]
        pair = np.minimum(name[i], name[j]) * _MIX + np.maximum(name[i], name[j])
        due = self._due(pair, largest_ns[wanted], now_s)
        if len(due):
            graph, some = graph_of(len(name), edges.i[agrees], edges.j[agrees]), wanted[due]
            found_ns = _paths_ns(graph, hides_ns[agrees], edges.i[some], edges.j[some], largest_ns[some])
            self._enter(pair[due], found_ns, now_s)
        tried_s, path_ns = self._known(pair)
        age_s = now_s - tried_s
        kept = age_s <= _KEPT_S
        length_ns[wanted[kept]] = (hides_ns[wanted] + path_ns)[kept] + _DRIFT_PPB * age_s[kept]
        return length_ns

    def _due(self, pair: NDArray[np.uint64], largest_ns: Floats, now_s: float) -> Nodes:
        """Whose turn it is, one entry a pair: those whose last turn is longest ago, then those with most doubt."""
        tried_s = self._known(pair)[0]
        due = np.flatnonzero(now_s - tried_s >= _AGAIN_S)
        due = due[np.lexsort([-largest_ns[due], tried_s[due]])]
        first = np.unique(pair[due], return_index=True)[1]
        return due[np.sort(first)[:LOOPS]]

    def _enter(self, pair: NDArray[np.uint64], path_ns: Floats, now_s: float) -> None:
        kept = ~np.isin(self._pair, pair) & (now_s - self._tried_s <= _TURNS_S)
        pairs = np.concatenate([self._pair[kept], pair])
        order = np.argsort(pairs)
        self._pair = pairs[order]
        self._tried_s = np.concatenate([self._tried_s[kept], np.full(len(pair), now_s)])[order]
        self._path_ns = np.concatenate([self._path_ns[kept], path_ns])[order]

    def _known(self, pair: NDArray[np.uint64]) -> tuple[Floats, Floats]:
        """Of each pair when it had its turn, -inf for never, and what path was found."""
        tried_s, path_ns = np.full(len(pair), -np.inf), np.full(len(pair), np.inf)
        if len(self._pair):
            place = np.minimum(np.searchsorted(self._pair, pair), len(self._pair) - 1)
            had = self._pair[place] == pair
            tried_s[had], path_ns[had] = self._tried_s[place[had]], self._path_ns[place[had]]
        return tried_s, path_ns


def _paths_ns(graph: Graph, length_ns: Floats, i: Nodes, j: Nodes, most_ns: Floats) -> Floats:
    """From each of `i` to that of `j` by way of other hosts; inf above most_ns."""
    found_ns = np.empty(len(i))
    for place, (one, other, most) in enumerate(zip(i, j, most_ns, strict=True)):
        beside = (graph.i == one) & (graph.j == other) | (graph.i == other) & (graph.j == one)
        paths = ShortestPaths(graph, np.where(beside, np.inf, length_ns))
        found_ns[place] = paths.between(np.array([one]), np.array([other]), float(most))[0, 0]
    return found_ns


def _has_others(n: int, edges: Edges, agrees: Bools, wanted: Nodes) -> Bools:
    """Which of the `wanted` have at both ends an edge to another host, without which there is no loop."""
    ends = np.zeros(n, np.bool_)
    ends[edges.i[wanted]] = ends[edges.j[wanted]] = True
    near = np.flatnonzero(agrees & (ends[edges.i] | ends[edges.j]))
    low, high = np.minimum(edges.i[near], edges.j[near]), np.maximum(edges.i[near], edges.j[near])
    low, high = np.divmod(np.unique(low.astype(np.int64) * n + high), n)
    peers = np.bincount(low, minlength=n) + np.bincount(high, minlength=n)
    several: Bools = (peers[edges.i[wanted]] > 1) & (peers[edges.j[wanted]] > 1)
    return several
