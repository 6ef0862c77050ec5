"""Simulated hosts that keep fleet time: their fleet clocks, the coordinator that they follow, and the truth.

`FleetClock` and `Fleet` are those of the daemons, and they talk in the messages of the daemons. What the hosts' clocks
show and what their edges measure is up to the subclasses.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClock, FleetClockParameters
from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.edge.estimator import EdgeFit
from fabricpulse.clocksync.wire.messages import PROTOCOL, EdgeName, EdgeReport, HostInfo, Line, RoundReport
from fabricpulse.core.shm.clock_page import ClockStatus, FleetTime

NS = 10**9
START_S = 1.0
# UTC at true time 0.
UTC_NS = 1_700_000_000 * NS
# How often sidecars look at their clocks.
_TICK_S = 0.25


@dataclass(frozen=True)
class Anchor:
    """A host whose clock is steered to UTC. bound_ns : how far from it the host says that it is at most.

    error_ns, rate_ppb : how far its clock really is from it at true time 0, and how fast that grows.
    """

    bound_ns: int
    error_ns: int = 0
    rate_ppb: float = 0.0


@dataclass
class SimHost:
    """A host and its fleet clock. root : of the last solve that it has received."""

    name: str
    fleet_clock: FleetClock | None = None
    alive: bool = True
    anchor: Anchor | None = None
    root: str = ""


def edge_report(fit: EdgeFit, number: int) -> EdgeReport:
    """A fit for the wire, as the sidecar says it (host_edges.py). number : of the edge among those of its host."""
    return EdgeReport(
        fit.t_ns, fit.offset_ns, round(fit.rate_ppb * 1000), (fit.t_last_ns - fit.t_ns) // 1000,
        round(fit.sigma_ns), round(fit.rate_sigma_ppb * 1000), math.ceil(fit.bound_ns), number, int(fit.quality),
    )  # fmt: skip


def mesh_pairs(rng: np.random.Generator, n: int, k: int) -> list[tuple[int, int]]:
    """Which of n hosts measure each other: k edges a host on average, connected: a ring and random ones."""
    pairs = {(i, (i + 1) % n) for i in range(n)} if n > 2 else {(0, 1)}
    wanted = min(n * (n - 1) // 2, max(len(pairs), n * k // 2))
    while len(pairs) < wanted:
        i, j = (int(x) for x in rng.integers(0, n, 2))
        if i != j and (i, j) not in pairs and (j, i) not in pairs:
            pairs.add((i, j))
    return sorted(pairs)


class Timeline:
    """hosts, and the coordinator that they follow, if there is one. t : true time, s. backward_jumps : of fleet time,
    of any host. solve_s : wall and CPU time of each solve.
    """

    hosts: Sequence[SimHost]

    def __init__(self, n: int, rng: np.random.Generator, parameters: FleetClockParameters) -> None:
        self.t = START_S
        self.coordinator: Fleet | None = Fleet()
        self.backward_jumps = 0
        self.solve_s: list[tuple[float, float]] = []
        self._random = rng
        self._clock_parameters = parameters
        self._last = np.zeros(n, np.int64)

    # What subclasses know

    def instants(self, t_s: float) -> Sequence[CrossTimestamp]:
        """What the clocks of all hosts show at true time t."""
        raise NotImplementedError

    def peers(self, host: int) -> Sequence[int]:
        """Of the edges that `host` reports, in their order."""
        raise NotImplementedError

    # Passing of time

    def tick_until(self, end_s: float) -> list[int]:
        """Lets all fleet clocks tick up to true time `end_s`; hosts whose fleet time was contradicted."""
        disrupted: list[int] = []
        for t in (*np.arange(self.t + _TICK_S, end_s - 0.01, _TICK_S).tolist(), end_s):
            for i, (host, now) in enumerate(zip(self.hosts, self.instants(t), strict=True)):
                if not host.alive:
                    continue
                if host.fleet_clock is None:
                    host.fleet_clock = FleetClock.start(self._clock_parameters, now)
                before = host.fleet_clock.page.disruptions
                host.fleet_clock.tick(now)
                if host.fleet_clock.page.disruptions != before:
                    disrupted.append(i)
        self.t = end_s
        return disrupted

    def solve(self, edges: Callable[[int], bytes]) -> None:
        """All hosts report, the coordinator solves, all correct themselves. edges : records of EDGE, by host."""
        coordinator = self.coordinator
        if coordinator is not None:
            for i, (host, now) in enumerate(zip(self.hosts, self.instants(self.t), strict=True)):
                if host.alive:
                    # On the network, and in queues of the coordinator: nobody knows how long.
                    late = float(self._random.exponential(0.005))
                    coordinator.report(self._report(i, host, now, edges(i)), self.t + late)
            began = time.perf_counter(), time.thread_time()
            if coordinator.solve_round(self.t + 0.05) is not None:
                self.solve_s.append((time.perf_counter() - began[0], time.thread_time() - began[1]))
            quorum = coordinator.quorum
            for host, now in zip(self.hosts, self.instants(self.t + 0.06), strict=True):
                member = coordinator.roster.members.get(host.name)
                line = member.line if member is not None else None
                if host.alive and host.fleet_clock is not None and line is not None:
                    host.root = coordinator.root
                    correction = Correction(
                        line.ref_host_ns,
                        line.correction_ns,
                        line.rate_ppt * 1e-3,
                        line.bound_ns,
                        free=quorum is not None and quorum.anchored,
                        no_quorum=coordinator.no_quorum,
                    )
                    host.fleet_clock.correct(now, correction)
        self._check_monotonic()

    def _report(self, i: int, host: SimHost, now: CrossTimestamp, edges: bytes) -> RoundReport:
        clock = host.fleet_clock
        if clock is None or self.coordinator is None:
            raise ValueError(f"{host.name} has no clock yet, or nobody to report to")
        line = None
        stamp_ns = now.raw_ns + clock.epoch_ns
        if clock.known:
            asked = clock.requested(now)
            bound_ns = clock.kept_bound_ns(now)
            line = Line(stamp_ns, asked.to_ns - stamp_ns, asked.rate_ppt, bound_ns)
        info = None
        member = self.coordinator.roster.members.get(host.name)
        if member is None or self.coordinator.needs_info(member):
            names = tuple(EdgeName("rail0", self.hosts[j].name, "rail0") for j in self.peers(i))
            info = HostInfo(1, "", (), names, "none" if host.anchor is None else "system")
        anchor = None if host.anchor is None else (now.host_ns - stamp_ns, host.anchor.bound_ns)
        return RoundReport(
            PROTOCOL, host.name, 1, 1, stamp_ns, edges, line, anchor, host.root, clock.page.disruptions, info,
            no_quorum=clock.no_quorum,
        )  # fmt: skip

    def _check_monotonic(self) -> None:
        for i, shown in enumerate(self.times()):
            if shown is not None:
                self.backward_jumps += int(shown.fleet_ns <= self._last[i])
                self._last[i] = shown.fleet_ns

    # The truth

    def times(self, t_s: float | None = None) -> list[FleetTime | None]:
        """Fleet time of every host at true time t (default: now); None where there is none."""
        return [
            host.fleet_clock.page.at(now.raw_ns)
            if host.alive and host.fleet_clock is not None and host.fleet_clock.known
            else None
            for host, now in zip(self.hosts, self.instants(self.t if t_s is None else t_s), strict=True)
        ]

    def errors(self, hosts: Sequence[int] | None = None, t_s: float | None = None) -> NDArray[np.float64]:
        """Fleet time of each of `hosts` minus their mean, ns."""
        fleet = [shown.fleet_ns for shown in self._known(hosts, t_s)]
        offset: NDArray[np.float64] = np.array([f - fleet[0] for f in fleet], np.float64)
        return offset - float(offset.mean())

    def utc_errors(self, t_s: float | None = None) -> NDArray[np.float64]:
        """Fleet time of each host that has it minus UTC, ns."""
        utc = UTC_NS + round((self.t if t_s is None else t_s) * NS)
        return np.array([shown.fleet_ns - utc for shown in self._known(None, t_s)], np.float64)

    def bounds(self, t_s: float | None = None) -> NDArray[np.float64]:
        """Of each host that has fleet time, ns."""
        return np.array([shown.bound_ns for shown in self._known(None, t_s)], np.float64)

    def violations(self, hosts: Sequence[int] | None = None, t_s: float | None = None) -> int:
        """Pairs of `hosts` whose fleet times differ by more than the sum of their bounds."""
        times = self._known(hosts, t_s)
        f = np.array([shown.fleet_ns - times[0].fleet_ns for shown in times], np.float64)
        b = np.array([shown.bound_ns for shown in times], np.float64)
        # Pairs of intervals that do not meet: those that begin behind the end of another. No matrix of all pairs: at
        # 50,000 hosts it would take 20 GB.
        return int((len(f) - np.searchsorted(np.sort(f - b), f + b, side="right")).sum())

    def statuses(self) -> list[ClockStatus | None]:
        return [None if shown is None else shown.status for shown in self.times()]

    def _known(self, hosts: Sequence[int] | None, t_s: float | None) -> list[FleetTime]:
        times = self.times(t_s)
        chosen = times if hosts is None else [times[i] for i in hosts]
        return [shown for shown in chosen if shown is not None]
