"""`make bench NAME=mesh`: the probe mesh in the lab, beside ping, blackbox_exporter and smokeping_prober.

Prints one JSON object a line and exits with 1 if a gate is missed. Needs root. `ARGS="--only cpu,detect"` chooses
parts; each runs alone. Sizes: `--faults N`, `--flaps N`, `--stall-seconds S`, `--forged N`, `--fuzz-seconds S`.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial

from tests.bench.mesh.cost import bench_exporter
from tests.bench.mesh.cpu import bench_cpu
from tests.bench.mesh.faults import bench_alert, bench_detect, bench_flaps
from tests.bench.mesh.rivals import bench_side_by_side
from tests.bench.mesh.rows import rows
from tests.bench.mesh.stalls import bench_stalls
from tests.bench.mesh.truth import bench_forged, bench_fuzz, bench_owd

Parts = dict[str, list[Callable[[], None]]]


def parts_of(options: argparse.Namespace) -> Parts:
    """What each part of `--only` runs, in the order in which they run."""
    return {
        "cpu": [
            partial(bench_cpu, "1 NIC, 10 peers", "engine_cpu_percent", 1, "<= 1.5"),
            partial(bench_cpu, "8 NICs, 80 peers", "engine_cpu_percent_8nics", 8, "<= 10"),
        ],
        "exporter": [partial(bench_exporter, options.scrapes)],
        "detect": [
            partial(bench_detect, 1.0, options.faults, "<= 1200"),
            partial(bench_detect, 0.2, options.faults, "<= 350"),
        ],
        "alert": [partial(bench_alert, options.faults)],
        "flaps": [partial(bench_flaps, options.flaps)],
        "stalls": [partial(bench_stalls, options.stall_seconds)],
        "owd": [partial(bench_owd, 20)],
        "forged": [partial(bench_forged, options.forged), partial(bench_fuzz, options.fuzz_seconds)],
        "side": [partial(bench_side_by_side, max(options.faults // 10, 5))],
    }


def parser() -> argparse.ArgumentParser:
    """The options; the defaults are the sizes that the gates ask for."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--only", default="", help="comma separated parts; default: all")
    made.add_argument("--faults", type=int, default=200)
    made.add_argument("--flaps", type=int, default=500)
    made.add_argument("--stall-seconds", type=float, default=600)
    made.add_argument("--forged", type=int, default=1_000_000)
    made.add_argument("--fuzz-seconds", type=int, default=300)
    made.add_argument("--scrapes", type=int, default=300)
    return made


def main() -> None:
    """Runs the parts asked for."""
    options = parser().parse_args()
    parts = parts_of(options)
    wanted = set(filter(None, options.only.split(","))) or set(parts)
    if unknown := wanted - set(parts):
        parser().error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    for name, steps in parts.items():
        for step in steps if name in wanted else ():
            step()
    sys.exit(rows.exit_code())


if __name__ == "__main__":
    main()
