"""Which part of a fleet that is cut in several speaks for it.

Without anchors fleet time is right by definition, and that can hold for one part only. Each solve that speaks for the
fleet says what it rested on (`Quorum`); the hosts that it placed remember that and say it with their next report. A
later solve speaks for the fleet if it has more than half of those hosts, or half of them and the root. Coordinators
need not remember anything, nor ask each other.

A host that reports to two coordinators may give each of them its quorum. So a root counts only where as many hosts name
it in their reports. Each host names one, that of the last quorum that it was part of: a new root, and one that was
away, is announced in one round and counts in the next. A new one is announced with an odd number of hosts, so that two
halves that have announced one each cannot both count it, whatever coordinators remember. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.wire.limits import NAMED_S
from fabricpulse.clocksync.wire.messages import Quorum
from fabricpulse.clocksync.wire.quorums import SAME_ROUND_S
from fabricpulse.clocksync.wire.report_table import Records, name_hash


@dataclass(frozen=True)
class Election:
    """What the reports of one solve, in rows, say of the last quorum; None when there was none.

    votes : the row's host was part of it, or is new. keeps : its line is the fleet's; a host that was away brings its
    own, which must not move the others'. root : row of the root of the timeline, if one of those named is
    there. decides : that row decides between two halves: it is the root that all agree on. order : by which a new root
    is chosen, the same number for a host wherever it reports; the least wins. named : `order` of the root that each row
    names, 0 where that was too long ago; None where no row knows of any. followed : hosts may still say that they are
    synchronized with the root, also where it is no longer part of the fleet, or does not report here. former : row of
    the root that last counted at this coordinator, if it is there.
    """

    quorum: Quorum | None
    votes: NDArray[np.bool_]
    keeps: NDArray[np.bool_]
    root: int | None
    decides: bool
    order: NDArray[np.uint64]
    named: NDArray[np.uint64] | None = None
    followed: bool = False
    former: int | None = None

    @classmethod
    def of(
        cls,
        rows: Records,
        order: NDArray[np.uint64],
        remembered: Quorum | None,
        name_of: Callable[[int], str],
        *,
        rested: NDArray[np.bool_],
        reporting: NDArray[np.bool_],
        away_s: float,
        fleet_s: int | None,
        first: str = "",
    ) -> "Election":
        """From `rows`. order : name_hash of each row's host. remembered : counts when no row knows of any.

        name_of : the host with a name_hash, "" if none is known. fleet_s : fleet time; nothing that a row says to be
        from later counts. first : root to take where there was no quorum. away_s : a host that was part of a
        quorum so much older than the last does not vote: it was away, or in another part; unless it is one of those
        that `rested` in what is remembered (the reply was lost). reporting : rows of hosts that have reported just now;
        others do not vote. Who has lost the others must know it before they, who have lost the root, take another.
        """
        spoken = rows["quorum_s"] >= 0
        if fleet_s is not None:
            spoken &= rows["quorum_s"] <= fleet_s + SAME_ROUND_S
        if not spoken.any():
            named = name_hash(remembered.root if remembered is not None else first)
            root = _row_of(order, named)
            decides = root is not None and bool(reporting[root])
            return cls(remembered, reporting, np.ones(len(rows), np.bool_), root, decides, order)
        latest = int(rows["quorum_s"][spoken].max())
        same = rows[spoken & (rows["quorum_s"] >= latest - SAME_ROUND_S)]
        named = _chosen(same["quorum_root"], order, name_of)
        quorum = Quorum(
            latest,
            int(same["quorum_hosts"].max()) | (len(np.unique(same["quorum_root"])) > 1),
            name_of(named),
            bool(same["quorum_anchored"].any()),
        )
        part = spoken & (rows["quorum_s"] >= latest - away_s)
        if remembered is not None and remembered.moment_s >= latest:
            part |= rested
        # Where two coordinators named one each in the same round, only the one that all choose goes on.
        root = _row_of(order, named)
        decides = root is not None and bool(reporting[root])
        recent = spoken if fleet_s is None else spoken & (rows["quorum_s"] >= fleet_s - NAMED_S)
        roots = np.where(recent, rows["quorum_root"], 0)
        keeps = part & (roots == np.uint64(named))
        keeps = keeps if keeps.any() else part
        return cls(quorum, reporting & (part | ~spoken), keeps, root, decides, order, roots)

    def has_quorum(self, part: NDArray[np.bool_], anchored: bool) -> bool:
        """Whether the rows in `part` speak for the fleet. anchored : one of them is an anchor, so that UTC is right."""
        if self.quorum is None or anchored:
            return True
        if self.quorum.anchored:
            return False
        # A root that is here is not with the other half, whatever it was part of; who names another one now may be.
        votes = part & self.votes
        half = self.decides and self.root is not None and bool(part[self.root])
        if half and self.named is not None:
            half = not (votes & (self.named != 0) & (self.named != self.order[self.root])).any()
        return _enough(votes, self.quorum.hosts, half=half)

    def names(self, part: NDArray[np.bool_], root: int) -> bool:
        """Whether as many of the rows in `part` name the host of row `root` as a quorum needs."""
        if self.quorum is None or self.named is None:
            return True
        naming = part & self.votes & (self.named == self.order[root])
        return _enough(naming, self.quorum.hosts, half=bool(naming[root]))


def _enough(votes: NDArray[np.bool_], hosts: int, *, half: bool) -> bool:
    twice = 2 * int(votes.sum())
    return twice > hosts or (half and twice == hosts)


def _chosen(named: NDArray[np.uint64], order: NDArray[np.uint64], name_of: Callable[[int], str]) -> int:
    """Of roots that are named in one round, one a row, the one that most name, here or not; of several the least.

    But not one that was never known here while another is here: a host that reports to coordinators of two fleets
    brings the root of the other fleet, and would leave this one without.
    """
    roots, counts = np.unique(named, return_counts=True)
    ranked = roots[np.argsort(-counts, kind="stable")].tolist()
    first: int = ranked[0]
    if name_of(first):
        return first
    return next((root for root in ranked if _row_of(order, root) is not None), first)


def _row_of(order: NDArray[np.uint64], named: int) -> int | None:
    found = np.flatnonzero(order == np.uint64(named))
    return int(found[0]) if len(found) else None
