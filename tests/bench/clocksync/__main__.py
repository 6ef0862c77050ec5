"""`make bench NAME=clocksync`: fleet time beside chronyd and ptp4l on one wire, in a fleet, in faults, and its costs.

One JSON object a line; rows in which a peer wins are printed like all others. Exits with 1 if a gate is missed. Needs
root for the parts `wire`, `steered`, `watched`, `unwatched`, `fleet`, `sidecar` and `chrony`. Options: `--only
wire,cost`, `--seconds N` per load of the wire, `--events N` of each kind in `watched`, `unwatched`, `turns` and
`pauses`, `--hosts N,N` of the simulation: a Clos fabric in which every edge is fitted, on all cores; how long that
takes is in docs/clock-simulator.md.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.bench.clocksync.daemons import bench_fleet, field_mb
from tests.bench.clocksync.estimator import bench_bounds, bench_estimator
from tests.bench.clocksync.follow import bench_chrony
from tests.bench.clocksync.gain import bench_gain
from tests.bench.clocksync.hardware import bench_hardware
from tests.bench.clocksync.intake import intake_child
from tests.bench.clocksync.load import bench_load
from tests.bench.clocksync.pauses import bench_healthy, bench_pauses
from tests.bench.clocksync.peers import missing_tools
from tests.bench.clocksync.restart import bench_restart
from tests.bench.clocksync.scenarios import bench_simulate
from tests.bench.clocksync.sidecar import bench_sidecar
from tests.bench.clocksync.simulator import Clock, Edge, loaded_path
from tests.bench.clocksync.steered import bench_steered
from tests.bench.clocksync.turns import bench_turns
from tests.bench.clocksync.unwatched import bench_unwatched, bench_watched
from tests.bench.clocksync.violations import bench_violations
from tests.bench.clocksync.wire import Measured, run_wire
from tests.bench.rows import Rows
from tests.fixtures.clocksync.election import undisputed

from fabricpulse.clocksync.edge.estimator import EstimatorParameters
from fabricpulse.clocksync.edge.filter import EdgeFilter
from fabricpulse.clocksync.edge.fit import fit_edge
from fabricpulse.clocksync.outputs.clockbound import ClockBoundData, ClockBoundWriter
from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.core.shm.clock_page import (
    ClockLine,
    ClockPage,
    ClockPageWriter,
    ClockStatus,
    raw_now_ns,
)

ROOT = Path(__file__).parents[3]
_NS = 10**9
CASES = [
    ("0/0", 0.0, 0.0, 0),
    ("40/40", 0.4, 0.4, 0),
    ("80/20", 0.8, 0.2, 0),
    ("90/90", 0.9, 0.9, 0),
    ("hog", 0, 0, 2),
]
rows = Rows("clocksync")
report = rows.report


# The wire


def bench_wire(seconds: float) -> None:
    """Contestants side by side under load. Truth: one kernel clock, and virtual clocks that are known exactly."""

    def show(case: str, contestant: str, **more: Any) -> None:
        report(case, "err_ns_p95", more.pop("p95"), "ns", contestant=contestant, **more)

    results = run_wire(seconds, show, peers=True, cases=CASES)

    def of(case: str, contestant: str) -> Measured:
        return results[case].get(contestant, Measured())

    for case, most in (("0/0", 60), ("80/20", 80), ("90/90", 80), ("hog", 80)):
        p99 = round(of(case, "clocksync 50/s").quantile(0.99), 1)
        report(case, "err_ns_p99", p99, "ns", f"<= {most}", contestant="clocksync 50/s")
    for case in results:
        # Ours is read at any moment, through reports, the coordinator and the page; the filter, which is given the true
        # rate, when its newest packet has come.
        peer = of(case, "minimum filter").quantile(0.95)
        sparse, dense = (of(case, f"clocksync {rate}/s").quantile(0.95) for rate in (16, 100))
        mine = of(case, "clocksync 50/s").quantile(0.95)
        report(case, "ratio_p95_minimum_filter", round(mine / peer, 2), "ratio", "<= 1.2",
               contestant="clocksync 50/s", peer="minimum filter", peer_value=round(peer, 1))  # fmt: skip
        report(case, "more_is_better", round(dense / sparse, 2), "ratio", "<= 1", at_100=dense, at_16=sparse)
    # With at most as many packets as a poll of -6; and what the best of chronyd's settings would be compared with.
    for contestant, own, metric, must in (
        ("chronyd poll -6", "clocksync 21/s", "ratio_p95_chrony", ">= 10"),
        ("chronyd poll -6 filter", "clocksync 21/s", "ratio_p95_chrony_filter", None),
        ("ptp4l", "clocksync 50/s", "ratio_p95_ptp4l", ">= 100"),
    ):
        peer, mine = of("80/20", contestant).quantile(0.95), of("80/20", own).quantile(0.95)
        ratio = round(peer / mine, 1) if mine else math.nan
        report(
            "80/20", metric, ratio, "ratio", must, contestant=own, peer=contestant,
            peer_value=round(peer, 1), ratio=ratio,
        )  # fmt: skip
    ours = [m for case in results.values() for name, m in case.items() if name.startswith("clocksync")]
    held = [h for m in ours for h in m.held]
    report(
        "wire, all loads",
        "bound_coverage",
        round(float(np.mean(held)), 6),
        "share",
        ">= 0.999",
        count=len(held),
    )
    widths = [w for m in ours for w in m.widths]
    width = round(float(np.median(widths)), 1)
    report("wire, all loads", "bound_width_ns_p50", width, "ns", "<= 5000")


# Costs


def bench_cost() -> None:
    """Edge fit, solve, memory, reading fleet time in C, torn reads of the ClockBound segment."""
    rng = np.random.default_rng(1)
    parameters = EstimatorParameters()
    times = []
    for load in (0.0, 0.5, 0.9):
        library: dict[float, Any] = {}
        a, b = (Clock(rng, 60, offset_ns=_NS * k, rate_ppb=9_000.0 * k) for k in (1, 2))
        edge = Edge(a, b, loaded_path(rng, load, library), loaded_path(rng, load, library), rate=50)
        filter_ = EdgeFilter(parameters)
        for s in range(30):
            out, into = edge.window(rng, 1 + s, 5 + s)
            began = time.thread_time()
            fit = fit_edge(out, into, parameters, filter_.prior(int(out.t_ns[-1])))
            if fit is not None:
                filter_.update(fit)
            times.append(time.thread_time() - began)
    report("4 s, 50 trains/s", "edge_fit_ms", round(1e3 * statistics.mean(times), 3), "ms", "<= 1")
    out_text = subprocess.run(
        [sys.executable, "-m", "tests.bench.clocksync.__main__", "--solve-child"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip
    solve = json.loads(out_text)
    report("50,000 hosts x 10", "solve_s_50000", solve["warm_s"], "s", "<= 1.5", cold_s=solve["cold_s"])
    report("50,000 hosts x 10", "solve_rss_mb", solve["rss_mb"], "MB", "<= 400")
    report("50,000 hosts x 10", "solve_gain", solve["gain"], "ratio")
    # Each edge is reported by one of its ends: ten edges a host are five in its report. And twice as many. Then servers
    # with eight NICs: as many edges as are fitted for the clock, and all of ten edges a NIC, whose reports take two
    # datagrams.
    for hosts, reported, nics in ((50_000, 5, 1), (50_000, 10, 1), (50_000, 16, 8), (5_000, 40, 8)):
        sizes = (str(number) for number in (hosts, reported, nics))
        out_text = subprocess.run(
            [sys.executable, "-m", "tests.bench.clocksync.__main__", "--intake-child", *sizes],
            capture_output=True, text=True, check=True, cwd=ROOT,
        ).stdout  # fmt: skip
        step = json.loads(out_text)
        case = f"{hosts:,} hosts, {nics} NICs, {reported} edges in each report"
        parts = {f"{part}_s": step[part] for part in ("intake", "take", "solve", "answer")}
        intake_us = round((step["intake"] + step["take"]) / hosts * 1e6, 2)
        report(case, "report_intake_us", intake_us, "us", overflowed=step["counts"]["overflowed"])
        report(case, f"step_cpu_s_{hosts}", round(sum(parts.values()), 3), "s", "<= 1", **parts)
        report(case, "step_rss_mb", step["rss_mb"], "MB", "<= 500")
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        reader = _compile("clock_reader.c", place)
        now, raw = time.time_ns(), raw_now_ns()
        line, host = ClockLine(raw, now + 1_000_000, 20_000_000), ClockLine(now, raw, 0)
        writer = ClockPageWriter(place / "clock")
        writer.write(
            ClockPage(
                *(ClockStatus.SYNCHRONIZED, line, line, raw, 2_000, 250, raw + 600 * _NS),
                *(host, host, now, 0, 0),
            )
        )
        cost = min(float(_output([reader, str(place / "clock"), "5000000"]).split()[0]) for _ in range(7))
        report("C", "clock_read_ns", cost, "ns", "<= 60")
        report("host and raw clock", "clock_reading_error_ns", round(_reading_error_ns(), 2), "ns")
        client = _compile("clockbound_reader.c", place)
        segment = ClockBoundWriter(place / "shm0")
        segment.write(ClockBoundData(1_000, 2 * _NS, 1_000, 1, 1, 1))
        process = subprocess.Popen(
            [client, str(place / "shm0"), "torn", "10000000"], stdout=subprocess.PIPE, text=True
        )
        number = 1
        while process.poll() is None:
            number += 1
            segment.write(ClockBoundData(number * 1000, 2 * _NS, number * 1000, number, 1, 1))
        text = process.communicate()[0]
        reads, torn, _, changes = (int(word) for word in text.split())
        report("clockbound_client", "torn_reads", torn, "count", "== 0", reads=reads, changes=changes)


def solve_child() -> None:
    """In a process of its own, for its memory; one thread, in CPU time, which other work on the machine does not
    change: the solve of 50,000 hosts with 10 edges each, 10 % of them wrong."""
    from fabricpulse.clocksync.solve.graph_solve import Edges, SolveParameters, solve
    from fabricpulse.clocksync.solve.hosts import Hosts

    n, k = 50_000, 10
    rng = np.random.default_rng(1)
    i, j = np.repeat(np.arange(n), k), rng.integers(0, n, n * k)
    i, j = i[i != j], j[i != j]
    clock, rate = rng.integers(-5 * _NS, 5 * _NS, n), rng.uniform(-50_000, 50_000, n)
    count = len(i)
    noise = rng.normal(0, 20, count)
    wrong = rng.random(count) < 0.1
    noise[wrong] += rng.normal(0, 2_000, wrong.sum())
    age = rng.uniform(0.5, 1.5, count)
    offset = clock[j] - clock[i] + np.rint(noise - (rate[j] - rate[i]) * age).astype(np.int64)
    ones = np.ones(count)
    edges = Edges(
        i, j, offset, rate[j] - rate[i] + rng.normal(0, 8, count), 20 * ones, 8 * ones, 2_000 * ones, age, age
    )
    nothing = np.full(n, np.nan)
    cold = Hosts(
        np.zeros(n, np.int64), np.zeros(n), np.zeros(n, np.bool_), np.full(n, np.inf), nothing, nothing
    )
    began = time.thread_time()
    first = solve(cold, edges, undisputed(len(cold)), SolveParameters())
    cold_s = time.thread_time() - began
    moved = first.correction_ns + np.rint(rng.normal(0, 10, n)).astype(np.int64)
    warm = Hosts(moved, first.rate_ppb, np.ones(n, np.bool_), first.bound_ns, nothing, nothing)
    runs = []
    for _ in range(3):
        began = time.thread_time()
        second = solve(warm, edges, undisputed(len(warm), first.root), SolveParameters())
        runs.append(time.thread_time() - began)
    error = (second.correction_ns + clock).astype(np.float64)
    error -= np.median(error)
    row = {
        "warm_s": round(statistics.median(runs), 3),
        "cold_s": round(cold_s, 3),
        "rss_mb": round(field_mb(Path("/proc/self/status").read_text(), "VmHWM"), 1),
        "gain": round(20 / float(np.sqrt(np.mean(np.square(error)))), 2),
    }
    print(json.dumps(row))


def _compile(source: str, place: Path) -> str:
    target = place / source.removesuffix(".c")
    include = f"-I{ROOT / 'core' / 'include'}"
    subprocess.run(
        [
            "cc",
            "-std=gnu11",
            "-O2",
            include,
            str(ROOT / "tests" / "native" / "clocks" / source),
            "-o",
            target,
        ],
        check=True,
    )
    return str(target)


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


PARTS = (
    *(
        "cost",
        "estimator",
        "violations",
        "pauses",
        "turns",
        "healthy",
        "gain",
        "load",
        "restart",
        "simulate",
        "wire",
        "steered",
        "watched",
        "unwatched",
        "fleet",
        "sidecar",
        "hardware",
    ),
    "chrony",
)


def _reading_error_ns(line: int = 12, lines: int = 10) -> float:
    """RMS distance of readings of both clocks, four a second as the sidecar's, from lines through `line` of them."""
    clock, readings = HostClock(), []
    for _ in range(line * lines):
        readings.append(clock.cross_timestamp())
        time.sleep(0.25)
    raw = np.array([one.raw_ns - readings[0].raw_ns for one in readings]).reshape(lines, line)
    ahead = np.array(
        [one.host_ns - one.raw_ns - readings[0].host_ns + readings[0].raw_ns for one in readings]
    )
    left = [
        y - np.polynomial.Polynomial.fit(x, y, 1)(x)
        for x, y in zip(raw, ahead.reshape(lines, line), strict=True)
    ]
    return float(np.sqrt(np.sum(np.square(left)) / (lines * (line - 2))))


def main() -> int:
    """Runs the parts; 1 if a gate was missed."""
    parser = argparse.ArgumentParser(prog="make bench NAME=clocksync ARGS=", description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument(
        "--holdover", type=float, default=60.0, help="the longest holdover of the fleet: 10, 60 or 300 s"
    )
    parser.add_argument("--steps", type=int, default=1, help="steps of a clock of the fleet, one or more")
    parser.add_argument("--events", type=int, default=30, help="of each kind in the lab, and of pauses")
    parser.add_argument("--hosts", default="128", help="sizes of simulated fleets")
    parser.add_argument("--restart-hosts", type=int, default=5_000, help="sidecars of the restart")
    parser.add_argument("--solve-child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--intake-child", type=int, nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.intake_child:
        intake_child(*arguments.intake_child)
        return 0
    if arguments.solve_child:
        solve_child()
        return 0
    report("machine", "load_average", round(os.getloadavg()[0], 2), "processes", cpus=os.cpu_count())
    parts = arguments.only.split(",")
    if missing_tools() and {"wire", "chrony"} & set(parts):
        tools = " and ".join(missing_tools())
        print(
            f"bench clocksync: {tools} are not there and cannot be fetched: their rows will miss",
            file=sys.stderr,
        )
    if "cost" in parts:
        bench_cost()
    if "estimator" in parts:
        bench_bounds(report)
        bench_estimator(report)
    if "violations" in parts:
        bench_violations(report)
    if "pauses" in parts:
        bench_pauses(report, arguments.events)
    if "turns" in parts:
        bench_turns(report, arguments.events)
    if "healthy" in parts:
        bench_healthy(report)
    if "gain" in parts:
        bench_gain(report)
    if "load" in parts:
        bench_load(report, [1_000, 5_000])
    if "restart" in parts:
        bench_restart(report, arguments.restart_hosts)
    if "simulate" in parts:
        bench_simulate(report, [int(n) for n in arguments.hosts.split(",")])
    if "wire" in parts:
        bench_wire(arguments.seconds)
    if "steered" in parts:
        bench_steered(report, max(arguments.seconds, 20.0))
    if "watched" in parts:
        bench_watched(report, arguments.events)
    if "unwatched" in parts:
        bench_unwatched(report, arguments.events)
    if "fleet" in parts:
        bench_fleet(report, arguments.seconds, arguments.holdover, arguments.steps)
    if "sidecar" in parts:
        bench_sidecar(report)
    if "hardware" in parts:
        bench_hardware(report, max(arguments.seconds, 20.0))
    if "chrony" in parts:
        bench_chrony(report)
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main())
