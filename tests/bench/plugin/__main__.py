"""`make bench NAME=plugin`: the NCCL plugin beside NCCL's own socket transport, and its failover, in the lab.

One JSON object a line; rows in which the peer wins are printed like all others. Exits with 1 if a gate is missed. Needs
root. The peer is taken from the released NCCL (`nvidia-nccl-cu13`, 344 MB, pip puts it into build/peers) and driven
through its v12 interface by the same program in the order of calls of NCCL's proxy (tests/native/net_bench),
rounds interleaved. iperf3 and UCX (scripts/system_packages.sh bench) take their turns in the same rounds if they are
installed. Options: `--only PART,...`, `--rounds N` (three times as many of what watching costs), `--seconds N` of
one measurement, `--faults N` (of each kind; five times as many in the chaos and of
damaged frames, three times as many seconds beside busy loops, a twentieth of outages), `--seed N` of the
chaos, `--no-peer`. Standard error says how long each part
took.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.plugin.contention import bench as bench_contention
from tests.bench.plugin.faults import (
    bench_chaos,
    bench_failover,
    bench_peer_failover,
    bench_rails,
    bench_status,
)
from tests.bench.plugin.nets import build_program, nccl_sockets, our_net
from tests.bench.plugin.outage import bench_outage
from tests.bench.plugin.rows import rows
from tests.bench.plugin.speed import (
    bench_communicators,
    bench_control,
    bench_latency,
    bench_telemetry,
    bench_throughput,
)
from tests.bench.plugin.stalls import bench_integrity, bench_spurious, bench_stalls

from fabricpulse.lab import Lab

SPEED = ("throughput", "communicators", "latency", "telemetry", "control")
FAULTS = (
    "rails", "contention", "failover", "stalls", "outage", "spurious", "integrity", "peer_failover", "status", "chaos",
)  # fmt: skip


def run(known: dict[str, Callable[[], None]], wanted: list[str]) -> None:
    """Runs the wanted parts in the order of `known`; standard error says how long each took."""
    for name, part in known.items():
        if name in wanted:
            start = time.monotonic()
            part()
            print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join((*SPEED, *FAULTS)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    if unknown := set(parts) - {*SPEED, *FAULTS}:
        parser.error(f"--only {','.join(sorted(unknown))}: known are {', '.join((*SPEED, *FAULTS))}")
    rounds, seconds = arguments.rounds, arguments.seconds
    with tempfile.TemporaryDirectory() as directory:
        if {*SPEED, "rails", "peer_failover"} & set(parts):
            program = build_program(Path(directory))
        nets = {"ours": our_net()}
        if not arguments.no_peer and {*SPEED, "peer_failover"} - {"control"} & set(parts):
            nets |= nccl_sockets()
        fault_parts: dict[str, Callable[[], None]] = {
            "rails": lambda: bench_rails(program, rounds, seconds),
            "contention": lambda: bench_contention(rounds),
            "failover": lambda: bench_failover(arguments.faults),
            "stalls": lambda: bench_stalls(arguments.faults),
            "outage": lambda: bench_outage(max(3, arguments.faults // 20)),
            "spurious": lambda: bench_spurious(arguments.faults * 3.0),
            "integrity": lambda: bench_integrity(arguments.faults * 5),
            "peer_failover": lambda: bench_peer_failover(program, nets, 5),
            "status": lambda: bench_status(rounds),
            "chaos": lambda: bench_chaos(arguments.faults * 5, arguments.seed),
        }
        if set(SPEED) & set(parts):
            with Lab(hosts=2, rails=1) as lab:
                speed_parts: dict[str, Callable[[], None]] = {
                    "throughput": lambda: bench_throughput(lab, program, nets, rounds, seconds),
                    "communicators": lambda: bench_communicators(lab, program, nets, rounds, seconds),
                    "latency": lambda: bench_latency(lab, program, nets, rounds, seconds),
                    "telemetry": lambda: bench_telemetry(lab, program, nets, rounds),
                    "control": lambda: bench_control(lab, program, rounds),
                }
                run(speed_parts, parts)
        run(fault_parts, parts)
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main())
