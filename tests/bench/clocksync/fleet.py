"""A whole fleet in simulated time: the real estimator, filter, solve and fleet clock on the simulated fabric.

Nothing here is a model of clocksync: `EdgeWindow`, `Fleet` and `FleetClock` are the ones of the daemons, fed through
the same messages. Only clocks, queues and the passing of time are simulated. Everything may go wrong in any round; for
fleets of thousands without that see clos.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tests.bench.clocksync.simulator import Clock, Path, Queue, loaded_path
from tests.bench.clocksync.timeline import NS, UTC_NS, Anchor, SimHost, Timeline, edge_report, mesh_pairs

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import FleetClockParameters
from fabricpulse.clocksync.edge.estimator import EdgeFit, EstimatorParameters
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE, Samples
from fabricpulse.clocksync.edge.window import EdgeWindow
from fabricpulse.clocksync.wire.messages import pack_edges
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND


@dataclass
class SimEdge:
    """An edge, owned and fitted by host `a`. lie_ns : of stamps of `a`, whose NIC of this edge has another clock."""

    a: int
    b: int
    forward: Path
    backward: Path
    window: EdgeWindow
    up: bool = True
    fit: EdgeFit | None = None
    lie_ns: int = 0


@dataclass
class CrystalHost(SimHost):
    """A host and its crystal. lie_ns : of true time, added to all its stamps. rx_late_ns : of its receive stamps."""

    clock: Clock = field(kw_only=True)
    lie_ns: Callable[[float], float] | None = None
    rx_late_ns: float = 0.0

    def cross_timestamp(self, t_s: float) -> CrossTimestamp:
        """Both its clocks at true time t."""
        stamp = int(self.clock.at(np.array([t_s]))[0])
        return CrossTimestamp(stamp + self.clock.stepped_ns(t_s), stamp - self.clock.offset_ns)


@dataclass
class SimFleet(Timeline):
    """n hosts with k peers each; see the module. loads : (forward, backward), drawn anew for each edge from `loads`.

    anchors : hosts whose clocks are steered to UTC, or that believe so.
    """

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
    round_s: float = 1.0
    grid_s: float = 0.01
    anchors: Mapping[int, Anchor] = field(default_factory=dict)
    parameters: EstimatorParameters = field(default_factory=EstimatorParameters)
    clock_parameters: FleetClockParameters = field(default_factory=FleetClockParameters)

    def __post_init__(self) -> None:
        rng = self.rng = np.random.default_rng(self.seed)
        super().__init__(self.n, rng, self.clock_parameters)
        self.hosts: list[CrystalHost] = [self._host(i) for i in range(self.n)]
        library: dict[float, list[Queue]] = {}

        def path(load: float, base: float) -> Path:
            return loaded_path(
                rng, load, library, gbit_s=self.gbit_s, base_ns=base, noise_ns=self.noise_ns, seconds=0.25
            )

        self.edges: list[SimEdge] = []
        for i, j in mesh_pairs(rng, self.n, self.k):
            forward, backward = self.loads[int(rng.integers(len(self.loads)))]
            base = float(rng.uniform(800, 3_000))
            window = EdgeWindow(self.parameters, round(self.window_s * NS))
            self.edges.append(SimEdge(i, j, path(forward, base), path(backward, base), window))
        self.owned: dict[int, list[SimEdge]] = {i: [] for i in range(self.n)}
        for edge in self.edges:
            self.owned[edge.a].append(edge)

    def _host(self, i: int) -> CrystalHost:
        offset_ns = UTC_NS + int(self.rng.integers(-5 * NS, 5 * NS))
        rate_ppb = float(self.rng.uniform(-50_000, 50_000))
        anchor = self.anchors.get(i)
        if anchor is not None:
            offset_ns, rate_ppb = UTC_NS + anchor.error_ns, anchor.rate_ppb
        clock = Clock(
            self.rng,
            self.seconds + 10,
            offset_ns=offset_ns,
            rate_ppb=rate_ppb,
            wander_ppb=self.wander_ppb,
            grid_s=self.grid_s,
        )
        return CrystalHost(f"h{i:05d}", anchor=anchor, clock=clock)

    def instants(self, t_s: float) -> list[CrossTimestamp]:
        return [host.cross_timestamp(t_s) for host in self.hosts]

    def peers(self, host: int) -> list[int]:
        return [edge.b for edge in self.owned[host]]

    # One round

    def play_round(self) -> None:
        """Lets `round_s` pass: probes, fits, reports, the solve (if there is a coordinator), corrections."""
        begin, end = self.t, self.t + self.round_s
        for edge in self.edges:
            a, b = self.hosts[edge.a], self.hosts[edge.b]
            if edge.up and a.alive and b.alive:
                edge.window.add(self._samples(edge, begin, end))
        for i in self.tick_until(end):
            for edge in self.owned[i]:
                edge.window.clear()
        for i, host in enumerate(self.hosts):
            if host.alive:
                now = host.cross_timestamp(end).host_ns
                for edge in self.owned[i]:
                    edge.fit = edge.window.advance(now)
        self.solve(self._reported)

    def run(self, seconds: float) -> None:
        """As many steps."""
        for _ in range(round(seconds / self.round_s)):
            self.play_round()

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
            block["tx_ns" if sender is a else "rx_ns"] += edge.lie_ns
            parts.append(block)
        return np.concatenate(parts)

    def _reported(self, host: int) -> bytes:
        return pack_edges(
            edge_report(fit, number)
            for number, edge in enumerate(self.owned[host])
            if (fit := edge.fit) is not None
        )


def _stamp(host: CrystalHost, t_s: NDArray[np.float64]) -> NDArray[np.int64]:
    shown = host.clock.at(t_s)
    if host.lie_ns is None:
        return shown
    # Train by train: a lie begins in the middle of a window.
    lies = np.array([round(host.lie_ns(float(t))) for t in t_s[:, 0]], np.int64)
    return shown + lies[:, None]
