"""Requests that are old: which rank waits for whom, and for what. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fabricpulse.plugin_ipc.telemetry import UNKNOWN, Table, TelemetrySnapshot, text

WAITS = ("nothing", "peer_receive", "delivery", "peer_send", "arrival", "lane")
# Requests that are shown of each process that waits, and processes of one user of which they are.
OLDEST_PER_PROCESS = 4
MOST_WAITING = 64

Named = TypeVar("Named")


@dataclass(frozen=True)
class Waiting:
    """A request that is old now: who waits for whom. channel : NCCL's, "" when unknown. missing_bytes : that the peer
    does not hold, or that have not arrived; 0: not known. owner : user id."""

    workload: str
    rank: str
    peer: str
    peer_rank: str
    waits_for: str
    age_s: float
    channel: str = ""
    missing_bytes: int = 0
    owner: int = 0


def waiting_requests(snapshot: TelemetrySnapshot, now_s: float, least_s: float) -> list[Waiting]:
    """Of one process: the connections on which nothing has moved for `least_s` or longer, with a request under way.

    now_s : monotonic.
    """
    rank = "" if snapshot.rank is None else str(snapshot.rank)
    found: list[Waiting] = []
    for record in snapshot.tables[Table.CONNECTIONS]:
        asked_ns = int(record["oldest_request_mono_ns"])
        age_s = now_s - max(asked_ns, int(record["last_progress_mono_ns"])) * 1e-9
        waits = int(record["waits_for"])
        if asked_ns == 0 or waits == 0 or waits >= len(WAITS) or age_s < least_s:
            continue
        peer_rank, channel = int(record["peer_rank"]), int(record["flow_channel"])
        found.append(
            Waiting(
                snapshot.workload,
                rank,
                text(record["peer"]),
                "" if peer_rank == UNKNOWN else str(peer_rank),
                WAITS[waits],
                age_s,
                "" if channel == UNKNOWN else str(channel),
                int(record["missing_bytes"]),
                snapshot.user_id,
            )
        )
    return found


def oldest(waiting: list[Waiting], count: int) -> list[Waiting]:
    """The `count` oldest, the oldest first."""
    return largest(waiting, _key, lambda w: w.age_s, count)


def largest(
    entries: list[Named], key: Callable[[Named], object], value: Callable[[Named], float], count: int
) -> list[Named]:
    """The `count` largest, largest first, one a key: two entries of one key would be one series twice."""
    best: dict[object, Named] = {}
    for entry in sorted(entries, key=value):
        best[key(entry)] = entry
    return sorted(best.values(), key=value, reverse=True)[:count]


def _key(waiting: Waiting) -> object:
    return (waiting.owner, waiting.workload, waiting.rank, waiting.peer, waiting.peer_rank, waiting.waits_for)
