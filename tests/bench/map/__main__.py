"""`make bench NAME=map`: which component is faulty, found by the mesh's probes.

Prints one JSON object a line and exits with 1 if a gate is missed. `ARGS="--only simulated,healthy"` chooses parts.
Sizes: `--trials N`, `--seeds N`, `--windows N`, `--hosts N`; `--seed S` plays one seed again.

simulated : 1,024 leaves, 50,000 hosts, 1 to 5 faults at once of 0.1 to 5 % loss, 10 % of the switches above the leaves
silent; ten seeds that are drawn as it starts. memory : the process that diagnoses, with all that 50,000 hosts tell
(`--fleet N`). loop : lateness of the event loop while a fleet is looked at.
gray : loss on uplinks of a lab of nine hosts, needs root (`--losses 60,20,5,1.5,0.5 --times N`). dead : a leaf and a
spine of it that drop everything. localised : random single faults on every kind of element of a lab of nine hosts,
needs root (`--faults N`). overhead : packets of traces beside those of probes, bytes of reports, in such a lab.
mixes : what is named wrongly amid faults that overlap, restarts and hosts that leave, simulated (`--mixes N`).
leaf_paths : leaves of random fabrics, simulated, after one has lost an uplink (`--fabrics N`).
delay : delays that grow, simulated, on the engine's state machines. healthy : the
fleet of simulated without faults, a window of 30 s after the other. tree : leaves, pods and machines found from delays
alone, simulated, 128 to 10,000 hosts (`--largest N` leaves larger ones out). tree_random : what is reported of random
small fabrics (`--fabrics N`). tree_lab : the same in a lab of nine hosts, needs root. placement : all of
`make bench NAME=placement`.
"""

import argparse
import asyncio
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np
from tests.bench.map.delay import bench_delay
from tests.bench.map.fabric import Clos, Simulation
from tests.bench.map.leaf_paths import bench_leaf_paths
from tests.bench.map.memory import bench_memory
from tests.bench.map.mixes import bench_mixes
from tests.bench.map.tree import bench_tree, bench_tree_lab, bench_tree_random
from tests.bench.rows import Rows, quantile

from fabricpulse.diagnosis.daemon.process import DiagnosisProcess
from fabricpulse.diagnosis.daemon.worker_messages import Declared, Report
from fabricpulse.diagnosis.evidence.fleet_evidence import FleetEvidence
from fabricpulse.diagnosis.flows.components import Kind, parts
from fabricpulse.diagnosis.flows.flow_table import totals
from fabricpulse.diagnosis.search.locate import locate
from fabricpulse.diagnosis.wire.messages import PROTOCOL, EdgeName, EvidenceReport

rows = Rows("map")
_WINDOW_S = 30.0
_BACKGROUND = 1e-5
_STEPS = (1, -1, 7, -7, 31, -31, 101, -101, 331, -331)


def bench_simulated(trials: int, silent: float, seeds: Sequence[int]) -> None:
    """Precision, recall, time of one diagnosis: of each seed a fabric and faults of its own, and of all together."""
    sums = Counter[str]()
    times: list[float] = []
    peak_mb = 0
    for seed in seeds:
        one, totals_s, seed_peak_mb = _played(trials, silent, seed, times)
        peak_mb = max(peak_mb, seed_peak_mb)
        sums += one
        case = f"50,000 hosts, 1,024 leaves, {silent:.0%} of switches silent, seed {seed}"
        rows.report(
            case, "precision_percent", _percent(one["right"], one["wrong"]), "%", faults=one["faults"]
        )
        rows.report(case, "recall_percent", _percent(one["hit"], one["missed"]), "%", faults=one["faults"])
    case = f"50,000 hosts, 1,024 leaves, {silent:.0%} of switches silent, {len(seeds)} seeds"
    faults = sums["faults"]
    precision, recall = _percent(sums["right"], sums["wrong"]), _percent(sums["hit"], sums["missed"])
    rows.report(case, "precision_percent", precision, "%", ">= 98", faults=faults, wrong=sums["wrong"])
    rows.report(case, "recall_percent", recall, "%", ">= 99", faults=faults, missed=sums["missed"])
    rows.report(
        case, "infer_ms_50000", quantile(times, 1.0), "ms", "<= 500", p50=round(quantile(times, 0.5), 1)
    )
    rows.report(case, "totals_s", totals_s, "s")
    rows.report(
        case,
        "memory_mb",
        peak_mb,
        "MB",
        "<= 500",
        of="the process while it sums up and locates, the simulator's own table of paths in it",
    )


def _percent(good: int, bad: int) -> float:
    return 100 * good / max(good + bad, 1)


def _played(trials: int, silent: float, seed: int, times: list[float]) -> tuple[Counter[str], float, int]:
    """`trials` windows with faults in one fabric: counts, seconds of the sums, MB. Adds the ms of each diagnosis to
    `times`.
    """
    simulation = Simulation(Clos(), silent, seed)
    _begin_peak()
    began = time.process_time()
    summed = totals(simulation.seen)
    totals_s = time.process_time() - began
    peak_mb = _peak_mb()
    counts = Counter[str]()
    for _ in range(trials):
        faults: dict[int, float] = {}
        for _ in range(simulation.random.randint(1, 5)):
            faults[simulation.fault()] = 10 ** simulation.random.uniform(-3, np.log10(0.05))
        observed = simulation.lose(faults, _WINDOW_S, _BACKGROUND)
        _begin_peak()
        began = time.process_time()
        found = locate(simulation.seen, summed, *observed, _WINDOW_S).findings
        times.append(1e3 * (time.process_time() - began))
        peak_mb = max(peak_mb, _peak_mb())
        named = {finding.component for finding in found}
        names = [simulation.names(fault) for fault in faults]
        true = sum(any(component in each for each in names) for component in named)
        counts.update(right=true, wrong=len(named) - true, faults=len(faults))
        for (fault, loss), each in zip(faults.items(), names, strict=True):
            counts["hit" if each & named else "missed"] += 1
            if not each & named:
                kind, a, b = parts(fault)
                print(
                    f"bench map: seed {seed} missed {kind.name} {a} {b} at {100 * loss:.2g} %",
                    file=sys.stderr,
                )
    return counts, totals_s, peak_mb


def _begin_peak() -> None:
    """Linux counts the most memory that a process has had since this (`proc_pid_clear_refs(5)`)."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> int:
    """Most resident memory of this process since `_begin_peak`: `VmHWM`."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) // 1024


def bench_healthy(windows: int) -> None:
    """What is named while nothing is wrong, at the background that the diagnosis assumes and below."""
    simulation = Simulation(Clos(), 0.1, seed=8)
    summed = totals(simulation.seen)
    links = others = 0
    for number in range(windows):
        observed = simulation.lose({}, _WINDOW_S, 2e-5 if number % 2 else _BACKGROUND)
        for finding in locate(simulation.seen, summed, *observed, _WINDOW_S).findings:
            kind = parts(finding.component)[0]
            links += kind in (Kind.LINK, Kind.SWITCH)
            others += kind not in (Kind.LINK, Kind.SWITCH)
    case = f"50,000 hosts, {windows * _WINDOW_S / 60:g} min without a fault, loss 1e-5 and 2e-5"
    rows.report(case, "false_links", links, "links", "== 0")
    rows.report(case, "false_others", others, "components", "== 0")


def bench_loop(hosts: int) -> None:
    """How late the event loop of a daemon is while a fleet is looked at for the first time: in the loop, in a thread,
    in a process. Each host has eight flows to each of ten peers.
    """
    reports = _fleet(hosts)

    def in_process_evidence() -> FleetEvidence:
        evidence = FleetEvidence()
        for report in reports:
            evidence.report(report, 0.0)
        return evidence

    async def in_loop() -> None:
        in_process_evidence().suspects(1.0)

    async def in_thread() -> None:
        await asyncio.to_thread(lambda: in_process_evidence().suspects(1.0))

    async def in_process() -> None:
        process = DiagnosisProcess(Declared({}, {}), lambda _: None)
        task = asyncio.create_task(process.run())
        for report in reports:
            while not process.put(Report(time.monotonic(), report)):  # noqa: ASYNC110 -- until it has started
                await asyncio.sleep(0.01)
            await asyncio.sleep(0)
        while process.answer.flows < 80 * hosts:  # noqa: ASYNC110 -- a process tells no event
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    worst: dict[str, float] = {}
    for name, play in {"in the loop": in_loop, "in a thread": in_thread, "in a process": in_process}.items():
        late = asyncio.run(_lateness(play))
        worst[name] = quantile(late, 1.0)
        p99 = round(quantile(late, 0.99), 3)
        rows.report(f"{hosts:,} hosts, {name}", "loop_late_ms", worst[name], "ms", p99=p99)
    share = worst["in a process"] / worst["in the loop"]
    rows.report(f"{hosts:,} hosts", "loop_late_process_to_loop", share, "ratio", "<= 0.05")


def _fleet(hosts: int) -> list[EvidenceReport]:
    """The first reports of a fleet."""
    return [
        EvidenceReport(
            *(PROTOCOL, f"host-{n:05}", 1, 8, 135.0, 2.14, b"", False),
            tuple(EdgeName("eth1", f"host-{(n + step) % hosts:05}", "eth1") for step in _STEPS),
        )
        for n in range(hosts)
    ]


async def _lateness(play: Callable[[], Awaitable[None]]) -> list[float]:
    """By how many ms each of the loop's wake-ups was late while `play` ran; one is due each ms."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            due = time.monotonic() + 0.001
            await asyncio.sleep(0.001)
            late.append(1e3 * (time.monotonic() - due))

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0.1)
    await play()
    await asyncio.sleep(0.1)
    ticker.cancel()
    await asyncio.gather(ticker, return_exceptions=True)
    return late


def _gray(losses: str, times: int) -> None:
    # Imported late: it needs root, and builds a lab.
    from tests.bench.map.lab import bench_gray

    bench_gray(rows, [float(loss) for loss in losses.split(",")], times)


def _dead(times: int) -> None:
    from tests.bench.map.lab import bench_dead

    bench_dead(rows, times)


def _localised(faults: int, seed: int) -> None:
    from tests.bench.map.localised import bench_localised

    bench_localised(rows, faults, seed)


def _overhead() -> None:
    from tests.bench.map.overhead import bench_overhead

    bench_overhead(rows)


def _placement() -> None:
    from tests.bench.placement import bench_placement

    bench_placement(rows, cases=200, first=1000, parts=set())


def _one_core() -> None:
    """Starts this program again with one thread for linear algebra, unless it has been."""
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "tests.bench.map.__main__", *sys.argv[1:]])  # noqa: S606


def main() -> None:
    """Runs the parts asked for."""
    _one_core()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="comma separated parts; default: all")
    parser.add_argument("--trials", type=int, default=20, help="of each seed")
    parser.add_argument("--seeds", type=int, default=10, help="how many, drawn anew each time")
    parser.add_argument(
        "--seed", type=int, action="append", default=[], help="this one instead; may be repeated"
    )
    parser.add_argument("--losses", default="60,20,5,1.5,0.5", help="per cent, of the part gray")
    parser.add_argument("--times", type=int, default=3, help="each fault, of the parts gray and dead")
    parser.add_argument("--faults", type=int, default=300, help="of the part localised")
    parser.add_argument("--hosts", type=int, default=5000, help="of the part loop")
    parser.add_argument("--fleet", type=int, default=50_000, help="hosts, of the part memory")
    parser.add_argument("--largest", type=int, default=10_000, help="hosts, of the part tree")
    parser.add_argument("--fabrics", type=int, default=400, help="of the parts tree_random, leaf_paths")
    parser.add_argument("--mixes", type=int, default=36, help="of the part mixes")
    parser.add_argument("--windows", type=int, default=240)
    options = parser.parse_args()
    # Nobody can have fitted a parameter to seeds that nobody knew.
    seeds = options.seed or [secrets.randbelow(10**9) for _ in range(options.seeds)]
    all_parts = {
        "simulated": lambda: bench_simulated(options.trials, 0.1, seeds),
        "healthy": lambda: bench_healthy(options.windows),
        "tree": lambda: bench_tree(rows, options.largest, seeds[0]),
        "tree_random": lambda: bench_tree_random(rows, options.fabrics, seeds[0]),
        "tree_lab": lambda: bench_tree_lab(rows),
        "memory": lambda: bench_memory(rows, options.fleet, seeds[0]),
        "loop": lambda: bench_loop(options.hosts),
        "delay": lambda: bench_delay(rows, 20 * options.times),
        "gray": lambda: _gray(options.losses, options.times),
        "dead": lambda: _dead(options.times),
        "localised": lambda: _localised(options.faults, seeds[0]),
        "leaf_paths": lambda: bench_leaf_paths(rows, options.fabrics, seeds[0]),
        "mixes": lambda: bench_mixes(rows, options.mixes, seeds[0]),
        "overhead": _overhead,
        "placement": _placement,
    }
    wanted = set(filter(None, options.only.split(","))) or set(all_parts)
    if unknown := wanted - set(all_parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(all_parts)}")
    for name, step in all_parts.items():
        if name in wanted:
            step()
    sys.exit(rows.exit_code())


if __name__ == "__main__":
    main()
