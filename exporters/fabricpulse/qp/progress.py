"""How far each rank has come in the collectives of its communicators, and whether its process lives. Pure.

A communicator's collectives are the same on all of its ranks, in the same order: the count of those that ended is a
sequence number, comparable between ranks. Sends and receives are not: they concern two ranks.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from fabricpulse.plugin_ipc.telemetry import Table, TelemetrySnapshot, text

# A rank takes part in a few communicators (data, tensor, pipeline parallel), a host has 8 or 16 ranks. What a file says
# must not become more series than that.
MOST_PER_OWNER = 256
_PAIRWISE = {"Send", "Recv"}


@dataclass(frozen=True)
class RankProgress:
    """communicator : its id in hexadecimal. rank : in that communicator. owner : user id; others may use the names."""

    workload: str
    communicator: str
    rank: int
    operations: int
    busy_ns: int
    in_progress: int
    owner: int = 0


@dataclass(frozen=True)
class Heartbeat:
    """A process. rank : of the launcher, "" when unknown. owner : user id."""

    workload: str
    rank: str
    pid: int
    age_s: float
    owner: int = 0


def rank_progress(living: Iterable[TelemetrySnapshot]) -> list[RankProgress]:
    """One entry a rank and communicator, sorted; of one user at most MOST_PER_OWNER, those with most operations."""
    by_owner: defaultdict[int, dict[tuple[str, str, int], Counter[str]]] = defaultdict(dict)
    for snapshot in living:
        ranks = by_owner[snapshot.user_id]
        for record in snapshot.tables[Table.COLLECTIVES]:
            if text(record["function"]) in _PAIRWISE:
                continue
            key = (snapshot.workload, f"{int(record['communicator']):x}", int(record["rank"]))
            counts = ranks.setdefault(key, Counter())
            for name in ("operations", "busy_ns", "in_progress"):
                counts[name] += int(record[name])
    found = []
    for owner, ranks in by_owner.items():
        most = sorted(ranks.items(), key=lambda item: (-item[1]["operations"], item[0]))[:MOST_PER_OWNER]
        found += [
            RankProgress(*key, c["operations"], c["busy_ns"], c["in_progress"], owner) for key, c in most
        ]
    return sorted(found, key=lambda r: (r.workload, r.communicator, r.rank))


def heartbeats(living: Iterable[TelemetrySnapshot], now_s: float) -> list[Heartbeat]:
    """One entry a process, sorted. A heartbeat that is ahead of `now_s` has age 0."""
    return sorted(
        (
            Heartbeat(
                s.workload,
                "" if s.rank is None else str(s.rank),
                s.pid,
                max(0.0, now_s - s.heartbeat_mono_ns * 1e-9),
                s.user_id,
            )
            for s in living
        ),
        key=lambda h: (h.workload, h.rank, h.pid),
    )
