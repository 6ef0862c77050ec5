"""Simulated fleets: Clos fabrics of any size, faults, clocks left alone; every fit and every solve is a real one."""

import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.bench.clocksync.clos import ClosFleet
from tests.bench.clocksync.daemons import field_mb
from tests.bench.clocksync.fleet import SimFleet
from tests.bench.clocksync.simulator import Clock

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClock, FleetClockParameters

_NS = 10**9


def bench_simulate(report: Callable[..., None], sizes: list[int]) -> None:
    """Clos fabrics with asymmetric loads and drifting clocks, and the faults of a fleet; every fit is a real one."""
    for n in sizes:
        bench_size(report, n)
    bench_faults(report)
    for seconds in (10, 60, 300):
        covered = [_holdover(seed, seconds) for seed in range(200)]
        share = round(sum(c for c, _ in covered) / len(covered), 6)
        report(f"holdover {seconds} s", "bound_coverage", share, "share", ">= 0.999",
               bound_ns_p50=round(statistics.median(b for _, b in covered)))  # fmt: skip


def bench_size(report: Callable[..., None], n: int) -> None:
    """One Clos fabric of `n` hosts, loads of 0 to 90 %, seeded; the rows say what it took.

    Every edge is fitted in every round. What is shown is of the rounds that end 6 s or more after the first probe. The
    largest fleets begin with full windows, as when all sidecars are started anew: partial ones cost 3 fits an edge.
    """
    steps, filled = (20, 0) if n <= 256 else (10, 0) if n <= 10_000 else (5, 3)
    usual = 5 - filled
    began, cpu_began = time.perf_counter(), _cpu_s()
    fleet = ClosFleet(n, steps, filled, progress=True)
    fleet.measure()
    case = f"Clos fabric, {n} hosts"
    fits, seen = fleet.fits, np.s_[usual:]
    error, there = np.abs(fits.error_ns[seen]), fits.fitted[seen]
    held = (error <= fits.records["bound_ns"][seen])[there]
    report(case, "edge_err_ns_p99", _quantile(error[there], 0.99), "ns",
           p50=_quantile(error[there], 0.5), trains_s=fleet.rate, edges=error.shape[1])  # fmt: skip
    report(case, "edge_bound_coverage", round(float(held.mean()), 6), "share", ">= 0.999")
    pairs = outside = 0
    errors: list[NDArray[np.float64]] = []
    bounds: list[NDArray[np.float64]] = []
    for step in range(steps):
        fleet.play_round()
        now = fleet.errors()
        pairs += len(now) * (len(now) - 1) // 2
        outside += fleet.violations()
        if step >= usual:
            errors.append(np.abs(now))
            bounds.append(fleet.bounds())
    node, bound = np.concatenate(errors), np.concatenate(bounds)
    report(case, "node_err_ns_p99", _quantile(node, 0.99), "ns",
           p50=_quantile(node, 0.5), max=round(float(node.max()), 1), hosts=len(bounds[-1]))  # fmt: skip
    report(case, "bound_coverage", round(1 - outside / pairs, 6), "share", ">= 0.999")
    report(case, "bound_width_ns_p50", 2 * _quantile(bound, 0.5), "ns")
    report(case, "backward_jumps", fleet.backward_jumps, "count", "== 0")
    wall, cpu = (statistics.median(run) for run in zip(*fleet.solve_s[1:], strict=True))
    report(case, "solve_s", round(wall, 3), "s", cpu_s=round(cpu, 3), first_s=round(fleet.solve_s[0][0], 3))
    took, count = time.perf_counter() - began, int(fits.fitted.sum())
    used = _cpu_s() - cpu_began
    report(case, "simulation_s", round(took, 1), "s", cpu_s=round(used, 1), edge_fits=count,
           cpu_ms_per_fit=round(1e3 * used / count, 2), steps=steps)  # fmt: skip
    worker_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    report(case, "simulation_rss_mb", round(_rss_mb(), 1), "MB", largest_worker_mb=round(worker_mb, 1))


def _quantile(values: NDArray[np.float64], q: float) -> float:
    return round(float(np.quantile(values, q)), 1)


def _cpu_s() -> float:
    """Of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def _rss_mb() -> float:
    return field_mb(Path("/proc/self/status").read_text(), "VmHWM")


@dataclass
class Fault:
    """Something that goes wrong after 10 s in a fleet of 32 hosts.

    guilty : the host whose own time may suffer. named : the coordinator must call it suspect. seconds : to look on.
    """

    name: str
    happen: Callable[[SimFleet], None]
    guilty: int | None = None
    named: bool = False
    seconds: int = 20


def _kill_a_fifth(fleet: SimFleet) -> None:
    for host in fleet.hosts[::5]:
        host.alive = False


def _lie(fleet: SimFleet) -> None:
    begin = fleet.t + 0.5
    fleet.hosts[7].lie_ns = lambda t: 1e6 + (t - begin) * 2_000 if t >= begin else 0.0


def _lengthen_one_way(fleet: SimFleet) -> None:
    fleet.edges[4].forward.base_ns += 5_000


def _receive_late(fleet: SimFleet) -> None:
    fleet.hosts[2].rx_late_ns = 3_000


def _step_a_clock(fleet: SimFleet) -> None:
    fleet.hosts[3].clock.steps.append((fleet.t + 0.4, 1_000_000))


FAULTS = (
    Fault("20 % killed", _kill_a_fifth),
    Fault("faulty host, 1 ms and 2 ppm", _lie, guilty=7, named=True),
    Fault("one way of an edge 5 us longer", _lengthen_one_way),
    Fault("a host receives 3 us late", _receive_late),
    Fault("a clock steps 1 ms", _step_a_clock, guilty=3),
)


def bench_faults(report: Callable[..., None]) -> None:
    """Every fault of `FAULTS`, 2 seeds each: do the bounds hold, how far do the others move, who is named."""
    for fault in FAULTS:
        pairs = outside = named = wrongly = backward = 0
        extra = 0.0
        bounds: list[float] = []
        for seed in range(2):
            fleet = SimFleet(32, 10, seed=seed, loads=((0.0, 0.0), (0.4, 0.1), (0.8, 0.2)), seconds=40)
            fleet.run(10)
            usual = float(np.abs(fleet.errors()).max())
            fault.happen(fleet)
            suspects: set[str] = set()
            for _ in range(fault.seconds):
                fleet.play_round()
                alive = [i for i, host in enumerate(fleet.hosts) if host.alive]
                others = [i for i in alive if i != fault.guilty]
                # A faulty host's fleet time is that of its stamps; whoever is only out of step must keep its bound.
                judged = others if fault.named else alive
                pairs += len(judged) * (len(judged) - 1) // 2
                outside += fleet.violations(judged)
                extra = max(extra, float(np.abs(fleet.errors(others)).max()) - usual)
                times = fleet.times()
                bounds.extend(t.bound_ns for i in others if (t := times[i]) is not None)
                if fleet.coordinator is not None:
                    suspects |= {m.name for m in fleet.coordinator.roster.members.values() if m.suspect}
            right = fleet.hosts[fault.guilty].name if fault.named and fault.guilty is not None else ""
            named += right in suspects
            wrongly += len(suspects - {right})
            backward += fleet.backward_jumps
        case = f"simulated, {fault.name}"
        report(
            case, "bound_coverage", round(1 - outside / pairs, 6), "share", ">= 0.999",
            bound_ns_p50=round(statistics.median(bounds)),
        )  # fmt: skip
        # Without a guilty host all may move, each within its bound: a figure, no gate.
        must = "<= 100" if fault.guilty is not None else None
        report(case, "others_extra_ns", round(max(0.0, extra), 1), "ns", must)
        report(case, "backward_jumps", backward, "count", "== 0")
        if fault.named:
            report(case, "faulty_host_named", named, "of 2 runs", "== 2")
        report(case, "wrongly_suspected", wrongly, "hosts", "== 0")


def _holdover(seed: int, seconds: float) -> tuple[bool, float]:
    """A clock that was corrected for a while and is then left alone: is the truth within the bound at the end?"""
    rng = np.random.default_rng(seed)
    clock = Clock(
        rng, seconds + 30, offset_ns=0, rate_ppb=float(rng.uniform(-50_000, 50_000)), wander_ppb=2.0
    )

    def cross_timestamp(t: float) -> CrossTimestamp:
        host = int(clock.at(np.array([t]))[0])
        return CrossTimestamp(host, host)

    fleet = FleetClock.start(FleetClockParameters(), cross_timestamp(0.0))
    for step in range(1, 21):
        for quarter in (0.25, 0.5, 0.75):  # as a sidecar does: slews end at ticks
            fleet.tick(cross_timestamp(step - 1 + quarter))
        now = cross_timestamp(float(step))
        true_rate = -clock.rate_ppb(step)
        correction = step * _NS - now.host_ns + round(rng.normal(0, 10))
        fleet.correct(now, Correction(now.host_ns, correction, true_rate + float(rng.normal(0, 5)), 1_800))
    for t in np.arange(20.25, 20 + seconds, 0.25):
        fleet.tick(cross_timestamp(float(t)))
    end = 20 + seconds
    shown = fleet.page.at(cross_timestamp(end).raw_ns)
    return abs(shown.fleet_ns - round(end * _NS)) <= shown.bound_ns, float(shown.bound_ns)
