"""Which hosts have been in doubt, how far each may be off, and until when. Pure: time is passed in.

A host in doubt has witnesses: the hosts at the other ends of those of its edges that further edges check. The present
measurements of the edges replace the earlier ones as soon as all witnesses have been there for a while: the error is
over then, or is as large as it seems. After a migration, paths of which one way is longer lose their say in the solve,
and the one that has all of it is not checked any more: but around a loop of edges, none of which contradicts the
solution, errors are no larger than what all of its edges hide (edge_loops). So much of the doubt is left then. A
witness that no longer reports is waited for during ten minutes; after that the others decide, if any of them could
contradict. With two hosts none can, and the doubt stays. It ends with the lease of the host and with its sidecar; a
coordinator that was just started has none.
"""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.coordinator.edge_loops import FRESH_S, EdgeLoops
from fabricpulse.clocksync.coordinator.members import Columns
from fabricpulse.clocksync.solve.graph import Floats
from fabricpulse.clocksync.solve.graph_solve import Edges, Solution

Bools = NDArray[np.bool_]
Nodes = NDArray[np.intp]
Names = NDArray[np.uint64]

# For so long all witnesses must be there. After a step fits rest on both sides of it for some seconds, and contradict.
_WHOLE_S = 3.0
# For so long a witness is missed.
_MISSED_S = 600.0
# Any odd number; names are hashes already.
_MIX = np.uint64(0x9E3779B97F4A7C15)


class DoubtedHosts:
    """Of the hosts of `columns`. Of each that is in doubt the witnesses: hash of its name, hash of its name and the
    witness's, in order, and when it was last there. At most one a neighbour that it has had in the last ten minutes.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._owner, self._pair = np.zeros((2, 0), np.uint64)
        self._seen_s = np.zeros(0)
        self._loops = EdgeLoops()

    def watch(self, slots: NDArray[np.intp], edges: Edges, solution: Solution, now_s: float) -> None:
        """Enters what a solve of the hosts in `slots` found."""
        columns, now_ns = self._columns.at, solution.doubt_ns
        doubted = columns["joined"] & (columns["doubt_ns"] > 0)
        if not doubted.any() and not now_ns.any():
            self._keep(np.zeros(len(self._owner), np.bool_))
            return
        name, was_ns = columns["name"][slots], columns["doubt_ns"][slots]
        # A doubt that has just begun replaces what is known of an earlier one of the same name.
        owned = _places(self._owner, np.sort(columns["name"][doubted]))[1]
        self._keep(owned & (now_s - self._seen_s <= _MISSED_S))
        its = (was_ns > 0) | (now_ns > 0)
        checked, hidden_ns = self._checked(edges, solution, name, was_ns, now_s)
        witnessed = np.zeros(len(name), np.bool_)
        for which, begin, end in zip(checked, (edges.i, edges.j), (edges.j, edges.i), strict=True):
            its_edges = np.flatnonzero(which & its[begin])
            hosts = begin[its_edges]
            witnessed[hosts] = True
            self._see(name, hosts, end[its_edges], now_ns > 0, now_s)
        missed = _places(name, np.sort(self._owner[self._seen_s < now_s]))[1]
        confirmed = its & ~missed & witnessed
        since_s = np.where(confirmed & (now_ns < was_ns), columns["whole_s"][slots], now_s)
        over = now_s - since_s >= _WHOLE_S
        left_ns = np.maximum(now_ns, hidden_ns)
        columns["doubt_ns"][slots] = np.where(over, left_ns, np.maximum(was_ns, now_ns))
        columns["whole_s"][slots] = np.where(over, now_s, since_s)

    def _checked(
        self, edges: Edges, solution: Solution, name: NDArray[np.uint64], doubt_ns: Floats, now_s: float
    ) -> tuple[list[Bools], Floats]:
        """Of which edges the first end, and then of which the second, can be confirmed: they are measured now, and
        checked by further edges. And per host how large an error those may hide that have no say in the solve.
        """
        known, hidden_ns = np.isfinite(solution.held_out_ns), np.zeros(len(doubt_ns))
        # What is unknown stays so: more than one of its edges is wrong, perhaps by the same.
        asked_ns = np.where(np.isfinite(doubt_ns) & (solution.doubt_ns < doubt_ns), doubt_ns, 0.0)
        loop_ns = self._loops.lengths_ns(name, edges, solution.residual_ns, asked_ns, ~known, now_s)
        checked = []
        for ends in edges.i, edges.j:
            smaller = loop_ns < asked_ns[ends]
            np.maximum.at(hidden_ns, ends[smaller], loop_ns[smaller])
            checked.append(smaller | known & (edges.bound_age_s <= FRESH_S))
        return checked, hidden_ns

    def _see(self, name: Names, hosts: Nodes, witnesses: Nodes, doubted: Bools, now_s: float) -> None:
        """Witnesses of `hosts` are there; those that are new count where a host is `doubted` now."""
        pair = name[hosts] * _MIX
        pair += name[witnesses]
        # In order, so that each search goes on near where the one before it ended.
        order = np.argsort(pair)
        pair = pair[order]
        place, known = _places(pair, self._pair)
        self._seen_s[place[known]] = now_s
        new = ~known
        new[1:] &= pair[1:] != pair[:-1]
        new &= doubted[hosts[order]]
        place = place[new]
        self._owner = np.insert(self._owner, place, name[hosts[order[new]]])
        self._pair = np.insert(self._pair, place, pair[new])
        self._seen_s = np.insert(self._seen_s, place, now_s)

    def _keep(self, which: Bools) -> None:
        if not which.all():
            self._owner, self._pair, self._seen_s = (
                self._owner[which], self._pair[which], self._seen_s[which],
            )  # fmt: skip


def _places(values: Names, ordered: Names) -> tuple[Nodes, Bools]:
    """Where each of `values` is among `ordered`, or would be; and whether it is there. The sets that np.isin makes took
    two seconds of a core for 800,000 edges.
    """
    place = np.searchsorted(ordered, values)
    if not len(ordered):
        return place, np.zeros(len(values), np.bool_)
    return place, ordered[np.minimum(place, len(ordered) - 1)] == values
