"""Rate limit of log lines that remote clients can cause."""

import time
from collections import OrderedDict
from collections.abc import Callable

_KEYS = 256


class LogLimit:
    """At most one line per key and interval, and at most `burst` keys an interval.

    Memory is bounded whatever the keys. `take_suppressed` returns how many lines were suppressed since its last call.
    """

    def __init__(
        self, interval_s: float, burst: int = 20, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._burst = burst
        self._clock = clock
        self._last: OrderedDict[str, float] = OrderedDict()
        self._window = clock()
        self._written = 0
        self._suppressed = 0

    def allows(self, key: str) -> bool:
        """Whether a line about `key` may be written now; it is counted as written or as suppressed."""
        now = self._clock()
        if now - self._window >= self._interval_s:
            self._window, self._written = now, 0
        last = self._last.get(key)
        if self._written >= self._burst or (last is not None and now - last < self._interval_s):
            self._suppressed += 1
            return False
        self._written += 1
        self._last[key] = now
        self._last.move_to_end(key)
        if len(self._last) > _KEYS:
            self._last.popitem(last=False)
        return True

    def take_suppressed(self) -> int:
        """Lines that were not allowed since the last call: a field for the next one that is."""
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
