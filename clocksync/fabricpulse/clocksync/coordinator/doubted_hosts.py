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
Keys = NDArray[np.int64]

# For so long all witnesses must be there. After a step fits rest on both sides of it for some seconds, and contradict.
_WHOLE_S = 3.0
# For so long a witness is missed.
_MISSED_S = 600.0
# Of a key, for the witness's slot.
_BITS = 32


class DoubtedHosts:
    """Of the hosts of `columns`. Of each that is in doubt the witnesses, in order: a key of its slot and the witness's,
    and when that was last there. At most one a neighbour that it has had in the last ten minutes.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._keys = np.zeros(0, np.int64)
        self._seen_s = np.zeros(0)
        self._loops = EdgeLoops()

    def watch(self, slots: NDArray[np.intp], edges: Edges, solution: Solution, now_s: float) -> None:
        """Enters what a solve of the hosts in `slots` found."""
        columns, now_ns = self._columns.at, solution.doubt_ns
        doubted = columns["joined"] & (columns["doubt_ns"] > 0)
        if not doubted.any() and not now_ns.any():
            self._keep(np.zeros(len(self._keys), np.bool_))
            return
        name, was_ns = columns["name"][slots], columns["doubt_ns"][slots]
        # A doubt that has just begun replaces what is known of an earlier one of the same host.
        self._keep(doubted[self._keys >> _BITS] & (now_s - self._seen_s <= _MISSED_S))
        its = (was_ns > 0) | (now_ns > 0)
        checked, hidden_ns = self._checked(edges, solution, name, was_ns, now_s)
        witnessed = np.zeros(len(name), np.bool_)
        doubted[slots] = now_ns > 0
        place = slots.astype(np.int64)
        for which, begin, end in zip(checked, (edges.i, edges.j), (edges.j, edges.i), strict=True):
            its_edges = np.flatnonzero(which & its[begin])
            hosts = begin[its_edges]
            witnessed[hosts] = True
            keys = place[hosts] << _BITS
            keys += place[end[its_edges]]
            self._see(keys, doubted, now_s)
        missed = np.zeros(len(columns), np.bool_)
        missed[self._keys[self._seen_s < now_s] >> _BITS] = True
        confirmed = its & ~missed[slots] & witnessed
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

    def witnesses(self) -> NDArray[np.int64]:
        """Their slots. Those whose leases have run out are to keep one: they are missed, and known when they return."""
        return np.unique(self._keys & (1 << _BITS) - 1)

    def renumber(self, slot_of: NDArray[np.int32]) -> None:
        """Hosts have new slots: slot_of[old], -1 for those that have none any more."""
        owner, witness = slot_of[self._keys >> _BITS], slot_of[self._keys & (1 << _BITS) - 1]
        self._keys = (owner.astype(np.int64) << _BITS) | witness
        self._keep(owner >= 0)
        order = np.argsort(self._keys)
        self._keys, self._seen_s = self._keys[order], self._seen_s[order]

    def _see(self, keys: Keys, doubted: Bools, now_s: float) -> None:
        """These witnesses are there; those that are new count where a host is `doubted` now, by slot."""
        keys.sort()
        place, known = _places(keys, self._keys)
        self._seen_s[place[known]] = now_s
        new = ~known
        new[1:] &= keys[1:] != keys[:-1]
        new &= doubted[keys >> _BITS]
        if not new.any():
            return
        place = place[new]
        self._keys = np.insert(self._keys, place, keys[new])
        self._seen_s = np.insert(self._seen_s, place, now_s)

    def _keep(self, which: Bools) -> None:
        if not which.all():
            self._keys, self._seen_s = self._keys[which], self._seen_s[which]


def _places(values: Keys, ordered: Keys) -> tuple[Nodes, Bools]:
    """Where each of `values` is among `ordered`, or would be; and whether it is there. Both are in order: a stable sort
    merges them, in less than half of the time of searches.
    """
    merged = np.argsort(np.concatenate([ordered, values]), kind="stable")
    # Of equals those of `ordered` come first.
    place = np.flatnonzero(merged >= len(ordered)) - np.arange(len(values))
    known = np.zeros(len(values), np.bool_)
    after = np.flatnonzero(place)
    known[after] = ordered[place[after] - 1] == values[after]
    place -= known
    return place, known
