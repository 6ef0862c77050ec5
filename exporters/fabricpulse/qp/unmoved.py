"""Ranks of which no collective ends for longer than their job's usually take. Pure.

What a rank waits for is known where requests are seen. Beside another network plugin only NCCL's profiler says how far
a rank has come: then how long it has been inside a collective of which none ends is the only sign of a stall. How long
is too long depends on the job: one that saves a checkpoint while others wait in a barrier does so again. So the longest
wait that has ended within the last hours counts; a job that is new, whose pauses are not known yet, gets more time.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from fabricpulse.qp.progress import RankProgress

# A job is new for so long: it compiles and loads, and its waits tell nothing of what follows.
_NEW_S = 120.0
# As long as that, and where less is known.
_NEW_LIMIT_S = 30.0
# A wait is too long when it is so many times the longest one that has ended.
_TIMES = 2.0
# The longest waits of the present and the last span of this length are remembered.
_SPAN_S = 3600.0

_Key = tuple[str, str, int]  # workload, communicator, rank


@dataclass(frozen=True)
class UnmovedRank:
    """A rank of which no collective has ended for long. operations : that have ended. for_s : inside: in collectives;
    outside: since one ended, or the rank was first seen, in seconds. No rank is outside while one of its job on the
    same host is inside another communicator's collective that is no stall: which process that is is not seen."""

    workload: str
    communicator: str
    rank: int
    state: Literal["inside", "outside"]
    operations: int
    for_s: float


@dataclass
class _Since:
    """Since when a rank has the state that it has."""

    operations: int
    inside: bool
    at_s: float


@dataclass
class _Job:
    """first_s : when it was first seen. span_s : when the present span began. longest_s, longest_before_s : waits that
    have ended in it, and in the last one."""

    first_s: float
    span_s: float
    longest_s: float = 0.0
    longest_before_s: float = 0.0
    ranks: dict[_Key, _Since] = field(default_factory=dict)

    def ended(self, wait_s: float, now_s: float) -> None:
        """A wait is over."""
        if now_s - self.first_s > _NEW_S:
            self.longest_s = max(self.longest_s, wait_s)

    def limit_s(self, stalled_s: float, now_s: float) -> float:
        """From when on a wait is too long."""
        if now_s - self.span_s > _SPAN_S:
            self.longest_before_s = self.longest_s if now_s - self.span_s <= 2 * _SPAN_S else 0.0
            self.longest_s, self.span_s = 0.0, now_s
        least_s = stalled_s if now_s - self.first_s > _NEW_S else max(stalled_s, _NEW_LIMIT_S)
        return max(least_s, _TIMES * max(self.longest_s, self.longest_before_s))


class UnmovedRanks:
    """The ranks of one host, from poll to poll."""

    def __init__(self, stalled_s: float) -> None:
        """stalled_s : a wait that is shorter is never too long, in seconds."""
        self._stalled_s = stalled_s
        self._jobs: dict[str, _Job] = {}

    def take(self, ranks: Iterable[RankProgress], now_s: float) -> list[UnmovedRank]:
        """Takes in one poll; those that have not moved for too long. now_s : monotonic."""
        of_job: defaultdict[str, list[RankProgress]] = defaultdict(list)
        for r in ranks:
            of_job[r.workload].append(r)
        self._jobs = {w: self._jobs.get(w) or _Job(now_s, now_s) for w in of_job}
        found: list[UnmovedRank] = []
        for workload, own in of_job.items():
            found += self._of_job(self._jobs[workload], own, now_s)
        return found

    def _of_job(self, job: _Job, ranks: list[RankProgress], now_s: float) -> list[UnmovedRank]:
        # Who has not entered is there before those who wait for him, whose host is polled at another moment.
        limit_s = {"inside": job.limit_s(self._stalled_s, now_s), "outside": self._stalled_s / 2}
        before, job.ranks = job.ranks, {}
        found = []
        for r in ranks:
            key = (r.workload, r.communicator, r.rank)
            since, inside = before.get(key), r.in_progress > 0
            if since is None or since.operations != r.operations or since.inside != inside:
                if since is not None and since.inside and since.operations != r.operations:
                    job.ended(now_s - since.at_s, now_s)
                since = _Since(r.operations, inside, now_s)
            job.ranks[key] = since
            state: Literal["inside", "outside"] = "inside" if inside else "outside"
            if now_s - since.at_s > limit_s[state]:
                found.append(UnmovedRank(*key, state, r.operations, now_s - since.at_s))
        stuck = {r.communicator for r in found if r.state == "inside"}
        elsewhere = any(r.in_progress > 0 and r.communicator not in stuck for r in ranks)
        return [r for r in found if r.state == "inside" or not elsewhere]
