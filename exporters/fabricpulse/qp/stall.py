"""Collectives that do not end, as FabricCollectiveStalled finds them, by the host on which a rank waits. Pure.

The rule looks at all hosts at once. One host sees its own ranks; of the rank that one of them waits for it asks that
rank's host, one hop and no further: the head of the wait-for chain is next to a rank that waits for it.
What the peer's host does not say is unknown, and left to the rule.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from fabricpulse.qp.progress import Heartbeat
from fabricpulse.qp.unmoved import UnmovedRank
from fabricpulse.qp.waiting import Waiting

Head = Literal["network", "process", "rank", "unknown"]
_NETWORK = {"delivery", "lane"}
_PEER = {"peer_send", "peer_receive"}


class HostRanks(msgspec.Struct, frozen=True):
    """What the ranks on one host wait for, and when each last gave a sign of life: `/api/v1/ranks`."""

    waiting: tuple[Waiting, ...] = ()
    heartbeats: tuple[Heartbeat, ...] = ()

    def of_job(self, workload: str, owner: int) -> "HostRanks":
        """What is of one job: another user may use its name. Exporters of former releases say no owner, which is as
        user 0: theirs are of any job of that name."""
        return HostRanks(
            tuple(w for w in self.waiting if w.workload == workload and w.owner in (owner, 0)),
            tuple(h for h in self.heartbeats if h.workload == workload and h.owner in (owner, 0)),
        )

    def has_rank(self, rank: str) -> bool:
        """Whether a process of this rank is seen."""
        return any(h.rank == rank for h in self.heartbeats)

    def waits(self, rank: str) -> bool:
        """Whether the rank waits for anything."""
        return any(w.rank == rank for w in self.waiting)

    def silent_s(self, rank: str) -> float:
        """Since when no process of the rank has given a sign of life; 0 where none is seen."""
        return max((h.age_s for h in self.heartbeats if h.rank == rank), default=0.0)


@dataclass(frozen=True)
class Stall:
    """The head of a chain, under the labels of the rule. peer_rank : "" unless head is network. rank and peer are ""
    where head is unknown."""

    workload: str
    head: Head
    rank: str
    peer: str
    peer_rank: str = ""


def stuck(waiting: Iterable[Waiting], stalled_s: float) -> list[Waiting]:
    """Requests to ranks that are known by number, older than `stalled_s`."""
    return [w for w in waiting if w.age_s > stalled_s and w.peer_rank and w.waits_for in _NETWORK | _PEER]


def find_stalls(
    waiting: Iterable[Waiting], ranks_of: Mapping[str, HostRanks], stalled_s: float
) -> dict[Stall, float]:
    """Heads of chains and for how long each has been waited for, s.

    waiting : of this host. ranks_of : by host, of those that have answered; this host's own as well.
    """
    found: dict[Stall, float] = {}
    for w in stuck(waiting, stalled_s):
        peer = ranks_of[w.peer].of_job(w.workload, w.owner) if w.peer in ranks_of else HostRanks()
        if not peer.has_rank(w.peer_rank):
            continue
        silent_s = peer.silent_s(w.peer_rank)
        if silent_s > stalled_s:
            stall, age_s = Stall(w.workload, "process", w.peer_rank, w.peer), silent_s
        elif any(of.of_job(w.workload, w.owner).silent_s(w.rank) > stalled_s for of in ranks_of.values()):
            continue  # what a stopped process waited for was long there
        elif w.waits_for in _NETWORK:
            stall, age_s = Stall(w.workload, "network", w.rank, w.peer, w.peer_rank), w.age_s
        elif not peer.waits(w.peer_rank):
            stall, age_s = Stall(w.workload, "rank", w.peer_rank, w.peer), w.age_s
        else:
            continue
        found[stall] = max(age_s, found.get(stall, 0.0))
    return found


def find_profiled_stalls(
    unmoved: Iterable[UnmovedRank], own: HostRanks, host: str, stalled_s: float
) -> dict[Stall, float]:
    """Stalls of jobs that only the profiler sees, and their age, s.

    own : of this host, which is called `host`. It sees silent processes; which rank has not entered the rule says,
    which sees all hosts: one that is outside here may wait for another there.
    """
    # Another user may use the same names: what his files say must not hide a stall.
    of_job: defaultdict[tuple[int, str], list[UnmovedRank]] = defaultdict(list)
    for one in unmoved:
        of_job[one.owner, one.workload].append(one)
    found: dict[Stall, float] = {}
    for job, ranks in of_job.items():
        workload = job[1]
        inside = [r for r in ranks if r.state == "inside"]
        # Of jobs over our plugin the waits of requests are seen sooner, and say more.
        if not inside or any((w.owner, w.workload) == job for w in own.waiting):
            continue
        age_s = max(r.for_s for r in inside)
        silent = {
            h.rank: h.age_s
            for h in own.heartbeats
            if h.rank and (h.owner, h.workload) == job and h.age_s > stalled_s
        }
        if silent:
            stalls = {Stall(workload, "process", rank, host): s for rank, s in silent.items()}
        else:
            stalls = {Stall(workload, "unknown", "", ""): age_s}
        for stall, stall_s in stalls.items():
            found[stall] = max(stall_s, found.get(stall, 0.0))
    return found
