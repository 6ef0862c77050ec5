"""The tree of the fabric: machines in leaves in pods, as far as minimum two-way delays tell it. Pure.

From the top down. All NICs are one group at first, and the pairs of a group are of its most distant class, except those
that are nearer by a margin: NICs that such pairs hold together are a group below it. The terms of all NICs are fitted
again with what is known of each pair, and the next level is looked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.tree.branches import other_end
from fabricpulse.diagnosis.tree.grouping import ENOUGH, grouped, margins
from fabricpulse.diagnosis.tree.levels import Kind, kinds_of
from fabricpulse.diagnosis.tree.measured import Delays, Floats, Ints, NicFacts
from fabricpulse.diagnosis.tree.stack_terms import (
    FAR_SIDES,
    Pairs,
    first_terms,
    highest_mode,
    moved_to_mode,
    refined,
    width_of,
)

# Standard deviations of a pair between the two classes that it could be of, and the least distance that is believed.
_MARGIN = 4.0
_LEAST_NS = 300.0
# Nats of one pair, at most: how wrong a pair is that is wrong for a reason that nobody thought of.
_MOST_NATS = 8.0
# Of a pair that is further than its class: its queue may never have been empty. Then it tells nothing.
_CONGESTED = 4.0
_MOST_LEVELS = 5
# Pairs that are looked at together: bounds memory.
_AT_ONCE = 1 << 14
# Standard deviation by which trees are compared.
_USUAL_NS = 200.0


@dataclass(frozen=True)
class Group:
    """NICs that are nearer to one another than to the rest of the group above. parent : its number, -1 for none; a
    parent comes first. offset_ns : of its most distant pairs, against those of the whole. nics : by number, those of
    the groups below too.
    """

    parent: int
    kind: Kind
    offset_ns: float
    nics: tuple[int, ...]


@dataclass(frozen=True)
class FabricTree:
    """groups : the first one is the whole. group_of : of each NIC the smallest group that it is in. nats : by which its
    pairs prefer that. terms_ns : see stack_terms. sigma_ns : of a pair that is not congested.
    """

    nics: tuple[NicFacts, ...]
    groups: tuple[Group, ...]
    group_of: Ints
    nats: Floats
    terms_ns: Floats
    sigma_ns: float
    delays: Delays
    score: Floats = field(default_factory=lambda: np.zeros(0))

    def above(self, group: int) -> list[int]:
        """A group and those above it, the smallest first."""
        found = []
        while group >= 0:
            found.append(group)
            group = self.groups[group].parent
        return found

    def of_kind(self, kind: Kind) -> Ints:
        """Of each NIC the number of its group of this kind, -1 where it is not known."""
        by_group = np.full(len(self.groups), -1, np.int64)
        for number, group in enumerate(self.groups):
            if group.kind is kind:
                by_group[number] = number
            elif group.parent >= 0:
                by_group[number] = by_group[group.parent]
        found: Ints = by_group[self.group_of]
        return found

    def confidence(self) -> Floats:
        """Of each NIC the probability that it is in its group: 0 where none is known below the whole."""
        p = 1 / (1 + np.exp(-np.clip(self.nats, -50, 50)))
        return np.where(self.group_of > 0, p, 0.0)

    def contradictions(self) -> float:
        """Share of the pairs that are nearer than the class of the group that holds both, which no queue explains: of a
        tree that is right few; of one that is wrong, many.
        """
        if not len(self.delays):
            return 0.0
        # Nearer than where no smaller group is known, else so much that one of these would be the better class.
        limit = np.array([group.offset_ns for group in self.groups]) - self.margin_ns
        known = np.full(len(self.groups), -np.inf)
        np.maximum.at(known, [max(group.parent, 0) for group in self.groups[1:]], self.limits_ns()[1:])
        limit = np.where(np.isfinite(known), known, limit)
        return float(np.mean(self.without_terms() < limit[self.separate()]))

    @property
    def margin_ns(self) -> float:
        """Between two classes that are distinguished."""
        return max(_MARGIN * self.sigma_ns, _LEAST_NS)

    def without_terms(self) -> Floats:
        """Of each pair what the fabric adds, ns: of a pair that fits the offset of its group."""
        d = self.delays
        found: Floats = d.two_way_ns - self.terms_ns[d.a]
        found -= self.terms_ns[d.b]
        return found

    def residuals(self) -> Floats:
        """Of each pair, ns, against the terms of both NICs and the class of the group that holds both."""
        found = self.without_terms()
        found -= np.array([group.offset_ns for group in self.groups])[self.separate()]
        return found

    def limits_ns(self) -> Floats:
        """Of each group: what the fabric adds at most to a pair that is of this group and not of the one above, by half
        of what lies between the two, and by what is distinguished.
        """
        offset = np.array([group.offset_ns for group in self.groups])
        above = offset[[max(group.parent, 0) for group in self.groups]]
        found: Floats = above - np.maximum(self.margin_ns, (above - offset) / 2)
        return found

    def separate(self) -> Ints:
        """Of each pair that was measured the number of the smallest group that both are in."""
        return common(self.groups, self.group_of, self.delays)


def common(groups: Sequence[Group], group_of: Ints, delays: Delays) -> Ints:
    """The smallest group above both, pair by pair. group_of : each NIC's."""
    parent = np.array([group.parent for group in groups])
    depth = np.zeros(len(groups), np.int64)
    for number, up in enumerate(parent.tolist()):
        depth[number] = depth[up] + 1 if up >= 0 else 0
    found = np.empty(len(delays), np.int64)
    for start in range(0, len(found), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        x, y = group_of[delays.a[rows]], group_of[delays.b[rows]]
        for _ in range(2 * _MOST_LEVELS + 2):
            deeper = (x != y) & (depth[x] >= depth[y])
            other = (x != y) & ~deeper
            x[deeper] = parent[x[deeper]]
            y[other] = parent[y[other]]
        found[rows] = x
    return found


def tree_of(nics: Sequence[NicFacts], delays: Delays, terms: Floats | None = None) -> FabricTree:
    """The tree of `nics`. What the delays do not separate stays in one group. terms : of the last tree of these NICs,
    NaN of one that is new.

    The search may end in a tree that fits badly, depending upon where it starts: of several the best is taken.
    """
    pairs = Pairs(len(nics), delays.a, delays.b)
    starts = [first_terms(pairs, delays.two_way_ns, side) for side in FAR_SIDES]
    if terms is not None and np.isfinite(terms).any():
        starts.append(np.where(np.isfinite(terms), terms, np.nanmedian(terms)))

    def search(start: Floats) -> FabricTree:
        return _Search(tuple(nics), delays, pairs, start).run()

    # One after the other: of a large fleet each tree is megabytes.
    best = search(starts[0])
    least = _cost(best)
    for start in starts[1:]:
        found = search(start)
        if (cost := _cost(found)) < least:
            best, least = found, cost
    return best


def _cost(tree: FabricTree) -> float:
    """Nats that a tree leaves unexplained, and those that its groups have to earn."""
    r = tree.residuals()
    r /= _USUAL_NS
    np.square(r, out=r)
    r /= 2
    return float(np.minimum(r, _MOST_NATS, out=r).sum()) + ENOUGH * len(tree.groups)


class _Search:
    def __init__(self, nics: tuple[NicFacts, ...], delays: Delays, pairs: Pairs, terms: Floats) -> None:
        self._nics, self._delays = nics, delays
        n = len(nics)
        self._parents = [-1]
        self._offsets = [0.0]
        self._group = np.zeros(n, np.int64)
        self._of_pair = np.zeros(len(delays), np.int64)  # the smallest group of both
        self._nats = np.zeros(n)
        self._score = np.zeros(len(delays))
        self._pairs, self._terms = pairs, terms
        self._sigma = 60.0

    def run(self) -> FabricTree:
        d = self._delays
        if len(d):
            self._fit([0])
            fresh = [0]
            for _ in range(_MOST_LEVELS):
                fresh = self._divide(fresh)
                if not fresh:
                    break
                self._fit(fresh)
        kinds, _ = self._kinds()
        self._parents, self._offsets, self._group = other_end(
            self._parents, self._offsets, kinds, self._group
        )
        kinds, members = self._kinds()
        groups = tuple(
            Group(parent, kind, offset, tuple(nics))
            for parent, kind, offset, nics in zip(self._parents, kinds, self._offsets, members, strict=True)
        )
        return FabricTree(
            self._nics, groups, self._group, self._nats, self._terms, self._sigma, d, self._score
        )

    def _kinds(self) -> tuple[list[Kind], list[list[int]]]:
        """Of each group its kind, and its NICs."""
        members: list[list[int]] = [[] for _ in self._parents]
        for nic, number in enumerate(self._group.tolist()):
            at = number
            while at >= 0:
                members[at].append(nic)
                at = self._parents[at]
        return kinds_of(self._parents, self._offsets, members, self._nics), members

    def _residuals(self) -> Floats:
        r = self._pairs.without(self._delays.two_way_ns, self._terms)
        r -= np.array(self._offsets)[self._of_pair]
        return r

    def _fit(self, fresh: list[int]) -> None:
        """Offsets of new groups, then all terms."""
        for _ in range(2):
            r = self._residuals()
            order = np.argsort(self._of_pair, kind="stable")
            starts = np.searchsorted(self._of_pair[order], np.arange(len(self._parents) + 1))
            for number in fresh:
                mine = r[order[starts[number] : starts[number + 1]]]
                if len(mine):
                    self._offsets[number] += highest_mode(mine)
            del r, order
            r = self._residuals()
            self._sigma = width_of(r[np.abs(r) < 4000])
            del r
            # What is nearer than its group may be of a group that is not known yet.
            y = self._delays.two_way_ns - np.array(self._offsets)[self._of_pair]
            self._terms = refined(self._pairs, y, self._terms, self._sigma)
            moved = moved_to_mode(self._pairs, y, self._terms, self._sigma)
            self._terms = refined(self._pairs, y, moved, self._sigma)
            self._offsets[0] = 0.0
        r = self._residuals()
        self._sigma = width_of(r[np.abs(r) < 4 * self._sigma])

    def _divide(self, fresh: list[int]) -> list[int]:
        """Looks for groups below those that are new. Returns their numbers."""
        d = self._delays
        rows = np.flatnonzero(np.isin(self._of_pair, fresh))
        if not len(rows):
            return []
        r = self._residuals()[rows]
        score = _scores(r, self._sigma)
        self._score[rows] = score
        a, b = d.a[rows], d.b[rows]
        found = grouped(len(self._nics), a, b, score)
        _, labels, sizes = np.unique(found, return_inverse=True, return_counts=True)
        margin = margins(labels, a, b, score)
        below: dict[int, list[int]] = {}
        for label in np.flatnonzero(sizes > 1).tolist():
            nics = np.flatnonzero(labels == label) if len(sizes) < 50 else None
            below.setdefault(int(self._group[nics[0]]) if nics is not None else -1, []).append(label)
        if -1 in below:
            first = np.full(len(sizes), -1)
            first[labels[::-1]] = np.arange(len(labels))[::-1]
            labels_of = below.pop(-1)
            for label in labels_of:
                below.setdefault(int(self._group[first[label]]), []).append(label)
        new: list[int] = []
        number_of = np.full(len(sizes), -1)
        for parent, several in below.items():
            if parent not in fresh:
                continue
            in_parent = self._group == parent
            rest = in_parent & (sizes[labels] == 1)
            whole = int(np.count_nonzero(in_parent))
            if len(several) == 1 and sizes[several[0]] == whole:
                continue
            for label in several:
                number_of[label] = len(self._parents)
                new.append(len(self._parents))
                self._parents.append(parent)
                self._offsets.append(self._offsets[parent])
            if len(several) == 1 and 2 <= np.count_nonzero(rest) <= 4 * sizes[several[0]]:
                # One branch of an unrooted tree has two ends.
                self._rest(parent, rest, new, labels, number_of)
        moved = number_of[labels] >= 0
        self._group = np.where(moved, number_of[labels], self._group)
        self._nats = np.where(moved, margin, self._nats)
        groups = self._group
        same = groups[a] == groups[b]
        inside = same & np.isin(groups[a], new)
        self._of_pair[rows[inside]] = groups[a[inside]]
        return new

    def _rest(
        self, parent: int, rest: NDArray[np.bool_], new: list[int], labels: Ints, number_of: Ints
    ) -> None:
        number_of[labels[rest]] = len(self._parents)
        new.append(len(self._parents))
        self._parents.append(parent)
        self._offsets.append(self._offsets[parent])


def _scores(r: Floats, sigma: float) -> Floats:
    """Nats for being nearer than the class, of a Gaussian of each class; r below 0 is nearer."""
    t = max(_MARGIN * sigma, _LEAST_NS)
    nats = np.clip(-2 * t * (r + t) / sigma**2, -_MOST_NATS, _MOST_NATS)
    nats[r > _CONGESTED * sigma] = 0.0
    return nats
