"""What lanes of jobs have done lately, as agents reported it: in memory, bounded, unknown after a start. Pure."""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import msgspec

from fabricpulse.remediation.protocol import MAX_LANES, LaneSample

# Samples of a lane that are kept, and their age; lanes of the fleet. Where there are more than so many samples in all,
# 72 bytes each, each lane keeps fewer, but not less than these: a minute of 50,000 lanes.
_SAMPLES = 512
_KEEP_S = 900.0
_MAX_LANES = 100_000
# Of one host: twice what a report may have. More push out its own, those first that were not seen for longest.
_MAX_OF_HOST = 2 * MAX_LANES
_MAX_SAMPLES = 2_000_000
_FEWEST = 20
# Agents report every two seconds: what comes faster tells nothing more.
_LEAST_APART_S = 0.1
_FIELDS = 9
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


class _Lane:
    """Samples of one lane: _FIELDS numbers each, oldest first, and what does not change from one to the next."""

    def __init__(self, host: str, identity: LaneSample) -> None:
        self.host = host
        self.identity = identity
        self.numbers: array[float] = array("d")
        # The least mean delay ever seen: about the path without a queue.
        self.floor_s = float("inf")

    def add(self, sample: LaneSample, now: float, most: int) -> int:
        """Adds a sample; returns by how many there are more of them."""
        before = len(self)
        self.identity = sample
        self.numbers.extend((
            now, sample.goodput, sample.capacity, sample.delay_s, sample.troubles, sample.busy, sample.repaths,
            sample.entropy, sample.weight,
        ))  # fmt: skip
        while len(self) > most or now - self.numbers[0] > _KEEP_S:
            del self.numbers[:_FIELDS]
        if sample.delay_s > 0:
            self.floor_s = min(self.floor_s, sample.delay_s)
        return len(self) - before

    def __len__(self) -> int:
        return len(self.numbers) // _FIELDS

    @property
    def seen_at(self) -> float:
        return self.numbers[-_FIELDS]

    def between(self, since: float, until: float) -> list["_Numbers"]:
        """The samples that came in this span."""
        found = []
        for start in range(len(self.numbers) - _FIELDS, -1, -_FIELDS):
            at = self.numbers[start]
            if at < since:
                break
            if at <= until:
                found.append(_Numbers(*self.numbers[start : start + _FIELDS]))
        found.reverse()
        return found

    def sample(self, numbers: "_Numbers") -> LaneSample:
        """One of them as it was reported."""
        return msgspec.structs.replace(
            self.identity,
            goodput=numbers.goodput,
            capacity=numbers.capacity,
            delay_s=numbers.delay_s,
            troubles=int(numbers.troubles),
            busy=numbers.busy,
            repaths=int(numbers.repaths),
            entropy=int(numbers.entropy),
            weight=int(numbers.weight),
        )


class _Numbers(NamedTuple):
    at: float
    goodput: float
    capacity: float
    delay_s: float
    troubles: float
    busy: float
    repaths: float
    entropy: float
    weight: float


class LaneEvidence:
    """Samples of all lanes."""

    def __init__(self, max_samples: int = _MAX_SAMPLES) -> None:
        self._lanes: dict[str, _Lane] = {}
        # Host -> keys of its lanes, the one that was seen last at the end.
        self._of_host: dict[str, dict[str, None]] = {}
        self._max_samples = max_samples
        self._pruned_at = 0.0
        self.count = 0

    def add(self, host: str, samples: Iterable[LaneSample], now: float) -> None:
        """A report of `host`, received at `now`."""
        own = self._of_host.setdefault(host, {})
        for sample in samples:
            key = f"{host}/{sample.process}/{sample.connection}/{sample.lane}"
            lane = self._lanes.get(key)
            if lane is None:
                if len(own) >= _MAX_OF_HOST:
                    self._drop(own)
                if len(self._lanes) >= _MAX_LANES:
                    continue
                lane = self._lanes[key] = _Lane(host, sample)
            elif now - lane.seen_at < _LEAST_APART_S:
                continue
            own.pop(key, None)
            own[key] = None
            most = max(_FEWEST, min(_SAMPLES, self._max_samples // len(self._lanes)))
            self.count += lane.add(sample, now, most)
        if now - self._pruned_at > 60.0:
            self._pruned_at = now
            self._lanes = {k: v for k, v in self._lanes.items() if now - v.seen_at <= _KEEP_S}
            self.count = sum(map(len, self._lanes.values()))
            kept = {h: {k: None for k in keys if k in self._lanes} for h, keys in self._of_host.items()}
            self._of_host = {h: keys for h, keys in kept.items() if keys}

    def _drop(self, own: dict[str, None]) -> None:
        """Forgets the lane of a host that was not seen for longest."""
        oldest = next(iter(own))
        del own[oldest]
        self.count -= len(self._lanes.pop(oldest))

    def summaries(self, since: float, until: float) -> dict[str, LaneSummary]:
        """Lanes of which the span is known: a sample in its first third and one in its last. Times of reception."""
        third = (until - since) / 3
        found = {}
        for key, lane in self._lanes.items():
            if lane.seen_at < until - third:
                continue
            inside = lane.between(since, until)
            if len(inside) < 2 or inside[0].at > since + third or inside[-1].at < until - third:
                continue
            summary = _summary(lane, inside)
            if summary is not None:
                found[key] = summary
        return found


def _summary(lane: _Lane, inside: list[_Numbers]) -> LaneSummary | None:
    # A sample covers the interval that ends with it: the first one lies before the span.
    told = inside[1:]
    weights = [after.at - before.at for before, after in pairwise(inside)]
    total = sum(weights)
    if total <= 0:
        return None
    goodput = sum(s.goodput * w for s, w in zip(told, weights, strict=True)) / total
    capacity = sum(s.capacity * w for s, w in zip(told, weights, strict=True)) / total
    queued = sum(s.delay_s > 2 * lane.floor_s for s in told) * 2 >= len(told)
    busy = _mean_busy(told, weights)
    return LaneSummary(
        host=lane.host,
        last=lane.sample(told[-1]),
        goodput=goodput,
        capacity=capacity,
        congested=queued
        or any(s.troubles for s in told)
        or goodput >= _BACKLOGGED * capacity
        or busy >= _BUSY,
        repathed=told[-1].repaths != inside[0].repaths,
        busy=busy,
    )


def _mean_busy(told: list[_Numbers], weights: list[float]) -> float:
    known = [(s.busy, w) for s, w in zip(told, weights, strict=True) if s.busy >= 0 and w > 0]
    total = sum(w for _, w in known)
    return sum(busy * w for busy, w in known) / total if total > 0 else -1.0


def goodput_by_workload(lanes: Mapping[str, LaneSummary]) -> dict[str, float]:
    """Workload -> bytes per second of all of its lanes."""
    total: dict[str, float] = {}
    for lane in lanes.values():
        total[lane.last.workload] = total.get(lane.last.workload, 0.0) + lane.goodput
    return total
