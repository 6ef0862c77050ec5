"""Delays of lanes in the buckets of the exported metrics. Pure."""

from dataclasses import dataclass, field

import numpy as np

from fabricpulse.qp.metrics import DELAY_BUCKETS_S


@dataclass
class Histogram:
    """Delays in the buckets of the exported metrics; the last one is everything above."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(DELAY_BUCKETS_S) + 1))
    sum_s: float = 0.0

    def add(self, other: "Histogram") -> None:
        """Adds another one."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s


def rebucketed(counts: np.ndarray, bounds_ns: tuple[int, ...], sum_ns: int) -> Histogram:
    """Counts by the telemetry's bounds into the exported buckets; a bucket that straddles a bound goes above it."""
    histogram = Histogram(sum_s=max(sum_ns, 0) * 1e-9)
    bounds_s = [bound * 1e-9 for bound in bounds_ns]
    for index, count in enumerate(counts):
        if index == len(bounds_s):
            target = len(DELAY_BUCKETS_S)
        else:
            target = next((i for i, b in enumerate(DELAY_BUCKETS_S) if bounds_s[index] <= b * (1 + 1e-9)), -1)
        histogram.counts[target] += int(count)
    return histogram
