"""How long each rank has waited, and for which ranks: a rank that makes others wait is distinguished from ranks that
pass the wait on by what both have waited over the same time. Pure.

What is seen at a poll holds for the time since the poll before: shorter waits are sampled, and their sum is right.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fabricpulse.plugin_ipc.telemetry import TelemetrySnapshot
from fabricpulse.qp.waiting import Waiting, waiting_requests

# Nothing moves on a healthy connection under load for some milliseconds.
LEAST_S = 0.05
# The plugin gives a sign of life each second. What a process waited for when it was stopped may long be there.
SILENT_S = 2.0
# Between polls that are farther apart than this only what the age of a wait proves is counted: the host was paused.
MOST_S = 10.0
# Peers of a rank that are kept: a new one takes the place of the one that was waited for least.
MOST_PEERS = 64

Rank = tuple[str, str]  # workload, rank
Peer = tuple[str, str]  # peer, peer_rank


@dataclass
class _Process:
    """What one process has waited, s. peers : for what they had not offered yet."""

    rank: Rank
    own_s: float = 0.0
    peers: dict[Peer, float] = field(default_factory=dict)


class WaitedTime:
    """Sums over the life of each process that has a rank; one that is gone is forgotten at once."""

    def __init__(self) -> None:
        self._processes: dict[object, _Process] = {}
        self._at_s: float | None = None

    def take(self, living: Iterable[TelemetrySnapshot], now_s: float) -> None:
        """Takes in one poll. now_s : CLOCK_MONOTONIC in seconds."""
        elapsed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        before, self._processes = self._processes, {}
        for snapshot in living:
            if snapshot.rank is None:
                continue
            rank = (snapshot.workload, str(snapshot.rank))
            process = before.get(snapshot.process)
            if process is None or process.rank != rank:
                # What it has waited before it was first seen is not known.
                process = _Process(rank)
            elif now_s - snapshot.heartbeat_mono_ns * 1e-9 < SILENT_S:
                _add(process, waiting_requests(snapshot, now_s, LEAST_S), elapsed_s)
            self._processes[snapshot.process] = process

    def ranks(self) -> dict[Rank, float]:
        """Time in which a rank waited for anything, s."""
        found: dict[Rank, float] = {}
        for process in self._processes.values():
            found[process.rank] = max(process.own_s, found.get(process.rank, 0.0))
        return found

    def peers(self) -> dict[tuple[str, str, str, str], float]:
        """Time in which a rank waited for what a peer had not offered yet, s; by workload, rank, peer, peer_rank."""
        found: dict[tuple[str, str, str, str], float] = {}
        for process in self._processes.values():
            for peer, waited_s in process.peers.items():
                key = (*process.rank, *peer)
                found[key] = max(waited_s, found.get(key, 0.0))
        return found


def _add(process: _Process, waiting: list[Waiting], elapsed_s: float) -> None:
    if not waiting:
        return
    process.own_s += _part(max(w.age_s for w in waiting), elapsed_s)
    ages: dict[Peer, float] = {}
    for w in waiting:
        if w.waits_for in ("peer_send", "peer_receive") and w.peer_rank:
            ages[w.peer, w.peer_rank] = max(w.age_s, ages.get((w.peer, w.peer_rank), 0.0))
    for peer, age_s in ages.items():
        if peer not in process.peers and len(process.peers) >= MOST_PEERS:
            del process.peers[min(process.peers, key=process.peers.__getitem__)]
        process.peers[peer] = process.peers.get(peer, 0.0) + _part(age_s, elapsed_s)


def _part(age_s: float, elapsed_s: float) -> float:
    return elapsed_s if elapsed_s <= MOST_S else min(elapsed_s, age_s)
