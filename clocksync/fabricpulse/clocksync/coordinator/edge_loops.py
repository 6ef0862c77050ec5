"""Loops of edges that check an edge which the solve itself cannot: one that has all the say at one of its ends.

An edge whose residual exceeds its bound contradicts the solution and proves nothing, neither as part of a loop nor as
the edge that is checked. Around a loop of others the ends of the edge are no further apart, from where the solve put
them, than what all edges of the loop hide and their residuals. A way round that was found is kept as its hosts: what it
is worth is asked of the edges between them in each solve, so that it proves nothing any more once one of them does not.
Pure: time is passed in.
"""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.graph import Floats, Graph
from fabricpulse.clocksync.solve.graph_forms import graph_of
from fabricpulse.clocksync.solve.graph_solve import Edges
from fabricpulse.clocksync.solve.shortest_paths import ShortestPaths

Bools = NDArray[np.bool_]
Nodes = NDArray[np.intp]
Names = NDArray[np.uint64]

# A fit whose last train is older than this is of no use now.
FRESH_S = 2.0
# Loops that are searched for in a solve, each in the whole graph; the others wait for their turn.
LOOPS = 8
# An edge is searched for again after so long; the way that was found is kept for so long, while others have their turn.
_AGAIN_S, _KEPT_S = 3.0, 10.0
# For so long it is known whose turn it was.
_TURNS_S = 600.0
# By which clocks may have gone apart since a fit.
_DRIFT_PPB = 1_000.0
# Any odd number; names are hashes already.
_MIX = np.uint64(0x9E3779B97F4A7C15)


class EdgeLoops:
    """Of each pair of hosts that had its turn: a hash of their names, in ascending order, when that was, and the
    shortest path besides its own edges, by the names of its hosts.
    """

    def __init__(self) -> None:
        self._pair = np.zeros(0, np.uint64)
        self._tried_s = np.zeros(0)
        self._paths: dict[int, Names] = {}

    def lengths_ns(
        self,
        name: Names,
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
        pair = _pairs(name[i], name[j])
        due = self._due(pair, largest_ns[wanted], now_s)
        if len(due):
            graph, some = graph_of(len(name), edges.i[agrees], edges.j[agrees]), wanted[due]
            paths = _paths(graph, hides_ns[agrees], edges.i[some], edges.j[some], largest_ns[some])
            self._enter(pair[due], [name[path] for path in paths], now_s)
        kept = self._pair[now_s - self._tried_s <= _KEPT_S].tolist()
        self._paths = {its: self._paths[its] for its in kept if len(self._paths.get(its, ()))}
        path_ns = self._lengths_now_ns(pair, name, edges, np.where(agrees, hides_ns, np.inf))
        length_ns[wanted] = hides_ns[wanted] + path_ns
        return length_ns

    def _due(self, pair: Names, largest_ns: Floats, now_s: float) -> Nodes:
        """Whose turn it is, one entry a pair: those whose last turn is longest ago, then those with most doubt."""
        tried_s = self._tried(pair)
        due = np.flatnonzero(now_s - tried_s >= _AGAIN_S)
        due = due[np.lexsort([-largest_ns[due], tried_s[due]])]
        first = np.unique(pair[due], return_index=True)[1]
        return due[np.sort(first)[:LOOPS]]

    def _enter(self, pair: Names, paths: list[Names], now_s: float) -> None:
        kept = ~np.isin(self._pair, pair) & (now_s - self._tried_s <= _TURNS_S)
        pairs = np.concatenate([self._pair[kept], pair])
        order = np.argsort(pairs)
        self._pair = pairs[order]
        self._tried_s = np.concatenate([self._tried_s[kept], np.full(len(pair), now_s)])[order]
        self._paths.update(zip(pair.tolist(), paths, strict=True))

    def _tried(self, pair: Names) -> Floats:
        """When each pair had its turn, -inf for never."""
        tried_s = np.full(len(pair), -np.inf)
        if len(self._pair):
            place = np.minimum(np.searchsorted(self._pair, pair), len(self._pair) - 1)
            had = self._pair[place] == pair
            tried_s[had] = self._tried_s[place[had]]
        return tried_s

    def _lengths_now_ns(self, pair: Names, name: Names, edges: Edges, length_ns: Floats) -> Floats:
        """Of each pair the length of its way now, inf where none is kept. length_ns : per edge, inf for one that proves
        nothing."""
        kept_ns = np.full(len(pair), np.inf)
        if not self._paths:
            return kept_ns
        on_way = np.isin(name, np.concatenate(list(self._paths.values())))
        near = np.flatnonzero(on_way[edges.i] & on_way[edges.j])
        hops = _pairs(name[edges.i[near]], name[edges.j[near]])
        # Of parallel edges the shortest counts.
        order = np.lexsort([length_ns[near], hops])
        hops, first = np.unique(hops[order], return_index=True)
        hop_ns = dict(zip(hops.tolist(), length_ns[near[order[first]]].tolist(), strict=True))
        for place, its in enumerate(pair.tolist()):
            path = self._paths.get(its)
            if path is not None:
                kept_ns[place] = sum(hop_ns.get(hop, np.inf) for hop in _pairs(path[1:], path[:-1]).tolist())
        return kept_ns


def _pairs(one: Names, other: Names) -> Names:
    """Of each two hosts, in either order, by their names."""
    hashes: Names = np.minimum(one, other) * _MIX + np.maximum(one, other)
    return hashes


def _paths(graph: Graph, length_ns: Floats, i: Nodes, j: Nodes, most_ns: Floats) -> list[Nodes]:
    """The hosts from each of `i` to that of `j` by way of others; none where that is longer than most_ns."""
    found = []
    for one, other, most in zip(i.tolist(), j.tolist(), most_ns.tolist(), strict=True):
        beside = (graph.i == one) & (graph.j == other) | (graph.i == other) & (graph.j == one)
        paths = ShortestPaths(graph, np.where(beside, np.inf, length_ns))
        far_ns = paths.between(np.array([one]), np.arange(graph.n), most)[0]
        found.append(_way_back(paths, far_ns, one, other))
    return found


def _way_back(paths: ShortestPaths, far_ns: Floats, start: int, end: int) -> Nodes:
    """far_ns : of each host from the start, inf where it was not reached."""
    if not np.isfinite(far_ns[end]):
        return np.zeros(0, np.intp)
    graph, way = paths.graph, [end]
    while way[-1] != start:
        at = way[-1]
        # All edges are gone through for each hop: a path has few hops, and the search for it was dearer.
        near = np.flatnonzero((graph.i == at) | (graph.j == at))
        peer = graph.i[near] + graph.j[near] - at
        before = int(peer[np.argmin(far_ns[peer] + paths.length_ns[near])])
        if not far_ns[before] < far_ns[at]:  # shorter than what doubles resolve at this distance
            return np.zeros(0, np.intp)
        way.append(before)
    return np.array(way)


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
