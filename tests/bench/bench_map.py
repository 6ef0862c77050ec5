"""`make bench NAME=map`: which component is faulty, told from the mesh's probes.

Prints one JSON object a line and exits with 1 if a gate is missed. `ARGS="--only simulated,healthy"` chooses parts.
Sizes: `--trials N`, `--windows N`.

simulated : 1,024 leaves, 50,000 hosts, 1 to 5 faults at once of 0.1 to 5 % loss, 10 % of the switches above the leaves
silent. healthy : the same fleet without faults, a window of 30 s after the other.
"""

import argparse
import os
import resource
import sys
import time

import numpy as np
from tests.bench.map_fabric import Clos, Simulation
from tests.bench.rows import Rows, quantile

from fabricpulse.diagnosis.components import Kind, parts
from fabricpulse.diagnosis.flow_table import totals
from fabricpulse.diagnosis.locate import locate

rows = Rows("map")
_WINDOW_S = 30.0
_BACKGROUND = 1e-5


def bench_simulated(trials: int, silent: float) -> None:
    """Precision, recall, time of one diagnosis."""
    simulation = Simulation(Clos(), silent, seed=7)
    began = time.process_time()
    summed = totals(simulation.seen)
    totals_s = time.process_time() - began
    right = wrong = hit = played = 0
    times = []
    for _ in range(trials):
        faults: dict[int, float] = {}
        for _ in range(simulation.random.randint(1, 5)):
            faults[simulation.fault()] = 10 ** simulation.random.uniform(-3, np.log10(0.05))
        observed = simulation.lose(faults, _WINDOW_S, _BACKGROUND)
        began = time.process_time()
        found = locate(simulation.seen, summed, *observed, _WINDOW_S).findings
        times.append(1e3 * (time.process_time() - began))
        named = {finding.component for finding in found}
        names = [simulation.names(fault) for fault in faults]
        right += sum(any(component in each for each in names) for component in named)
        wrong += sum(not any(component in each for each in names) for component in named)
        for (fault, loss), each in zip(faults.items(), names, strict=True):
            played += 1
            hit += bool(each & named)
            if not each & named:
                kind, a, b = parts(fault)
                print(f"bench map: missed {kind.name} {a} {b} at {100 * loss:.2g} %", file=sys.stderr)
    case = f"50,000 hosts, 1,024 leaves, {silent:.0%} of switches silent, {played} faults"
    rows.report(case, "precision_percent", 100 * right / max(right + wrong, 1), "%", ">= 98")
    rows.report(case, "recall_percent", 100 * hit / played, "%", ">= 99")
    rows.report(
        case, "infer_ms_50000", quantile(times, 1.0), "ms", "<= 500", p50=round(quantile(times, 0.5), 1)
    )
    rows.report(case, "totals_s", totals_s, "s")
    seen = simulation.seen
    columns = (seen.source, seen.destination, seen.rate, seen.edge, seen.hops)
    held = sum(column.nbytes for column in columns) + 24 * len(summed.components)
    rows.report(case, "memory_mb", held / 1e6, "MB", "<= 500", process_peak_mb=_peak_mb())


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


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


def _one_core() -> None:
    """Starts this program again with one thread for linear algebra, unless it has been."""
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "tests.bench.bench_map", *sys.argv[1:]])  # noqa: S606


def main() -> None:
    """Runs the parts asked for."""
    _one_core()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="comma separated parts; default: all")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--windows", type=int, default=240)
    options = parser.parse_args()
    all_parts = {
        "simulated": lambda: bench_simulated(options.trials, 0.1),
        "healthy": lambda: bench_healthy(options.windows),
    }
    wanted = set(filter(None, options.only.split(","))) or set(all_parts)
    if unknown := wanted - set(all_parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(all_parts)}")
    for name, step in all_parts.items():
        if name in wanted:
            step()
    sys.exit(rows.verdict())


if __name__ == "__main__":
    main()
