"""From readings of single processes to the series of a host. Pure: takes snapshots and the time, does no I/O.

Counters. A series sums over many lanes of many processes. Within one process the telemetry keeps the totals of closed
lanes; a process that ends keeps its file for a while. What a process had counted when it was last seen stays in the
sum until its job is gone from this host: the sum of a living job never falls, which Prometheus would take for a
restart.

Delays. The histogram of a lane counts one-way delays while both ends have fleet time and half round trips while they
have not. What has been added since the last poll belongs to the source that holds now. Where two NICs send to
one another the lanes of a pair have both: those that receive one-way delays, and those that send, for good, the half
round trips of a moment without fleet time. What closed lanes have left behind is of one source for all of a pair.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fabricpulse.plugin_ipc.telemetry import (
    DelaySource,
    LaneState,
    Records,
    Table,
    TelemetrySnapshot,
    text,
)
from fabricpulse.qp.delay_histogram import Histogram, rebucketed
from fabricpulse.qp.flows import Flow, flows
from fabricpulse.qp.progress import Heartbeat, RankProgress, heartbeats, rank_progress
from fabricpulse.qp.unmoved import UnmovedRank, UnmovedRanks
from fabricpulse.qp.waited import WaitedTime
from fabricpulse.qp.waiting import (
    MOST_WAITING,
    OLDEST_PER_PROCESS,
    Waiting,
    largest,
    oldest,
    waiting_requests,
)

COUNTERS = (
    "sent_bytes", "received_bytes", "ecn_marked", "retransmits", "resent_chunks", "failovers", "stalls", "repaths",
    "corrupt_frames",
)  # fmt: skip
# What a kernel counts of its sockets, and no verb says of a queue pair: ports have them (fabricpulse_nic_…), and a pair
# of NICs that only has queue pairs lacks them rather than being 0.
SOCKET_COUNTERS = frozenset({"ecn_marked", "retransmits"})
_VERBS = 2  # enum fp_lane_transport
COLLECTIVE_COUNTERS = ("operations", "bytes", "busy_ns")

# Totals kept of one user's processes, by process, pair and collective. A process of the plugin has 5,120 pairs at most.
KEPT_PER_OWNER = 65_536

ProcessId = tuple[int, int, int, int]  # TelemetrySnapshot.process
Pair = tuple[str, str, str, str]  # workload, device, peer, peer_device


@dataclass
class PairTotals:
    """One series' worth of counters."""

    counters: Counter[str] = field(default_factory=Counter)
    owd: Histogram = field(default_factory=Histogram)
    half_rtt: Histogram = field(default_factory=Histogram)


# Rows of _Delays: lanes on fleet time, other lanes, closed lanes.
_FLEET, _OTHER, _CLOSED = range(3)


@dataclass
class _Delays:
    """The histograms of one process for one pair, a row each, and their sums in nanoseconds."""

    buckets: np.ndarray
    sums_ns: list[int] = field(default_factory=lambda: [0, 0, 0])


@dataclass
class _ProcessPair:
    """What one process had counted for one pair when it was last seen."""

    counters: Counter[str]
    delays: _Delays
    owd: Histogram = field(default_factory=Histogram)
    half_rtt: Histogram = field(default_factory=Histogram)


@dataclass(frozen=True)
class WorstPair:
    """A queue pair that is bad now. flow : what its connection carries, if that is known."""

    pair: Pair
    qp: str
    owd_s: float
    flow: Flow | None = None


@dataclass
class Gauges:
    """The state at the last poll."""

    processes: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    lanes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    lane_state: dict[tuple[str, str], int] = field(default_factory=dict)
    avoided: Counter[tuple[str, str]] = field(default_factory=Counter)
    flows: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    worst: list[WorstPair] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    ranks: list[RankProgress] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    unmoved: list[UnmovedRank] = field(default_factory=list)


class Aggregator:
    """Keeps the totals of a host's jobs.

    dropped_records : pairs and collectives that were not taken in because their user has KEPT_PER_OWNER already,
    counted at each poll.
    """

    def __init__(
        self,
        forget_after_s: float,
        worst_count: int,
        worst_owd_s: float,
        waiting_s: float,
        stalled_s: float = 5.0,
        interval_s: float = 1.0,
        user_of: Callable[[int], int] = lambda uid: uid,
    ) -> None:
        """user_of : whose a user id is."""
        self._user_of = user_of
        self._forget_after_s = forget_after_s
        self._worst_count = worst_count
        self._worst_owd_s = worst_owd_s
        self._waiting_s = waiting_s
        self._pairs: dict[tuple[ProcessId, Pair], _ProcessPair] = {}
        self._collectives: dict[tuple[ProcessId, str, str], Counter[str]] = {}
        self._bandwidth: dict[tuple[str, str], float] = {}
        self._lane_delay: dict[tuple[ProcessId, int, int], tuple[int, int]] = {}
        self._last_seen: dict[str, float] = {}
        self._kept: Counter[int] = Counter()
        self.dropped_records = 0
        # By user: the oldest requests of each process.
        self._waiting_of: defaultdict[int, list[list[Waiting]]] = defaultdict(list)
        self.waited = WaitedTime()
        self._unmoved = UnmovedRanks(stalled_s, interval_s)
        self.gauges = Gauges()

    def take(
        self,
        living: Iterable[TelemetrySnapshot],
        dead: Iterable[TelemetrySnapshot],
        now_s: float,
        *,
        interval: bool,
    ) -> None:
        """Takes in one poll. now_s : CLOCK_MONOTONIC in seconds.

        interval : this poll ends an interval, over which mean delays and bandwidths are computed; polls on behalf of
        scrapes do not, or two scrapers would cut each other's intervals short.
        """
        living = list(living)
        users = {owner: self._user_of(owner) for owner in {s.owner for s in living}}
        living = [s if users[s.owner] == s.owner else replace(s, user=users[s.owner]) for s in living]
        dead = list(dead)
        self._waiting_of = defaultdict(list)
        self.gauges = gauges = Gauges(worst=self.gauges.worst)
        if interval:
            gauges.worst = []
        bandwidth: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        lane_delay: dict[tuple[ProcessId, int, int], tuple[int, int]] = {}
        gauges.dead.update(snapshot.workload for snapshot in dead)
        for snapshot in (*living, *dead):
            self._count(snapshot)
            if interval:
                self._count_collectives(snapshot, bandwidth)
        for snapshot in living:
            self._last_seen[snapshot.workload] = now_s
            self._state(snapshot, now_s)
            if interval:
                lane_delay |= self._lane_delays(snapshot)
        if interval:
            self.waited.take(living, now_s)
            self._lane_delay = lane_delay
            self._bandwidth = {
                key: delta["bytes"] / (delta["busy_ns"] * 1e-9)
                for key, delta in bandwidth.items()
                if delta["busy_ns"]
            }
        gauges.worst = largest(gauges.worst, lambda w: (w.pair, w.qp), lambda w: w.owd_s, self._worst_count)
        gauges.ranks, gauges.heartbeats = rank_progress(living), heartbeats(living, now_s)
        gauges.unmoved = self._unmoved.take(gauges.ranks, now_s)
        gauges.waiting = self._oldest_waiting(gauges.waiting)
        self._forget(now_s)

    # Results.

    def pairs(self) -> dict[Pair, PairTotals]:
        """Totals by (workload, device, peer, peer_device)."""
        totals: defaultdict[Pair, PairTotals] = defaultdict(PairTotals)
        for (_, pair), known in self._pairs.items():
            total = totals[pair]
            total.counters.update(known.counters)
            total.owd.add(known.owd)
            total.half_rtt.add(known.half_rtt)
        return dict(totals)

    def owners(self) -> dict[Pair, int]:
        """User id of the owner of a pair; of one of them if several users have it."""
        return {pair: process[0] for process, pair in self._pairs}

    def collectives(self) -> dict[tuple[str, str], Counter[str]]:
        """Totals by (workload, collective)."""
        totals: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for (_, workload, name), counters in self._collectives.items():
            totals[workload, name].update(counters)
        return dict(totals)

    def bandwidth(self) -> Mapping[tuple[str, str], float]:
        """Bytes per second by (workload, collective), for those that had operations in the last interval."""
        return self._bandwidth

    # Counters.

    def _count(self, snapshot: TelemetrySnapshot) -> None:
        process = snapshot.process
        devices = snapshot.device_names()
        shape = (3, len(snapshot.delay_bounds_ns) + 1)
        sums: dict[Pair, tuple[Counter[str], _Delays]] = {}
        fleet: dict[Pair, bool] = {}
        for table in (Table.PAIRS, Table.LANES):
            for record in snapshot.tables[table]:
                device = devices.get(int(record["device"]))
                if device is None:
                    continue
                pair = (snapshot.workload, device, text(record["peer"]), text(record["peer_device"]))
                counters, delays = sums.setdefault(pair, (Counter(), _Delays(np.zeros(shape, np.uint64))))
                of_sockets = int(record["transport"]) != _VERBS
                for name in COUNTERS:
                    if of_sockets or name not in SOCKET_COUNTERS:
                        counters[name] += int(record[name])
                source = int(record["delay_source"])
                row = _CLOSED if table is Table.PAIRS else _FLEET if source == DelaySource.FLEET else _OTHER
                delays.buckets[row] += record["delay"]["buckets"]
                delays.sums_ns[row] += int(record["delay"]["sum_ns"])
                if source != DelaySource.NONE:
                    # The figures of a living lane are newer than what closed ones have left behind.
                    known = fleet.get(pair, True) if table is Table.LANES and pair in fleet else True
                    fleet[pair] = known and source == DelaySource.FLEET
        for pair, (counters, delays) in sums.items():
            known_pair = self._pairs.get((process, pair))
            if known_pair is None and not self._has_room(snapshot.owner):
                continue
            entry = known_pair or _ProcessPair(Counter(), _Delays(np.zeros(shape, np.uint64)))
            added = delays.buckets.astype(np.int64) - entry.delays.buckets.astype(np.int64)
            sums_ns = [new - old for new, old in zip(delays.sums_ns, entry.delays.sums_ns, strict=True)]
            if (added[_CLOSED] != 0).any() or (added < 0).any():
                # Lanes have closed, or a lane has another source than before: what was added is of no row.
                histogram = entry.owd if fleet.get(pair, False) else entry.half_rtt
                whole = [(histogram, added.sum(axis=0), sum(sums_ns))]
            else:
                whole = [
                    (entry.owd, added[_FLEET], sums_ns[_FLEET]),
                    (entry.half_rtt, added[_OTHER], sums_ns[_OTHER]),
                ]
            for histogram, counts, sum_ns in whole:
                if (counts > 0).any():
                    histogram.add(rebucketed(np.maximum(counts, 0), snapshot.delay_bounds_ns, sum_ns))
            entry.counters, entry.delays = counters, delays
            self._pairs[process, pair] = entry

    def _has_room(self, owner: int) -> bool:
        """Whether one more total of this user is kept: what a file says must not fill our memory."""
        if self._kept[owner] >= KEPT_PER_OWNER:
            self.dropped_records += 1
            return False
        self._kept[owner] += 1
        return True

    def _count_collectives(
        self, snapshot: TelemetrySnapshot, bandwidth: defaultdict[tuple[str, str], Counter[str]]
    ) -> None:
        process = snapshot.process
        sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for record in snapshot.tables[Table.COLLECTIVES]:
            for name in COLLECTIVE_COUNTERS:
                sums[text(record["function"])][name] += int(record[name])
        for function, counters in sums.items():
            key = (process, snapshot.workload, function)
            before = self._collectives.get(key)
            if before is None and not self._has_room(snapshot.owner):
                continue
            if before is not None and counters["operations"] > before["operations"]:
                delta = bandwidth[snapshot.workload, function]
                for name in COLLECTIVE_COUNTERS:
                    delta[name] += counters[name] - before[name]
            self._collectives[key] = counters

    # State.

    def _state(self, snapshot: TelemetrySnapshot, now_s: float) -> None:
        gauges, workload = self.gauges, snapshot.workload
        gauges.processes[workload] += 1
        devices = snapshot.device_names()
        for record in snapshot.tables[Table.DEVICES]:
            gauges.avoided[workload, text(record["name"])] += int(record["avoided"])
        for record in snapshot.tables[Table.LANES]:
            device = devices.get(int(record["device"]))
            if device is None:
                continue
            state = _lane_state(int(record["state"]))
            if state is None:
                continue
            gauges.lanes[workload, device, state.name.lower()] += 1
            if state.beside_queue_pairs:  # says nothing of the queue pairs over this NIC
                continue
            carrying = gauges.lane_state.get((workload, device), 0)
            gauges.lane_state[workload, device] = max(carrying, int(state.carries))
        for flow in flows(snapshot).values():
            gauges.flows[workload, flow.collective, flow.algorithm, flow.protocol] += 1
        self._take_waiting(snapshot, now_s)

    def _take_waiting(self, snapshot: TelemetrySnapshot, now_s: float) -> None:
        found = waiting_requests(snapshot, now_s, self._waiting_s)
        if found:
            self.gauges.waiting += found
            self._waiting_of[snapshot.user_id].append(oldest(found, OLDEST_PER_PROCESS))

    def _oldest_waiting(self, waiting: list[Waiting]) -> list[Waiting]:
        """The oldest of all and the oldest of each process: a process left out would seem to wait for no peer.

        Of one user's processes those that wait longest, MOST_WAITING of them.
        """
        if not self._worst_count:
            return []
        kept = oldest(waiting, self._worst_count)
        for processes in self._waiting_of.values():
            for own in sorted(processes, key=lambda own: -own[0].age_s)[:MOST_WAITING]:
                kept += own
        return oldest(kept, len(kept))

    def _lane_delays(self, snapshot: TelemetrySnapshot) -> dict[tuple[ProcessId, int, int], tuple[int, int]]:
        """Finds the slowest lanes of the interval; returns what the next interval starts from."""
        process = snapshot.process
        devices = snapshot.device_names()
        lanes: Records = snapshot.tables[Table.LANES]
        carried = flows(snapshot)
        result = {}
        for slot, record in zip(snapshot.slots[Table.LANES], lanes, strict=True):
            key = (process, int(slot), int(record["generation"]))
            count, sum_ns = int(record["delay"]["count"]), int(record["delay"]["sum_ns"])
            result[key] = (count, sum_ns)
            before = self._lane_delay.get(key)
            device = devices.get(int(record["device"]))
            if before is None or count <= before[0] or device is None:
                continue
            if int(record["delay_source"]) != DelaySource.FLEET:
                continue
            mean_s = (sum_ns - before[1]) / (count - before[0]) * 1e-9
            if mean_s > self._worst_owd_s:
                pair = (snapshot.workload, device, text(record["peer"]), text(record["peer_device"]))
                flow = carried.get(int(record["connection"]))
                self.gauges.worst.append(WorstPair(pair, str(int(record["queue_pair"])), mean_s, flow))
        return result

    def _forget(self, now_s: float) -> None:
        ended = {w for w, seen in self._last_seen.items() if now_s - seen > self._forget_after_s}
        for workload in ended:
            del self._last_seen[workload]
        # A job that was dead when the exporter started has never been seen alive.
        known = self._last_seen.keys()
        for pair_key in [key for key in self._pairs if key[1][0] not in known]:
            del self._pairs[pair_key]
            self._kept[pair_key[0][0]] -= 1
        for collective_key in [key for key in self._collectives if key[1] not in known]:
            del self._collectives[collective_key]
            self._kept[collective_key[0][0]] -= 1


def _lane_state(value: int) -> LaneState | None:
    """None for a free slot and for a state that this version does not know."""
    try:
        state = LaneState(value)
    except ValueError:
        return None
    return None if state is LaneState.FREE else state
