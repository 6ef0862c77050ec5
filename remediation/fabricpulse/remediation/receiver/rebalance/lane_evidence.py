"""What lanes of jobs have done lately, as agents reported it: in memory, bounded, unknown after a start. Pure."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import mul, sub

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
# Agents report every two seconds: faster ones add nothing.
_LEAST_APART_S = 0.1
_FIELDS = 9
_AT, _GOODPUT, _CAPACITY, _DELAY, _TROUBLES, _IS_BUSY, _REPATHS = range(7)
# A lane that delivers so much of its capacity on average, or is busy for so much of the time, is one that its job waits
# for.
_BACKLOGGED = 0.7
_BUSY = 0.6
# A lane that moves less than this is idle, and says nothing.
IDLE_BYTES_S = 1e5
# What processes say whose environment has no name of a job.
_UNNAMED = ("", "unknown")
_ON_HOST = "without a name on "
_OF_USER = " (uid "


@dataclass(frozen=True, slots=True)
class LaneSummary:
    """A lane over a span of time: means of its samples (bytes per second, seconds), the last entropy and weight.

    capacity : of those samples that know it, 0 if none does. repathed : whether it got another path within the span.
    congested : it has more to send than its path takes: a queue, loss, marks, or it is never idle. busy : part of the
    time in which something of it was under way, -1 if not known. is_later : whether another user had a job of this name
    before.
    """

    host: str
    last: LaneSample
    goodput: float
    capacity: float
    congested: bool
    repathed: bool
    busy: float = -1.0
    is_later: bool = False

    @property
    def key(self) -> str:
        """As LaneMove.key."""
        return f"{self.host}/{self.last.process}/{self.last.connection}/{self.last.lane}"

    @property
    def is_named(self) -> bool:
        """Whether its job has a name that distinguishes it from others."""
        return self.last.workload not in _UNNAMED

    @property
    def job(self) -> str:
        """The name of its job; jobs without one are taken for one of each host, not for one of the fleet. Where several
        users have the same name, it stays that of the first one's job while he has it: nobody can give another name to
        a job that is measured."""
        if not self.is_named:
            return f"{_ON_HOST}{self.host}"
        name = _quoted(self.last.workload)
        return f"{name}{_OF_USER}{self.last.user})" if self.is_later else name


def _quoted(workload: str) -> str:
    """The name of a job, in quotes where it is as names that are made here are, or has quotes itself: no two jobs have
    one name."""
    is_as_made = workload.startswith(('"', _ON_HOST)) or (workload.endswith(")") and _OF_USER in workload)
    return f'"{workload}"' if is_as_made else workload


class _Lane:
    """Samples of one lane: _FIELDS numbers each, oldest first. identity : the last one, with what does not change."""

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

    @property
    def moves(self) -> int:
        return max(0, int(self.numbers[_REPATHS - _FIELDS] - self.numbers[_REPATHS]))

    def has_moved(self, first: int, last: int) -> bool:
        """Whether the lane got another path between two samples."""
        return self.numbers[first * _FIELDS + _REPATHS] != self.numbers[last * _FIELDS + _REPATHS]

    def known(self, since: float, until: float) -> tuple[int, int] | None:
        """First and last sample of a span that is known: one in its first third, and a later one in its last."""
        third = (until - since) / 3
        if self.seen_at < until - third:
            return None
        times = self.numbers[::_FIELDS]
        first, last = bisect_left(times, since), bisect_right(times, until) - 1
        if last <= first or times[first] > since + third or times[last] < until - third:
            return None
        return first, last

    def column(self, field: int, first: int, last: int) -> "array[float]":
        """One number of these samples, both included."""
        return self.numbers[first * _FIELDS + field : last * _FIELDS + field + 1 : _FIELDS]

    def sample(self, index: int) -> LaneSample:
        """One of them as it was reported."""
        if index == len(self) - 1:
            return self.identity
        _, goodput, capacity, delay_s, troubles, busy, repaths, entropy, weight = self.numbers[
            index * _FIELDS : (index + 1) * _FIELDS
        ]
        return msgspec.structs.replace(
            self.identity,
            goodput=goodput,
            capacity=capacity,
            delay_s=delay_s,
            troubles=int(troubles),
            busy=busy,
            repaths=int(repaths),
            entropy=int(entropy),
            weight=int(weight),
        )


class LaneEvidence:
    """Samples of all lanes."""

    def __init__(self, max_samples: int = _MAX_SAMPLES) -> None:
        self._lanes: dict[str, _Lane] = {}
        # Host -> keys of its lanes, the one that was seen last at the end.
        self._of_host: dict[str, dict[str, None]] = {}
        # Name of a job -> user who had it first, of those who have it.
        self._first_users: dict[str, int] = {}
        self._max_samples = max_samples
        self._pruned_at = 0.0
        self.count = 0
        # What processes carried before the plan under way, and which plan that is: in memory, as all of this.
        self._before: tuple[str, dict[tuple[str, str, str], float]] = ("", {})

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

    def keep_before(self, plan: str, goodput: dict[tuple[str, str, str], float]) -> None:
        """Keeps what processes carry as a plan begins, until the next one does. plan : its id."""
        self._before = (plan, goodput)

    def before(self, plan: str) -> dict[tuple[str, str, str], float]:
        """What processes carried as the plan began; {} after a start of the receiver."""
        kept, goodput = self._before
        return goodput if kept == plan else {}

    def summaries(self, since: float, until: float) -> dict[str, LaneSummary]:
        """Lanes of which the span is known: a sample in its first third and one in its last. Times of reception."""
        found = {}
        for key, lane in self._lanes.items():
            if (inside := lane.known(since, until)) and (summary := _summary(lane, *inside)) is not None:
                found[key] = summary
        self._find_first_users()
        return {
            key: replace(summary, is_later=True)
            if self._first_users.get(summary.last.workload, -1) != summary.last.user >= 0
            else summary
            for key, summary in found.items()
        }

    def _find_first_users(self) -> None:
        users: dict[str, dict[int, None]] = {}
        for lane in self._lanes.values():
            if lane.identity.user >= 0:
                users.setdefault(lane.identity.workload, {})[lane.identity.user] = None
        self._first_users = {
            workload: first if (first := self._first_users.get(workload, -1)) in of else next(iter(of))
            for workload, of in users.items()
        }

    def latest(self, key: str, after: float) -> LaneSample | None:
        """The last sample of a lane, None without one that was received later than `after`."""
        lane = self._lanes.get(key)
        return lane.identity if lane is not None and lane.seen_at > after else None

    def moves(self) -> dict[str, int]:
        """New paths that each lane got in the time that is remembered, whoever ordered them."""
        return {key: lane.moves for key, lane in self._lanes.items()}

    def repathed(self, since: float, until: float) -> dict[str, bool]:
        """Of the same lanes, whether they got another path within the span: a tenth of the work."""
        found = {}
        for key, lane in self._lanes.items():
            if (inside := lane.known(since, until)) is not None:
                found[key] = lane.has_moved(*inside)
        return found


def _summary(lane: _Lane, first: int, last: int) -> LaneSummary | None:
    # Columns, not samples: a search looks at all lanes of the fleet, and holds up everybody meanwhile.
    times = lane.column(_AT, first, last)
    # A sample covers the interval that ends with it: the first one lies before the span.
    weights = array("d", map(sub, times[1:], times))
    total = times[-1] - times[0]
    if total <= 0:
        return None
    reported, count = first + 1, last - first
    goodput = sum(map(mul, lane.column(_GOODPUT, reported, last), weights)) / total
    capacity = _mean_capacity(lane.column(_CAPACITY, reported, last), weights, total)
    queued = sum(map((2 * lane.floor_s).__lt__, lane.column(_DELAY, reported, last)))
    busy = _mean_busy(lane.column(_IS_BUSY, reported, last), weights, total)
    return LaneSummary(
        host=lane.host,
        last=lane.sample(last),
        goodput=goodput,
        capacity=capacity,
        congested=queued * 2 >= count
        or any(lane.column(_TROUBLES, reported, last))
        or 0 < _BACKLOGGED * capacity <= goodput
        or busy >= _BUSY,
        repathed=lane.has_moved(first, last),
        busy=busy,
    )


def _mean_capacity(capacity: "array[float]", weights: "array[float]", total: float) -> float:
    """Without the samples of 0, in which no chunk had measured it: with them, a lane that was measured late in the span
    would look slow."""
    unknown = sum(w for c, w in zip(capacity, weights, strict=True) if c <= 0) if min(capacity) <= 0 else 0.0
    return sum(map(mul, capacity, weights)) / (total - unknown) if unknown < total else 0.0


def _mean_busy(busy: "array[float]", weights: "array[float]", total: float) -> float:
    if min(busy) >= 0:
        return float(sum(map(mul, busy, weights)) / total)
    known = [(b, w) for b, w in zip(busy, weights, strict=True) if b >= 0 and w > 0]
    total = sum(w for _, w in known)
    return sum(b * w for b, w in known) / total if total > 0 else -1.0


def goodput_by_job(lanes: Mapping[str, LaneSummary]) -> dict[str, float]:
    """Job -> bytes per second of all of its lanes."""
    total: dict[str, float] = {}
    for lane in lanes.values():
        total[lane.job] = total.get(lane.job, 0.0) + lane.goodput
    return total
