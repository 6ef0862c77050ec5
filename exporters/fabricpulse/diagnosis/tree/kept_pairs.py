"""What temporary peers have measured: two-way minima of pairs that are no edges, kept as long as they may be true.
Pure.

A pair is measured for a minute and counts for hours. It is forgotten when a NIC of it may have been plugged in
elsewhere since, and when the standing pairs of one have become longer or shorter: its stack term is another one then.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from fabricpulse.diagnosis.tree.findings import KeptPair
from fabricpulse.diagnosis.tree.measured import Delays, Floats, NicFacts

# 80,000 NICs with eight each; 250 bytes a pair.
MOST_KEPT = 320_000
LONGEST_S = 6 * 3600.0
# By how much the middle one of a NIC's standing pairs may change. Less than half of the least distance of two classes.
_MOVED_NS = 300.0


def levels_of(nics: Sequence[NicFacts], standing: Delays) -> Floats:
    """Of each NIC the middle one of its pairs, ns; NaN of one that has none. Of an even number the shorter one."""
    nic = np.concatenate([standing.a, standing.b])
    value = np.concatenate([standing.two_way_ns, standing.two_way_ns])
    order = np.lexsort((value, nic))
    count = np.bincount(nic, minlength=len(nics))
    found = np.full(len(nics), math.nan)
    has = count > 0
    middle = np.cumsum(count) - count + (np.maximum(count, 1) - 1) // 2
    found[has] = value[order][middle[has]]
    return found


class Levels(Mapping[str, float]):
    """By NIC the level of those that have one. place : number by NIC. levels : by number, NaN for none."""

    def __init__(self, place: Mapping[str, int], levels: Floats) -> None:
        self._place, self._levels = place, levels

    def __getitem__(self, nic: str) -> float:
        level = float(self._levels[self._place[nic]])
        if math.isnan(level):
            raise KeyError(nic)
        return level

    def __iter__(self) -> Iterator[str]:
        return (nic for nic in self._place if nic in self)

    def __len__(self) -> int:
        return int(np.isfinite(self._levels).sum())


class KeptPairs:
    """Of one coordinator."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], KeptPair] = {}
        self._moved_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def moved(self, nics: Iterable[str], now_s: float) -> None:
        """The cables of these may have been unplugged: what was measured before counts no more."""
        for nic in nics:
            self._moved_s[nic] = now_s

    def add(self, pairs: Iterable[KeptPair]) -> None:
        """Takes in, in place of what was known of the same pairs; beyond MOST_KEPT nothing."""
        for pair in pairs:
            key = (pair.a, pair.b)
            if key in self._pairs or len(self._pairs) < MOST_KEPT:
                self._pairs[key] = pair

    def merged(
        self, fresh: Iterable[KeptPair], level_of: Mapping[str, float], now_s: float
    ) -> list[KeptPair]:
        """These, with what is known of the same pairs from a while ago and still counts: the smaller delay of more
        samples. They are as old as the older one.
        """
        return [self._with_older(pair, level_of, now_s) for pair in fresh]

    def _with_older(self, pair: KeptPair, level_of: Mapping[str, float], now_s: float) -> KeptPair:
        old = self._pairs.get((pair.a, pair.b))
        if old is None or now_s - old.at_s > LONGEST_S / 2 or not self._counts(old, level_of, now_s):
            return pair
        return old._replace(
            two_way_ns=min(old.two_way_ns, pair.two_way_ns), samples=old.samples + pair.samples
        )

    def _counts(self, pair: KeptPair, level_of: Mapping[str, float], now_s: float) -> bool | None:
        """Whether a pair counts now; None where that is not known now."""
        if now_s - pair.at_s > LONGEST_S or any(
            pair.at_s <= self._moved_s.get(nic, -math.inf) for nic in (pair.a, pair.b)
        ):
            return False
        now_a, now_b = level_of.get(pair.a, math.nan), level_of.get(pair.b, math.nan)
        if math.isnan(now_a + now_b):
            return None
        return abs(now_a - pair.level_a) <= _MOVED_NS and abs(now_b - pair.level_b) <= _MOVED_NS

    def drop(self, keys: Iterable[tuple[str, str]]) -> None:
        """Forgets."""
        for key in keys:
            self._pairs.pop(key, None)

    def prune(self, now_s: float) -> None:
        """Forgets what moved so long ago that nothing from before is kept."""
        self._moved_s = {nic: at for nic, at in self._moved_s.items() if now_s - at <= LONGEST_S}

    def settled(
        self, level_of: Mapping[str, float], now_s: float, more: Iterable[KeptPair] = ()
    ) -> tuple[list[KeptPair], list[tuple[str, str]]]:
        """Those that count now, `more` among them, and the keys of those that never will again. level_of : by NIC, the
        level now; of a NIC without one nothing counts, and nothing is forgotten.
        """
        good: list[KeptPair] = []
        removed: list[tuple[str, str]] = []
        fresh = {(pair.a, pair.b): pair for pair in more}
        for key, pair in [*((k, p) for k, p in self._pairs.items() if k not in fresh), *fresh.items()]:
            counts = self._counts(pair, level_of, now_s)
            if counts:
                good.append(pair)
            elif counts is False:
                removed.append(key)
        return good, removed


def together(nics: Sequence[NicFacts], standing: Delays, kept: Iterable[KeptPair]) -> Delays:
    """Standing and kept pairs of NICs that are there."""
    number = {nic.name: at for at, nic in enumerate(nics)}
    rows = [
        (number[pair.a], number[pair.b], pair.two_way_ns, pair.samples)
        for pair in kept
        if pair.a in number and pair.b in number
    ]
    if not rows:
        return standing
    more = Delays.of(rows, nics)
    return Delays.from_arrays(
        np.concatenate([standing.a, more.a]),
        np.concatenate([standing.b, more.b]),
        np.concatenate([standing.two_way_ns, more.two_way_ns]),
        np.concatenate([standing.samples, more.samples]),
        nics,
    )
