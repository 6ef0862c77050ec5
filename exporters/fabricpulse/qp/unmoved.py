"""Ranks of which no collective ends for longer than their job's usually take. Pure.

What a rank waits for is known where requests are seen. Beside another network plugin only NCCL's profiler says how far
a rank has come: then how long it has been inside a collective of which none ends is the only sign of a stall. How long
is too long depends on the job: one that saves a checkpoint while others wait in a barrier does so again. So the longest
wait that has ended within a day counts; a job whose pauses are not known yet gets more time. A wait that was too long
is an event, and two such waits are a habit: one fault must not hide the next one.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from fabricpulse.qp.progress import RankProgress

# A job's pauses are known when it has been watched for so long, which is more than most leave between checkpoints, and
# when so many of its waits have ended. Before that no wait is too long below _NEW_LIMIT_S.
_NEW_S = 7200.0
_FEW_WAITS = 3
_NEW_LIMIT_S = 30.0
# A job compiles and loads for so long: its waits tell nothing of what follows.
_LOADS_S = 120.0
# A wait is too long when it is so many times the longest one that has ended, and beyond _MOST_LIMIT_S unless two were
# longer within a day: a job that saves a checkpoint for ten minutes does so again.
_TIMES = 2.0
_MOST_LIMIT_S = 300.0
_HABIT_TIMES = 1.5
_MOST_HABIT_S = 1800.0
# The longest waits of each of the last spans are remembered: a day.
_SPAN_S = 3600.0
_SPANS = 24
_DAY_S = _SPANS * _SPAN_S
_MOST_EVENTS = 64
# Between polls that are farther apart the exporter was stopped, or the host was: how long ranks waited is not known.
_MOST_INTERVAL_S = 10.0

_JobKey = tuple[int, str]  # owner, workload
_Key = tuple[str, int]  # communicator, rank


@dataclass(frozen=True)
class UnmovedRank:
    """A rank of which no collective has ended for long. operations : that have ended. for_s : inside: in collectives;
    outside: since one ended on any rank of the job on this host, in seconds. No rank is outside while one of its job on
    the same host is inside another communicator's collective that is no stall: which process that is is not seen.
    owner : user id."""

    workload: str
    communicator: str
    rank: int
    state: Literal["inside", "outside"]
    operations: int
    for_s: float
    owner: int = 0


@dataclass
class _Since:
    """Since when a rank has the state that it has. too_long : it was found so."""

    operations: int
    inside: bool
    at_s: float
    too_long: bool = False


@dataclass
class _Span:
    """The longest wait that has ended in a span and was not too long."""

    start_s: float
    longest_s: float = 0.0


@dataclass
class _Event:
    """Waits that were too long, one while another was, as those of the ranks of one communicator."""

    end_s: float
    longest_s: float


@dataclass
class _Job:
    """first_s : when it was first seen. moved_s : when a collective last ended. waits : that have ended, up to
    _FEW_WAITS. stuck : one is too long now."""

    first_s: float
    moved_s: float
    waits: int = 0
    stuck: bool = False
    spans: deque[_Span] = field(default_factory=lambda: deque(maxlen=_SPANS))
    events: deque[_Event] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))
    ranks: dict[_Key, _Since] = field(default_factory=dict)

    def ended(self, since: _Since, now_s: float) -> None:
        """A wait is over."""
        loads = now_s - self.first_s <= _LOADS_S
        wait_s = 0.0 if loads else now_s - since.at_s
        last = self.events[-1] if self.events else None
        same_event = last is not None and since.at_s < last.end_s
        if since.too_long:
            if last is not None and same_event:
                last.end_s, last.longest_s = now_s, max(last.longest_s, wait_s)
            else:
                self.events.append(_Event(now_s, wait_s))
        elif not self.stuck and not same_event:
            self.waits = min(self.waits + 1, _FEW_WAITS)
            span = self._span(now_s)
            span.longest_s = max(span.longest_s, wait_s)

    def limit_s(self, stalled_s: float, now_s: float) -> float:
        """From when on a wait is too long."""
        events_s = sorted(e.longest_s for e in self.events if now_s - e.end_s <= _DAY_S)
        waits_s = [span.longest_s for span in self.spans if now_s - span.start_s <= _DAY_S]
        habit_s = events_s[-2] if len(events_s) > 1 else 0.0
        longest_s = max([*waits_s, habit_s])
        known = self.waits >= _FEW_WAITS and now_s - self.first_s > _NEW_S
        least_s = stalled_s if known else max(stalled_s, _NEW_LIMIT_S)
        habit_s = min(_HABIT_TIMES * habit_s, _MOST_HABIT_S)
        return max(least_s, min(_TIMES * longest_s, _MOST_LIMIT_S), habit_s)

    def _span(self, now_s: float) -> _Span:
        """The present one."""
        if not self.spans or now_s - self.spans[-1].start_s > _SPAN_S:
            self.spans.append(_Span(now_s))
        return self.spans[-1]


class UnmovedRanks:
    """The ranks of one host, from poll to poll."""

    def __init__(self, stalled_s: float, interval_s: float = 1.0) -> None:
        """stalled_s : a wait that is shorter is never too long. interval_s : usually between polls. In seconds."""
        self._stalled_s = stalled_s
        self._most_interval_s = max(_MOST_INTERVAL_S, 3 * interval_s)
        self._polled_s: float | None = None
        self._jobs: dict[_JobKey, _Job] = {}

    def take(self, ranks: Iterable[RankProgress], now_s: float) -> list[UnmovedRank]:
        """Takes in one poll; those that have not moved for too long. now_s : monotonic."""
        of_job: defaultdict[_JobKey, list[RankProgress]] = defaultdict(list)
        for r in ranks:
            of_job[r.owner, r.workload].append(r)
        self._jobs = {key: self._jobs.get(key) or _Job(now_s, now_s) for key in of_job}
        if self._polled_s is not None and now_s - self._polled_s > self._most_interval_s:
            for job in self._jobs.values():
                job.ranks, job.moved_s = {}, now_s
        self._polled_s = now_s
        found: list[UnmovedRank] = []
        for key, own in of_job.items():
            found += self._of_job(self._jobs[key], own, now_s)
        return found

    def _of_job(self, job: _Job, ranks: list[RankProgress], now_s: float) -> list[UnmovedRank]:
        limit_s = job.limit_s(self._stalled_s, now_s)
        # Who has not entered is there before those who wait for him, whose host is polled at another moment and knows
        # the job by other waits.
        outside_s = min(limit_s, max(self._stalled_s, _NEW_LIMIT_S)) / 2
        before, job.ranks = job.ranks, {}
        for r in ranks:
            key = (r.communicator, r.rank)
            since, inside = before.get(key), r.in_progress > 0
            if since is None or since.operations != r.operations or since.inside != inside:
                if since is not None and since.operations != r.operations:
                    job.moved_s = now_s
                    if since.inside:
                        job.ended(since, now_s)
                since = _Since(r.operations, inside, now_s)
            since.too_long = inside and (since.too_long or now_s - since.at_s > limit_s)
            job.ranks[key] = since
        stuck = {communicator for (communicator, _), since in job.ranks.items() if since.too_long}
        job.stuck = bool(stuck)
        elsewhere = {r.communicator for r in ranks if r.in_progress > 0} - stuck
        found = []
        for r in ranks:
            since = job.ranks[r.communicator, r.rank]
            state: Literal["inside", "outside"] = "inside" if since.inside else "outside"
            for_s = now_s - (since.at_s if since.inside else max(since.at_s, job.moved_s))
            if since.too_long or (
                # Unused communicators of a job that moves are many, and say nothing.
                not since.inside and for_s > outside_s and not elsewhere - {r.communicator}
            ):
                found.append(
                    UnmovedRank(r.workload, r.communicator, r.rank, state, r.operations, for_s, r.owner)
                )
        return found
