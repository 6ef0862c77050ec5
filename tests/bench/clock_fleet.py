"""A whole fleet in simulated time: the real estimator, filter, solve and fleet clock on the simulated fabric.

Nothing here is a model of clocksync: `EdgeWindow`, `Fleet` and `FleetClock` are the ones of the daemons, fed through
the same messages. Only clocks, queues and the passing of time are simulated.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tests.bench.clock_simulator import Clock, Path, Queue, loaded_path

from fabricpulse.clocksync.edge_estimator import EdgeFit, EstimatorParameters
from fabricpulse.clocksync.edge_window import EdgeWindow
from fabricpulse.clocksync.fleet import Fleet
from fabricpulse.clocksync.fleet_clock import Correction, FleetClock, FleetClockParameters, Instant
from fabricpulse.clocksync.samples import SAMPLE_DTYPE, Samples
from fabricpulse.clocksync.wire import PROTOCOL, EdgeName, EdgeReport, HostInfo, Line, StepReport, pack_edges
from fabricpulse.core.shm.clock_page import ClockStatus, FleetTime
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND

_NS = 10**9
_START_S = 1.0


@dataclass
class SimEdge:
    """An edge, owned and fitted by host `a`."""

    a: int
    b: int
    forward: Path
    backward: Path
    window: EdgeWindow
    up: bool = True
    fit: EdgeFit | None = None


@dataclass
class SimHost:
    """A host: its crystal, its fleet clock. lie_ns : of true time, added to all its stamps."""

    name: str
    clock: Clock
    fleet_clock: FleetClock | None = None
    alive: bool = True
    lie_ns: Callable[[float], float] | None = None
    rx_late_ns: float = 0.0
    root: str = ""
    announced: bool = False

    def instant(self, t_s: float) -> Instant:
        """Both its clocks at true time t."""
        host = int(self.clock.at(np.array([t_s]))[0])
        stepped = sum(by for at, by in self.clock.steps if t_s >= at)
        return Instant(host, host - self.clock.offset_ns - stepped)


@dataclass
class SimFleet:
    """n hosts with k peers each; see the module. loads : (forward, backward), drawn anew for each edge from `loads`."""

    n: int
    k: int = 10
    seed: int = 1
    rate: float = 50.0
    seconds: float = 120.0
    loads: Sequence[tuple[float, float]] = ((0.0, 0.0),)
    wander_ppb: float = 2.0
    gbit_s: float = 100.0
    noise_ns: float = 10.0
    window_s: float = 4.0
    step_s: float = 1.0
    grid_s: float = 0.01
    parameters: EstimatorParameters = field(default_factory=EstimatorParameters)
    clock_parameters: FleetClockParameters = field(default_factory=FleetClockParameters)

    def __post_init__(self) -> None:
        rng = self.rng = np.random.default_rng(self.seed)
        self.t = _START_S
        self.coordinator: Fleet | None = Fleet()
        self.hosts = [
            SimHost(
                f"h{i:05d}",
                Clock(
                    rng,
                    self.seconds + 10,
                    offset_ns=1_700_000_000 * _NS + int(rng.integers(-5 * _NS, 5 * _NS)),
                    rate_ppb=float(rng.uniform(-50_000, 50_000)),
                    wander_ppb=self.wander_ppb,
                    grid_s=self.grid_s,
                ),
            )
            for i in range(self.n)
        ]
        library: dict[float, list[Queue]] = {}

        def path(load: float, base: float) -> Path:
            return loaded_path(
                rng, load, library, gbit_s=self.gbit_s, base_ns=base, noise_ns=self.noise_ns, seconds=0.25
            )

        self.edges: list[SimEdge] = []
        for i, j in self._pairs():
            forward, backward = self.loads[int(rng.integers(len(self.loads)))]
            base = float(rng.uniform(800, 3_000))
            window = EdgeWindow(self.parameters, round(self.window_s * _NS))
            self.edges.append(SimEdge(i, j, path(forward, base), path(backward, base), window))
        self.owned: dict[int, list[SimEdge]] = {i: [] for i in range(self.n)}
        for edge in self.edges:
            self.owned[edge.a].append(edge)
        self.backward_jumps = 0
        self._last = np.zeros(self.n, np.int64)
        self.misfits: list[tuple[str, str]] = []

    def _pairs(self) -> list[tuple[int, int]]:
        """k edges a host on average, connected: a ring and random ones."""
        pairs = {(i, (i + 1) % self.n) for i in range(self.n)} if self.n > 2 else {(0, 1)}
        wanted = min(self.n * (self.n - 1) // 2, max(len(pairs), self.n * self.k // 2))
        while len(pairs) < wanted:
            i, j = (int(x) for x in self.rng.integers(0, self.n, 2))
            if i != j and (i, j) not in pairs and (j, i) not in pairs:
                pairs.add((i, j))
        return sorted(pairs)

    # One step

    def step(self) -> None:
        """Lets `step_s` pass: probes, fits, reports, the solve (if there is a coordinator), corrections."""
        begin, end = self.t, self.t + self.step_s
        for edge in self.edges:
            a, b = self.hosts[edge.a], self.hosts[edge.b]
            if edge.up and a.alive and b.alive:
                edge.window.add(self._samples(edge, begin, end))
        ticks = np.arange(begin + 0.25, end - 0.01, 0.25)
        for host in self.hosts:
            for t in ticks:
                self._tick(host, float(t))
        self.t = end
        for i, host in enumerate(self.hosts):
            self._tick(host, end)
            if host.alive:
                now = host.instant(end).host_ns
                for edge in self.owned[i]:
                    edge.fit = edge.window.advance(now)
        if self.coordinator is not None:
            for i, host in enumerate(self.hosts):
                if host.alive:
                    # On the network, and in queues of the coordinator: nobody knows how long.
                    self.coordinator.report(self._report(i, host), end + float(self.rng.exponential(0.005)))
            self.coordinator.step(end + 0.05)
            for host in self.hosts:
                member = self.coordinator.members.get(host.name)
                if host.alive and member is not None and member.line is not None:
                    host.root = self.coordinator.root
                    self._correct(host, member.line)
        self._check_monotonic()

    def run(self, seconds: float) -> None:
        """As many steps."""
        for _ in range(round(seconds / self.step_s)):
            self.step()

    def _tick(self, host: SimHost, t: float) -> None:
        if not host.alive:
            return
        now = host.instant(t)
        if host.fleet_clock is None:
            host.fleet_clock = FleetClock.start(self.clock_parameters, now)
        before = host.fleet_clock.page.disruptions
        host.fleet_clock.tick(now)
        if host.fleet_clock.page.disruptions != before:
            for edge in self.owned[self.hosts.index(host)]:
                edge.window.clear()

    def _correct(self, host: SimHost, line: Line) -> None:
        if host.fleet_clock is not None:
            now = host.instant(self.t + 0.06)
            adrift = self.coordinator is not None and self.coordinator.adrift
            correction = Correction(
                line.ref_host_ns, line.correction_ns, line.rate_ppt * 1e-3, line.bound_ns, adrift=adrift
            )
            host.fleet_clock.correct(now, correction)

    def _samples(self, edge: SimEdge, begin: float, end: float) -> Samples:
        a, b = self.hosts[edge.a], self.hosts[edge.b]
        parts = []
        for path, sender, receiver, direction in (
            (edge.forward, a, b, OUTBOUND),
            (edge.backward, b, a, INBOUND),
        ):
            count = max(1, round((end - begin) * self.rate))
            starts = begin + (np.arange(count) + self.rng.uniform(0, 0.6, count)) / self.rate
            tx, rx, late = path.trains(self.rng, starts)
            block = np.zeros(count, SAMPLE_DTYPE)
            block["direction"], block["flags"] = direction, MAIN_PATH
            block["tx_valid"] = block["rx_valid"] = 7
            block["tx_ns"] = _stamp(sender, (tx + late) * 1e-9)
            block["rx_ns"] = _stamp(receiver, (rx + receiver.rx_late_ns) * 1e-9)
            parts.append(block)
        return np.concatenate(parts)

    def _report(self, i: int, host: SimHost) -> StepReport:
        if host.fleet_clock is None:
            raise ValueError(f"{host.name} has no clock yet")
        now = host.instant(self.t).host_ns
        clock = host.fleet_clock
        reports = pack_edges(
            EdgeReport(
                fit.t_ns, fit.offset_ns, round(fit.rate_ppb * 1000), (fit.t_last_ns - fit.t_ns) // 1000,
                round(fit.sigma_ns), round(fit.rate_sigma_ppb * 1000), math.ceil(fit.bound_ns), number,
                int(fit.quality),
            )
            for number, edge in enumerate(self.owned[i])
            if (fit := edge.fit) is not None
        )  # fmt: skip
        names = tuple(EdgeName("rail0", self.hosts[edge.b].name, "rail0") for edge in self.owned[i])
        line = None
        if clock.known:
            target, bound = clock.target, clock.page.convert(now).bound_ns
            line = Line(now, target.at(now) - now, target.rate_ppt, bound)
        info = HostInfo(1, "", (), names, "none")
        return StepReport(
            PROTOCOL,
            host.name,
            1,
            1,
            now,
            reports,
            line,
            None,
            host.root,
            clock.page.disruptions,
            info,
            adrift=clock.adrift,
        )

    # The truth

    def times(self, t_s: float | None = None) -> list[FleetTime | None]:
        """Fleet time of every host at true time t (default: now); None where there is none."""
        t = self.t if t_s is None else t_s
        result: list[FleetTime | None] = []
        for host in self.hosts:
            known = host.alive and host.fleet_clock is not None and host.fleet_clock.known
            result.append(
                host.fleet_clock.page.convert(host.instant(t).host_ns) if known and host.fleet_clock else None
            )
        return result

    def errors(self, hosts: Sequence[int] | None = None, t_s: float | None = None) -> NDArray[np.float64]:
        """Fleet time of each of `hosts` minus their mean, ns."""
        times = self.times(t_s)
        chosen = range(self.n) if hosts is None else hosts
        fleet = [times[i].fleet_ns for i in chosen if times[i] is not None]  # type: ignore[union-attr]
        base = fleet[0]
        offset: NDArray[np.float64] = np.array([f - base for f in fleet], np.float64)
        return offset - float(offset.mean())

    def violations(self, hosts: Sequence[int] | None = None, t_s: float | None = None) -> int:
        """Pairs of `hosts` whose fleet times differ by more than the sum of their bounds."""
        times = self.times(t_s)
        chosen = [i for i in (range(self.n) if hosts is None else hosts) if times[i] is not None]
        base = times[chosen[0]].fleet_ns  # type: ignore[union-attr]
        f = np.array([times[i].fleet_ns - base for i in chosen], np.float64)  # type: ignore[union-attr]
        b = np.array([times[i].bound_ns for i in chosen], np.float64)  # type: ignore[union-attr]
        # Pairs of intervals that do not meet: those that begin behind the end of another. No matrix of all pairs: at
        # 50,000 hosts it would take 20 GB.
        return int((len(f) - np.searchsorted(np.sort(f - b), f + b, side="right")).sum())

    def statuses(self) -> list[ClockStatus | None]:
        return [None if time is None else time.status for time in self.times()]

    def _check_monotonic(self) -> None:
        for i, time in enumerate(self.times()):
            if time is not None:
                self.backward_jumps += int(time.fleet_ns <= self._last[i])
                self._last[i] = time.fleet_ns


def _stamp(host: SimHost, t_s: NDArray[np.float64]) -> NDArray[np.int64]:
    shown = host.clock.at(t_s)
    if host.lie_ns is None:
        return shown
    return shown + round(host.lie_ns(float(t_s.flat[0])))
