"""What edges leave open: one constant of all clocks and one of all rates, in each component of the graph. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.anchors import AnchorSelection, select_anchors
from fabricpulse.clocksync.solve.graph import Floats
from fabricpulse.clocksync.solve.hosts import Hosts, Ints
from fabricpulse.clocksync.solve.shortest_paths import ShortestPaths

# By how much the root moves in a round: as much as edges are imprecise.
_ROOT_NS = 50.0


def _keepers(
    counts: NDArray[np.bool_], members: NDArray[np.intp], keeps: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Those of `members` whose lines say what the timeline is."""
    known = members[counts[members]]
    keepers = known[keeps[known]]
    return keepers if len(keepers) else known


def _middle(moved: Floats, keepers: NDArray[np.intp], root: int) -> float:
    """By how much most of `keepers` go on as they were: the median of what they have `moved` by, per host. Of an even
    number it is any value between two, and the one that moves the `root` least is taken: two halves that meet again
    would else meet in the middle, and a host that has not received the reply yet would be further from there than its
    bound.
    """
    ordered = np.sort(moved[keepers])
    low, high = float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])
    return min(max(float(moved[root]), low), high) if root in keepers else (low + high) / 2


def _with_root(hosts: Hosts, moved: Floats, keepers: NDArray[np.intp], root: int) -> float:
    """The same of time. Other coordinators do not know how this one moves the root, by which their hosts go as well: it
    moves by little in a round, unless most of the others exclude it.
    """
    middle, stays = _middle(moved, keepers, root), float(moved[root])
    excluded = np.abs(moved[keepers] - stays) > hosts.bound_ns[keepers]
    if 2 * int(excluded.sum()) > len(keepers):
        return middle
    return min(max(middle, stays - _ROOT_NS), stays + _ROOT_NS)


@dataclass(frozen=True)
class Anchors:
    """The selected anchors of all components, per host. disputed : the anchors of its component find no majority, so
    that what it knew of UTC before may rest on a falseticker.
    """

    survivors: NDArray[np.bool_]
    falsetickers: NDArray[np.bool_]
    disputed: NDArray[np.bool_]
    source_ns: Floats

    @classmethod
    def of(cls, hosts: int) -> "Anchors":
        """None yet."""
        survivors, falsetickers, disputed = np.zeros((3, hosts), np.bool_)
        return cls(survivors, falsetickers, disputed, np.full(hosts, np.inf))

    def take(self, selection: AnchorSelection, anchored: NDArray[np.intp], members: NDArray[np.intp]) -> None:
        """Enters the selection among those of `members` that are anchors."""
        self.survivors[anchored] = selection.survivors
        self.falsetickers[anchored] = selection.falsetickers
        self.source_ns[anchored] = selection.source_ns
        self.disputed[members] = selection.disputed


def gauge(
    hosts: Hosts,
    component: NDArray[np.int32],
    predicted: Ints,
    delta: Floats,
    counts: NDArray[np.bool_],
    keeps: NDArray[np.bool_],
    root: int,
    paths: ShortestPaths,
    anchors: Anchors,
) -> Floats:
    """Fixes the constant of each component. counts : Hosts.counting. anchors : gets the selections."""
    out = delta.copy()
    moved = (hosts.correction_ns - predicted) - delta
    for label in np.unique(component):
        members = np.flatnonzero(component == label)
        anchored = members[np.isfinite(hosts.anchor_ns[members])]
        known = _keepers(counts, members, keeps)
        goes_on = None
        if len(known):
            # A root that has a timeline of its own, or whose line is from before a pause, holds nothing back.
            holds = counts[root] and component[root] == label
            goes_on = _with_root(hosts, moved, known, root) if holds else _middle(moved, known, root)
        if len(anchored):
            wanted = hosts.anchor_ns[anchored] - predicted[anchored] - delta[anchored]
            selection = select_anchors(paths, anchored, wanted, hosts.anchor_bound_ns[anchored], goes_on)
            anchors.take(selection, anchored, members)
            constant = selection.constant_ns
        elif goes_on is not None:
            constant = goes_on
        else:
            # Nobody has kept time yet: the fleet's clock is the median clock of its hosts.
            constant = -float(np.median(predicted[members] + delta[members]))
        out[members] += constant
    return out


def gauge_rate(
    hosts: Hosts,
    component: NDArray[np.int32],
    rate: Floats,
    pull_ppb: float,
    counts: NDArray[np.bool_],
    keeps: NDArray[np.bool_],
    root: int,
    survivors: NDArray[np.bool_],
) -> Floats:
    """Fixes the fleet's frequency: it goes on as it was and moves slowly to the median of the hosts'
    frequencies.
    """
    out = rate.copy()
    moved = hosts.rate_ppb - rate
    for label in np.unique(component):
        members = np.flatnonzero(component == label)
        anchored = members[survivors[members]]
        known = _keepers(counts, members, keeps)
        if len(anchored):
            wanted = np.broadcast_to(hosts.anchor_rate_ppb, len(rate))
            out[members] += np.median(wanted[anchored] - rate[anchored])
        elif len(known):
            goes_on = _middle(moved, known, root)
            to_median = -float(np.median(rate[members] + goes_on))
            out[members] += goes_on + float(np.clip(to_median, -pull_ppb, pull_ppb))
        else:
            out[members] -= np.median(rate[members])
    return out
