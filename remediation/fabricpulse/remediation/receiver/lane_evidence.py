"""What lanes of jobs have done lately, as agents reported it: in memory, bounded, unknown after a start. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from fabricpulse.remediation.protocol import LaneSample

# Samples of a lane that are kept, and their age; lanes of the fleet.
_SAMPLES = 512
_KEEP_S = 900.0
_MAX_LANES = 100_000
# A lane that delivers so much of its capacity on average, or is busy for so much of the time, is one that its job waits
# for.
_BACKLOGGED = 0.7
_BUSY = 0.6


@dataclass(frozen=True)
class LaneSummary:
    """A lane over a span of time: means of its samples (bytes per second, seconds), the last entropy and weight.

    repathed : whether it got another path within the span. congested : it has more to send than its path takes: a
    queue, loss, marks, or it is never idle. busy : part of the time in which something of it was under way, -1 if not
    known.
    """

    host: str
    last: LaneSample
    goodput: float
    capacity: float
    congested: bool
    repathed: bool
    busy: float = -1.0

    @property
    def key(self) -> str:
        """As LaneMove.key."""
        return f"{self.host}/{self.last.process}/{self.last.connection}/{self.last.lane}"


@dataclass
class _Lane:
    host: str
    samples: deque[tuple[float, LaneSample]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    # The least mean delay ever seen: about the path without a queue.
    floor_s: float = float("inf")


class LaneEvidence:
    """Samples of all lanes."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._pruned_at = 0.0

    def add(self, host: str, samples: Iterable[LaneSample], now: float) -> None:
        """A report of `host`, received at `now`."""
        for sample in samples:
            key = f"{host}/{sample.process}/{sample.connection}/{sample.lane}"
            lane = self._lanes.get(key)
            if lane is None:
                if len(self._lanes) >= _MAX_LANES:
                    continue
                lane = self._lanes[key] = _Lane(host)
            lane.samples.append((now, sample))
            if sample.delay_s > 0:
                lane.floor_s = min(lane.floor_s, sample.delay_s)
        if now - self._pruned_at > 60.0:
            self._pruned_at = now
            self._lanes = {k: v for k, v in self._lanes.items() if now - v.samples[-1][0] <= _KEEP_S}

    def summaries(self, since: float, until: float) -> dict[str, LaneSummary]:
        """Lanes of which the span is known: a sample in its first third and one in its last. Times of reception."""
        third = (until - since) / 3
        found = {}
        for key, lane in self._lanes.items():
            if lane.samples[-1][0] < until - third:
                continue
            inside = [
                entry
                for entry in takewhile(lambda e: e[0] >= since, reversed(lane.samples))
                if entry[0] <= until
            ]
            inside.reverse()
            if len(inside) < 2 or inside[0][0] > since + third or inside[-1][0] < until - third:
                continue
            summary = _summary(lane, inside)
            if summary is not None:
                found[key] = summary
        return found


def _summary(lane: _Lane, inside: list[tuple[float, LaneSample]]) -> LaneSummary | None:
    # A sample covers the interval that ends with it: the first one lies before the span.
    told = [sample for _, sample in inside[1:]]
    weights = [after[0] - before[0] for before, after in pairwise(inside)]
    total = sum(weights)
    if total <= 0:
        return None
    goodput = sum(s.goodput * w for s, w in zip(told, weights, strict=True)) / total
    capacity = sum(s.capacity * w for s, w in zip(told, weights, strict=True)) / total
    queued = sum(s.delay_s > 2 * lane.floor_s for s in told) * 2 >= len(told)
    busy = _mean_busy(told, weights)
    return LaneSummary(
        host=lane.host,
        last=told[-1],
        goodput=goodput,
        capacity=capacity,
        congested=queued
        or any(s.troubles for s in told)
        or goodput >= _BACKLOGGED * capacity
        or busy >= _BUSY,
        repathed=told[-1].repaths != inside[0][1].repaths,
        busy=busy,
    )


def _mean_busy(told: list[LaneSample], weights: list[float]) -> float:
    known = [(s.busy, w) for s, w in zip(told, weights, strict=True) if s.busy >= 0 and w > 0]
    total = sum(w for _, w in known)
    return sum(busy * w for busy, w in known) / total if total > 0 else -1.0


def goodput_by_workload(lanes: Mapping[str, LaneSummary]) -> dict[str, float]:
    """Workload -> bytes per second of all of its lanes."""
    total: dict[str, float] = {}
    for lane in lanes.values():
        total[lane.last.workload] = total.get(lane.last.workload, 0.0) + lane.goodput
    return total
