"""Where the flows of one host go, as it has traced them: a row of switches for each flow. Pure.

A fleet reports millions of paths. As tuples of names each would be hundreds of bytes; numbers in rows take two a hop.
"""

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.flows.components import NO_HOP, Nodes
from fabricpulse.diagnosis.flows.hop_rows import Hops, grown

_UNKNOWN, _BEFORE, _REPORTED = 0, 1, 2
_NO_ROWS = np.zeros((0, 0), np.int16)
_NO_STATES = np.zeros(0, np.uint8)


@functools.lru_cache(16)
def _all_reported(count: int) -> NDArray[np.uint8]:
    """The state of nearly all hosts of a fleet: one array, that nobody writes to."""
    found = np.full(count, _REPORTED, np.uint8)
    found.flags.writeable = False
    return found


class KnownPaths:
    """Of the flows of one host, by number. A path is reported, or was so before the host got other peers or was
    restarted. Switches are numbers of a `Names` that has no others.
    """

    __slots__ = ("_hops", "_state", "changed", "reported")

    def __init__(self) -> None:
        self.changed = False  # whether the last update had another switch for a known one
        self._hops: Hops = _NO_ROWS
        self._state = _NO_STATES
        self.reported = 0

    @property
    def hops(self) -> Hops:
        """By flow the switches in order; NO_HOP where no path is known, no rows if none is."""
        return self._hops

    def update(self, flows: Sequence[int], paths: Sequence[Sequence[int]], count: int) -> bool:
        """Paths of some flows, of `count` that the host has. Returns whether any was not known at all."""
        longest, most = max(1, *map(len, paths)), max(map(max, filter(None, paths)), default=0)
        if len(self._state) < count or longest > self._hops.shape[1] or most > np.iinfo(self._hops.dtype).max:
            self._grow(count, longest, most)
        at = np.array(flows)
        new = bool((self._state[at] == _UNKNOWN).any())
        width = self._hops.shape[1]
        before = np.asarray(self._hops[at], np.int32)
        now = np.array([(*path, *(width - len(path)) * (NO_HOP,)) for path in paths], np.int32)
        self._hops[at] = now
        self.changed = bool(((before >= 0) & (now >= 0) & (before != now)).any())
        state = self._state if self._state.flags.writeable else self._state.copy()
        state[at] = _REPORTED
        self.reported = int(np.count_nonzero(state == _REPORTED))
        self._state = _all_reported(len(state)) if self.reported == len(state) else state
        return new

    def _grow(self, count: int, width: int, most: int) -> None:
        self._hops = grown(self._hops, count, width, most)
        state = np.zeros(len(self._hops), np.uint8)
        state[: len(self._state)] = self._state
        self._state = state

    def begin_anew(self) -> None:
        """All that is reported is from before, from now on."""
        self._state = np.minimum(self._state, _BEFORE)
        self.reported = 0

    def moved(self, flows: NDArray[np.int64], count: int) -> "KnownPaths":
        """The same of a host that numbers its `count` flows anew, all from before. flows : new number by old one, -1
        for none.
        """
        found = KnownPaths()
        if not len(self._state):
            return found
        kept = np.flatnonzero((flows >= 0) & (self._state > _UNKNOWN))
        if len(kept):
            found._grow(count, self._hops.shape[1], int(self._hops[kept].max(initial=0)))
            found._hops[flows[kept]] = self._hops[kept]
            found._state[flows[kept]] = _BEFORE
        return found

    def forget_before(self) -> bool:
        """Drops what is from before. Returns whether there was any."""
        before = self._state == _BEFORE
        if not before.any():
            return False
        self._hops[before] = NO_HOP
        self._state[before] = _UNKNOWN
        return True

    def renumber(self, switches: Nodes) -> None:
        """Switches have other numbers, none a larger one. switches : as of `Names.compact`."""
        if len(self._state):
            there = self._hops >= 0
            self._hops[there] = switches[self._hops[there]]
