"""Quantiles of the delays that the chunks of each flow had lately.

Rules compare the median of each flow with that of its siblings. To compute it from the histogram's buckets is the
dearest that they can ask of Prometheus, a rate of fifteen series for each flow; here it is a subtraction.

A window begins at the last time of taking that is at least as long ago, or at the first one.

Pure: no I/O, no clock. Times are seconds of one clock.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

# Takings that are closer together than this part of the window are one: bounds what is kept, whoever scrapes.
RESOLUTION = 1 / 12
QUANTILES = (0.1, 0.5)

K = TypeVar("K")
Counts = Sequence[int]


@dataclass
class _Flow:
    """counts : what was known at the time of the same place in times."""

    times: list[float] = field(default_factory=list)
    counts: list[Counts] = field(default_factory=list)


class RecentDelays(Generic[K]):
    """bounds : upper bounds of all buckets but the last one, in any unit; quantiles are in the same. window_s : how
    long the window is, seconds.
    """

    def __init__(self, bounds: Sequence[float], window_s: float = 120.0) -> None:
        self._bounds = bounds
        self._window_s = window_s
        self._flows: dict[K, _Flow] = {}
        self._has_begun = False

    def take(self, now: float, flows: Mapping[K, Counts]) -> dict[K, tuple[float, ...]]:
        """The quantiles of each flow that had a chunk within the window. flows : counts of each bucket, not cumulative.

        What is not among the flows is forgotten.
        """
        before, self._flows = self._flows, {}
        found = {}
        for key, counts in flows.items():
            flow = before.get(key)
            if flow is None:
                flow = _Flow()
                if self._has_begun:  # all that a new flow has counted is of now
                    flow.times.append(now)
                    flow.counts.append([0] * len(counts))
            if not flow.times or now - flow.times[-1] >= RESOLUTION * self._window_s:
                flow.times.append(now)
                flow.counts.append(list(counts))
            old = bisect_right(flow.times, now - self._window_s) - 1
            if old > 0:
                del flow.times[:old], flow.counts[:old]
            self._flows[key] = flow
            added = [max(0, after - then) for after, then in zip(counts, flow.counts[0], strict=True)]
            if any(added):
                found[key] = tuple(quantile(q, added, self._bounds) for q in QUANTILES)
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
