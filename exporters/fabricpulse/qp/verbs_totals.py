"""From readings of single processes with the verbs interposer to the series of a host. Pure: no I/O, no clock.

What a process had counted when it was last seen stays in the sum until its job is gone from this host: the sum of a
living job never falls. A queue pair has series from when it is connected: until then it has no peer.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.plugin_ipc.table_file import text
from fabricpulse.plugin_ipc.verbs import OPCODE_SLOTS, OPCODES, STATUSES, Bypass, VerbsSnapshot, peer_name
from fabricpulse.qp import verbs_metrics as metrics

# Pairs kept of one user's processes: a process has 1,024 totals and 4,096 queue pairs at most.
KEPT_PER_OWNER = 16_384
# Exported from the start, so that the first one is an increase.
_USUAL_STATUSES = ("wr_flush", "retry_exc", "rnr_retry_exc")
_DATAGRAM = 4

Pair = tuple[str, str, str, str, str]  # workload, device, rdma_device, port, peer
_Process = tuple[int, int, int, int]


@dataclass
class _Counted:
    """What one process has counted for one pair."""

    posts: np.ndarray = field(default_factory=lambda: np.zeros(OPCODE_SLOTS, np.uint64))
    bytes: np.ndarray = field(default_factory=lambda: np.zeros(OPCODE_SLOTS, np.uint64))
    errors: np.ndarray = field(default_factory=lambda: np.zeros(len(STATUSES), np.uint64))
    buckets: np.ndarray = field(
        default_factory=lambda: np.zeros(len(metrics.COMPLETION_BUCKETS_S) + 1, np.uint64)
    )
    delay_ns: int = 0
    received_bytes: int = 0
    sent: int = 0
    received: int = 0

    def add(self, counters: np.void) -> None:
        """Adds a record's counters."""
        self.posts = self.posts + counters["posts"]
        self.bytes = self.bytes + counters["bytes"]
        self.errors = self.errors + counters["errors"]
        self.buckets = self.buckets + counters["delay"]["buckets"]
        self.delay_ns += int(counters["delay"]["sum_ns"])
        self.received_bytes += int(counters["received_bytes"])
        self.sent += int(counters["messages_sent"])
        self.received += int(counters["messages_received"])

    def join(self, other: "_Counted") -> None:
        """Adds what another process has counted."""
        self.posts = self.posts + other.posts
        self.bytes = self.bytes + other.bytes
        self.errors = self.errors + other.errors
        self.buckets = self.buckets + other.buckets
        self.delay_ns += other.delay_ns
        self.received_bytes += other.received_bytes
        self.sent += other.sent
        self.received += other.received


@dataclass
class _State:
    """Of one pair, now."""

    queue_pairs: int = 0
    outstanding: int = 0
    waiting_ns: int = 0


class VerbsTotals:
    """Keeps the totals of a host's programs. dropped : pairs without room, counted at each poll."""

    def __init__(self, forget_after_s: float) -> None:
        self._forget_after_s = forget_after_s
        self._counted: dict[tuple[_Process, Pair], _Counted] = {}
        self._unseen: dict[tuple[_Process, str], tuple[int, int, int]] = {}
        self._kept: Counter[int] = Counter()
        self._last_seen: dict[str, float] = {}
        self._state: dict[Pair, _State] = {}
        self._processes: Counter[str] = Counter()
        self._bypass: Counter[tuple[str, str]] = Counter()
        self.dropped = 0

    def take(
        self, living: Iterable[VerbsSnapshot], dead: Iterable[VerbsSnapshot], now_s: float, raw_ns: int
    ) -> None:
        """Takes in one poll. now_s : CLOCK_MONOTONIC. raw_ns : CLOCK_MONOTONIC_RAW, the clock of the files."""
        self._state = defaultdict(_State)
        self._processes, self._bypass = Counter(), Counter()
        for snapshot in dead:
            self._count(snapshot)
        for snapshot in living:
            self._count(snapshot)
            self._last_seen[snapshot.workload] = now_s
            self._processes[snapshot.workload] += 1
            for kind in Bypass:
                self._bypass[snapshot.workload, str(kind.name).lower()] += kind in snapshot.bypass
            self._now(snapshot, raw_ns)
        self._forget(now_s)

    def expose(self, exposition: Exposition, errors: int) -> None:
        """Adds all series. errors : files that could not be read."""
        for workload, count in sorted(self._processes.items()):
            exposition.add(metrics.PROCESSES, (workload,), count)
        for key, count in sorted(self._bypass.items()):
            exposition.add(metrics.BYPASS, key, count)
        unseen: defaultdict[tuple[str, str], int] = defaultdict(int)
        for (_, workload), counts in self._unseen.items():
            for kind, count in zip(("posts", "completions", "records"), counts, strict=True):
                unseen[workload, kind] += count
        for key, count in sorted(unseen.items()):
            exposition.add(metrics.UNSEEN, key, count)
        exposition.add(metrics.VERBS_ERRORS, (), errors + self.dropped)
        for pair, state in sorted(self._state.items()):
            exposition.add(metrics.QUEUE_PAIRS, pair, state.queue_pairs)
            exposition.add(metrics.OUTSTANDING, pair, state.outstanding)
            exposition.add(metrics.WAITING, pair, state.waiting_ns * 1e-9)
        totals: defaultdict[Pair, _Counted] = defaultdict(_Counted)
        for (_, pair), counted in self._counted.items():
            totals[pair].join(counted)
        for pair, counted in sorted(totals.items()):
            _expose_pair(exposition, pair, counted)

    def _count(self, snapshot: VerbsSnapshot) -> None:
        process = snapshot.process
        self._unseen[process, snapshot.workload] = (
            snapshot.unseen_posts,
            snapshot.unseen_completions,
            snapshot.dropped_records,
        )
        sums: defaultdict[Pair, _Counted] = defaultdict(_Counted)
        for records in (snapshot.totals, snapshot.queue_pairs):
            for record in records:
                pair = _pair(snapshot, record)
                if pair is not None:
                    sums[pair].add(record["counters"])
        for pair, counted in sums.items():
            if (process, pair) not in self._counted:
                if self._kept[snapshot.owner] >= KEPT_PER_OWNER:
                    self.dropped += 1
                    continue
                self._kept[snapshot.owner] += 1
            self._counted[process, pair] = counted

    def _now(self, snapshot: VerbsSnapshot, raw_ns: int) -> None:
        for record in snapshot.queue_pairs:
            pair = _pair(snapshot, record)
            if pair is None:
                continue
            state = self._state[pair]
            state.queue_pairs += 1
            state.outstanding += int(record["outstanding"])
            if int(record["outstanding_signaled"]):
                since = max(int(record["oldest_post_raw_ns"]), int(record["last_progress_raw_ns"]))
                state.waiting_ns = max(state.waiting_ns, raw_ns - since)

    def _forget(self, now_s: float) -> None:
        """Drops what jobs have counted that have had no process here for a while."""
        for _, pair in self._counted:
            self._last_seen.setdefault(pair[0], now_s)
        ended = {
            workload for workload, seen in self._last_seen.items() if now_s - seen > self._forget_after_s
        }
        if not ended:
            return
        for key in [key for key in self._counted if key[1][0] in ended]:
            del self._counted[key]
            self._kept[key[0][0]] -= 1
        for unseen in [key for key in self._unseen if key[1] in ended]:
            del self._unseen[unseen]
        for workload in ended:
            del self._last_seen[workload]


def _pair(snapshot: VerbsSnapshot, record: np.void) -> Pair | None:
    """The labels of a record; None for one that is not connected, or whose device is not known."""
    rdma_device = snapshot.devices.get(int(record["device"]))
    peer = peer_name(bytes(record["peer_gid"]), int(record["peer_lid"]))
    names = record.dtype.names or ()
    connected = peer or ("type" in names and int(record["type"]) == _DATAGRAM)
    if rdma_device is None or (not connected and "type" in names):
        return None
    device = text(record["netdev"]) or rdma_device
    return snapshot.workload, device, rdma_device, str(int(record["port"])), peer


def _expose_pair(exposition: Exposition, pair: Pair, counted: _Counted) -> None:
    for number, (posts, size) in enumerate(zip(counted.posts, counted.bytes, strict=True)):
        if posts:
            opcode = OPCODES[number] if number < len(OPCODES) else "other"
            exposition.add(metrics.POSTS, (*pair, opcode), int(posts))
            exposition.add(metrics.SENT_BYTES, (*pair, opcode), int(size))
    exposition.add(metrics.RECEIVED_BYTES, pair, counted.received_bytes)
    exposition.add(metrics.MESSAGES, (*pair, "sent"), counted.sent)
    exposition.add(metrics.MESSAGES, (*pair, "received"), counted.received)
    for status, count in zip(STATUSES, counted.errors, strict=True):
        if count or status in _USUAL_STATUSES:
            exposition.add(metrics.COMPLETION_ERRORS, (*pair, status), int(count))
    exposition.add_histogram(
        metrics.COMPLETION, pair, [int(count) for count in counted.buckets], counted.delay_ns * 1e-9
    )
