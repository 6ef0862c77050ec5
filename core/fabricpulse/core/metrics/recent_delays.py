"""Quantiles of the delays that a histogram has counted lately: of the chunks of each flow, of the probes of each NIC.

Rules and dashboards read them of a whole fleet. To compute them from the buckets is the dearest that they can ask of
Prometheus, a rate of fifteen series for each flow; here it is a subtraction.

A window begins at the last time of taking that is at least as long ago, or at the first one.

Pure: no I/O, no clock. Times are seconds of one clock.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

# Takings that are closer together than this part of the window are one: bounds what is kept, whoever scrapes.
RESOLUTION = 1 / 12

K = TypeVar("K")
Counts = Sequence[int]


@dataclass
class _History:
    """counts : what was known at the time of the same place in times."""

    times: list[float] = field(default_factory=list)
    counts: list[Counts] = field(default_factory=list)


class RecentDelays(Generic[K]):
    """bounds : upper bounds of all buckets but the last one, in any unit; quantiles are in the same. quantiles : which
    ones, 0 to 1. window_s : how long the window is, seconds.
    """

    def __init__(
        self, bounds: Sequence[float], quantiles: Sequence[float] = (0.5,), window_s: float = 120.0
    ) -> None:
        self._bounds = bounds
        self.quantiles = tuple(quantiles)
        self._window_s = window_s
        self._histograms: dict[K, _History] = {}
        self._has_begun = False

    def take(self, now: float, histograms: Mapping[K, Counts]) -> dict[K, tuple[float, ...]]:
        """The quantiles of each histogram that has grown within the window. histograms : counts of each bucket, not
        cumulative.

        What is not among them is forgotten.
        """
        before, self._histograms = self._histograms, {}
        found = {}
        for key, counts in histograms.items():
            history = before.get(key)
            if history is None:
                history = _History()
                if self._has_begun:  # all that a new one has counted is of now
                    history.times.append(now)
                    history.counts.append([0] * len(counts))
            if not history.times or now - history.times[-1] >= RESOLUTION * self._window_s:
                history.times.append(now)
                history.counts.append(list(counts))
            old = bisect_right(history.times, now - self._window_s) - 1
            if old > 0:
                del history.times[:old], history.counts[:old]
            self._histograms[key] = history
            added = [max(0, after - then) for after, then in zip(counts, history.counts[0], strict=True)]
            if any(added):
                found[key] = tuple(quantile(q, added, self._bounds) for q in self.quantiles)
        self._has_begun = True
        return found


def quantile(q: float, counts: Counts, bounds: Sequence[float]) -> float:
    """As PromQL's histogram_quantile: linear within a bucket, the first of which begins at 0; of what lies above all
    bounds the last one.
    """
    rank, below, lower = q * sum(counts), 0, 0.0
    for count, upper in zip(counts, bounds, strict=False):
        if count and below + count >= rank:
            return lower + (upper - lower) * max(0.0, rank - below) / count
        below, lower = below + count, upper
    return bounds[-1]
