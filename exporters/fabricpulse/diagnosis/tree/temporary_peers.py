"""Which pairs to measure next, so that the tree comes to stand: a few more peers for some NICs, for a while. Pure.

Below each group its parts (groups and single NICs) are either known to be apart, or a pair between them can tell. A
pair is worth more the larger the parts are; NICs whose names follow one another, and those whose hosts share a leaf on
another rail, are tried first. Such a guess only says where to look: what is measured decides.
"""

import random
import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from fabricpulse.diagnosis.tree.confirmed import UNDIVIDED, confirmed, parts_of
from fabricpulse.diagnosis.tree.fabric_tree import FabricTree
from fabricpulse.diagnosis.tree.grouping import ENOUGH
from fabricpulse.diagnosis.tree.levels import Kind

_NEIGHBOURS = 4
# Nats that a NIC's own pairs should have for its place: two pairs.
_PLACED = 2 * ENOUGH
# Pairs of two parts that are tried one by one; of more some are drawn.
_ALL_TRIED = 16
# Round trips after which a pair that tells nothing is not asked again.
_GIVEN_UP = 20_000


def temporary_peers(
    tree: FabricTree, most: int | Sequence[int], seed: int, tried: Collection[tuple[int, int]] = ()
) -> list[tuple[int, int]]:
    """Pairs of NICs, none of them more than `most` times, of different hosts; [] when nothing is left to find out.

    most : of all NICs, or of each. seed : of the order in which NICs are looked at, another one each round. tried :
    pairs, the lower number first, that do not answer.
    """
    left = [most] * len(tree.nics) if isinstance(most, int) else list(most)
    return _Choice(tree, left, tried, random.Random(seed)).pairs()  # noqa: S311 -- nobody gains by guessing it


class _Choice:
    def __init__(
        self, tree: FabricTree, left: list[int], tried: Collection[tuple[int, int]], rng: random.Random
    ) -> None:
        self._tree, self._rng = tree, rng
        self._left = left
        self._found: list[tuple[int, int]] = []
        # One number a pair: of a large fleet there are too many for tuples. Those of the delays are in order.
        self._measured = tree.delays.a * len(tree.nics) + tree.delays.b
        self._sorted = array("q", self._measured.tobytes())
        self._tried = {self._number(a, b) for a, b in tried}  # and those of this choice
        self._parents = [group.parent for group in tree.groups]
        self._near = _Neighbours(tree)

    def pairs(self) -> list[tuple[int, int]]:
        tree = self._tree
        self._sum_up()
        children: dict[int, list[int]] = defaultdict(list)
        for number, parent in enumerate(self._parents):
            children[parent].append(number)
        direct: dict[int, list[int]] = defaultdict(list)
        for nic, number in enumerate(tree.group_of.tolist()):
            direct[number].append(nic)
        self._confirm()
        for number, group in enumerate(tree.groups):
            below, singles = children[number], direct[number]
            if below or group.kind is Kind.FABRIC or self._may_be_divided(number):
                self._within(number, below, singles)
        return self._found

    def _sum_up(self) -> None:
        """By group, of each two of its parts the nats of their pairs; of the pairs that speak for these, how many."""
        tree = self._tree
        group, x, y = parts_of(tree)
        self._inside = np.bincount(group[tree.score < 0], minlength=len(tree.groups))
        # In one column, in order of the groups.
        least, count = -len(tree.nics), len(tree.nics) + len(tree.groups)
        low, high = np.minimum(x, y) - least, np.maximum(x, y) - least
        parts, which = np.unique((group * count + low) * count + high, return_inverse=True)
        nats = np.bincount(which, tree.score, len(parts))
        first, high = np.divmod(parts, count)
        group, low = np.divmod(first, count)
        low, high = low + least, high + least
        # A near pair whose queues are never empty looks like a far one: groups are held apart by two pairs.
        use = (nats <= -2 * ENOUGH) | ((nats <= -ENOUGH) & (low < 0))
        self._apart = low[use], high[use], nats[use]
        self._starts = np.searchsorted(group[use], np.arange(len(tree.groups) + 1))

    def _part(self, nic: int, group: int) -> int:
        at, number = -1 - nic, int(self._tree.group_of[nic])
        while number != group:
            at, number = number, self._parents[number]
        return at

    def _may_be_divided(self, number: int) -> bool:
        group = self._tree.groups[number]
        size = len(group.nics)
        if self._inside[number] < min(UNDIVIDED * size, size * (size - 1) // 2):
            return True
        # Of machines nothing is divided; on hosts that are none there is nothing below a leaf.
        return group.kind is not Kind.MACHINE and any(self._tree.nics[nic].virtual for nic in group.nics)

    def _confirm(self) -> None:
        """NICs whose place is not certain: by one pair, or none that fits, or contested."""
        tree = self._tree
        weak = np.flatnonzero(
            (tree.group_of > 0) & ((tree.nats < _PLACED) | (confirmed(tree).group_of != tree.group_of))
        ).tolist()
        self._rng.shuffle(weak)
        for nic in weak:
            mates = [m for m in tree.groups[int(tree.group_of[nic])].nics if m != nic]
            self._any([nic], self._rng.sample(mates, min(len(mates), 8)))

    def _within(self, number: int, below: list[int], singles: list[int]) -> None:
        """Parts of a group that may belong together."""
        groups = self._tree.groups
        parts = sorted(below, key=lambda part: -len(groups[part].nics))
        self._rng.shuffle(singles)
        apart: dict[int, set[int]] = defaultdict(set)
        once: dict[int, list[int]] = defaultdict(list)
        rows = slice(self._starts[number], self._starts[number + 1])
        for x, y, nats in zip(*(column[rows].tolist() for column in self._apart), strict=True):
            apart[x].add(y)
            apart[y].add(x)
            if nats > -2 * ENOUGH:
                once[x].append(y)
                once[y].append(x)
        for nic in singles:
            # So is one that seems to be alone.
            if parts and apart[-1 - nic].issuperset(parts):
                for part in once[-1 - nic]:
                    if part >= 0:
                        apart[-1 - nic].discard(part)
                        apart[part].discard(-1 - nic)
        for nic in singles:
            for other in self._near.of(nic):
                if self._left[nic] <= 0:
                    break
                if not self._is_in(other, number):
                    continue
                part = self._part(other, number)
                if part != -1 - nic and part not in apart[-1 - nic] and self._pair(nic, other):
                    apart[-1 - nic].add(part)
                    apart[part].add(-1 - nic)
        live = parts + [-1 - nic for nic in singles]
        wanted = [*parts, *(-1 - nic for nic in singles)]
        self._rng.shuffle(wanted)
        for part in wanted:
            live = self._try(part, live, len(parts), apart[part], apart)

    def _try(
        self, part: int, live: list[int], large: int, apart: set[int], all_apart: dict[int, set[int]]
    ) -> list[int]:
        """Pairs of one part with others that it may belong to, the largest first. Returns those that have room yet."""
        mine = self._nics(part)
        room = sum(self._left[nic] for nic in mine)
        full: set[int] = set()
        first = min(large, len(live))
        start = self._rng.randrange(first, len(live)) if len(live) > first else first
        for other in [*live[:first], *live[start:], *live[first:start]]:
            if room <= 0:
                break
            if other == part or other in apart:
                continue
            theirs = self._nics(other)
            if not any(self._left[nic] > 0 for nic in theirs):
                full.add(other)
                continue
            if self._any(mine, theirs):
                room -= 1
                apart.add(other)  # of this round
                all_apart[other].add(part)
        return [other for other in live if other not in full] if len(full) > 16 else live

    def _nics(self, part: int) -> tuple[int, ...]:
        return (-1 - part,) if part < 0 else self._tree.groups[part].nics

    def _is_in(self, nic: int, group: int) -> bool:
        number = int(self._tree.group_of[nic])
        while number > group:
            number = self._parents[number]
        return number == group

    def _any(self, mine: Iterable[int], theirs: Iterable[int]) -> bool:
        """One pair between two parts that has not been measured."""
        free = [nic for nic in theirs if self._left[nic] > 0]
        own = [nic for nic in mine if self._left[nic] > 0]
        if len(own) * len(free) <= _ALL_TRIED:
            # One that is left out by chance would be left out again: the seed is that of the round.
            several = [(x, y) for x in own for y in free]
            self._rng.shuffle(several)
        else:
            several = [(self._rng.choice(own), self._rng.choice(free)) for _ in range(4)]
        if any(self._pair(x, y) for x, y in several):
            return True
        return len(several) == 1 and self._again(*several[0])

    def _again(self, a: int, b: int) -> bool:
        """The same pair once more: its queues may be empty now."""
        at = self._row(self._number(a, b))
        return at >= 0 and bool(self._tree.delays.samples[at] < _GIVEN_UP) and self._pair(a, b, again=True)

    def _row(self, number: int) -> int:
        """Of a pair that has been measured, -1 of another."""
        at = bisect_left(self._sorted, number)
        return at if at < len(self._sorted) and self._sorted[at] == number else -1

    def _pair(self, a: int, b: int, again: bool = False) -> bool:
        nics = self._tree.nics
        if self._left[a] <= 0 or self._left[b] <= 0 or nics[a].host == nics[b].host:
            return False
        key = self._number(a, b)
        if not again and (key in self._tried or self._row(key) >= 0):
            return False
        self._tried.add(key)
        self._left[a] -= 1
        self._left[b] -= 1
        self._found.append((a, b) if a < b else (b, a))
        return True

    def _number(self, a: int, b: int) -> int:
        """Of a pair."""
        return min(a, b) * len(self._tree.nics) + max(a, b)


def _order(name: str) -> str:
    """As by_name, for numbers that are not longer: one short text a name, as thousands are compared."""
    return re.sub("[0-9]+", lambda number: "\0" + number[0].zfill(12), name)


class _Neighbours:
    """Where to look first."""

    def __init__(self, tree: FabricTree) -> None:
        self._tree = tree
        rails: dict[str, list[int]] = defaultdict(list)
        for number, nic in enumerate(tree.nics):
            rails[nic.rail].append(number)
        self._line = {
            rail: array("i", sorted(several, key=lambda n: _order(tree.nics[n].name)))
            for rail, several in rails.items()
        }
        self._place = array("i", bytes(4 * len(tree.nics)))
        for line in self._line.values():
            for at, number in enumerate(line):
                self._place[number] = at
        self._of_host: dict[str, tuple[int, ...]] = {}
        for number, facts in enumerate(tree.nics):
            self._of_host[facts.host] = (*self._of_host.get(facts.host, ()), number)

    def _on(self, host: str, rail: str) -> int | None:
        """The first NIC of a host on a rail."""
        return next((nic for nic in self._of_host[host] if self._tree.nics[nic].rail == rail), None)

    def of(self, nic: int) -> Iterable[int]:
        """NICs of the same rail, the likeliest first."""
        facts = self._tree.nics[nic]
        for rail in dict.fromkeys(self._tree.nics[other].rail for other in self._of_host[facts.host]):
            other = self._on(facts.host, rail)
            group = int(self._tree.group_of[other]) if other is not None else 0
            if rail != facts.rail and group > 0:
                for mate in self._tree.groups[group].nics[:_NEIGHBOURS]:
                    same = self._on(self._tree.nics[mate].host, facts.rail)
                    if same is not None and same != nic:
                        yield same
        line, at = self._line[facts.rail], self._place[nic]
        for step in range(1, _NEIGHBOURS + 1):
            for place in (at - step, at + step):
                if 0 <= place < len(line):
                    yield line[place]
