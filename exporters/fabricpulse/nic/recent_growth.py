"""How much the error and congestion counters have grown lately.

Rules ask of each NIC of a fleet whether one of two dozen counters has moved within some minutes. Nearly always none
has: read by Prometheus, that is a good part of what the rules cost. So the exporter exposes the growth itself, and
only of counters that have moved: a rule then reads series only of NICs with errors.

The growth is exact, unlike PromQL's `rate` and `increase`, which extrapolate. Growth is known between two
scrapes; a window begins at the last scrape that is at least as old as it is long. What was before the first one counts
as none.

Pure: no I/O, no clock. Times are seconds of one clock.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

RATE_S = 120.0
INCREASE_S = 900.0
# For how long growth is exposed, as 0 once the counter no longer grows: longer than a window and what rules look back
# for the last value when scrapes fail.
KEPT_S = 1200.0
# Scrapes that are closer together are one: bounds what is kept, whoever scrapes.
RESOLUTION_S = 5.0

Key = tuple[str, ...]


@dataclass(frozen=True)
class Growth:
    """increase : over the last quarter of an hour. rate : a second, over the last two minutes."""

    increase: float
    rate: float


@dataclass
class _Counter:
    """seen : in which scrape last. times, added : when it has grown, and by how much since the scrape before."""

    value: float
    seen: float
    times: list[float] = field(default_factory=list)
    added: list[float] = field(default_factory=list)

    def since(self, begin: float) -> float:
        return sum(self.added[bisect_right(self.times, begin) :])


class RecentGrowth:
    """Takes in the values of each scrape."""

    def __init__(self) -> None:
        self._scrapes: list[float] = []
        self._counters: dict[Key, _Counter] = {}

    def take(self, now: float, values: Mapping[Key, float] | Iterable[tuple[Key, float]]) -> None:
        """All counters of one scrape. One that is not among them (its device hangs) is left out until it is back."""
        if self._scrapes and now - self._scrapes[-1] < RESOLUTION_S:
            return
        for key, value in dict(values).items():
            counter = self._counters.get(key)
            if counter is None:
                counter = self._counters[key] = _Counter(value, now)
            elif value != counter.value:
                # One that falls has begun again at 0.
                counter.times.append(now)
                counter.added.append(value - counter.value if value > counter.value else value)
                counter.value = value
            counter.seen = now
            old = bisect_left(counter.times, now - KEPT_S)
            del counter.times[:old], counter.added[:old]
        for key in [key for key, counter in self._counters.items() if now - counter.seen > KEPT_S]:
            del self._counters[key]
        self._scrapes.append(now)
        del self._scrapes[: max(0, bisect_right(self._scrapes, now - KEPT_S) - 1)]

    def recent(self) -> dict[Key, Growth]:
        """Of the counters that have grown within KEPT_S, as of the last scrape that was taken in."""
        if not self._scrapes:
            return {}
        now = self._scrapes[-1]
        increase_from, rate_from = self._begin(now - INCREASE_S), self._begin(now - RATE_S)
        span = max(now - rate_from, RATE_S)
        return {
            key: Growth(counter.since(increase_from), counter.since(rate_from) / span)
            for key, counter in self._counters.items()
            if counter.times and counter.seen == now
        }

    def rates(self) -> dict[Key, float]:
        """Growth a second over the last two minutes of each counter of the last scrape, 0 where it has not grown.

        Of none before there were two scrapes.
        """
        if len(self._scrapes) < 2:
            return {}
        now = self._scrapes[-1]
        begin = self._begin(now - RATE_S)
        return {
            key: counter.since(begin) / (now - begin)
            for key, counter in self._counters.items()
            if counter.seen == now
        }

    def _begin(self, time: float) -> float:
        return self._scrapes[max(0, bisect_right(self._scrapes, time) - 1)]
