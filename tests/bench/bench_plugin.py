"""`make bench NAME=plugin`: the NCCL plugin beside NCCL's own socket transport, and its failover, in the lab.

One JSON object a line; rows in which the peer wins are printed like all others. Exits with 1 if a gate is missed. Needs
root. The peer is taken from the released NCCL (`nvidia-nccl-cu13`, 344 MB, pip puts it into build/peers) and driven
through its v12 interface by the same program in the order of calls of NCCL's proxy (tests/native/plugin_net_bench.cc),
rounds interleaved. Options: `--only throughput,latency,telemetry,rails,failover,chaos`, `--rounds N`, `--seconds N` of
one measurement, `--faults N`, `--no-peer`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.bench.plugin_faults import bench_chaos, bench_failover, bench_rails
from tests.bench.plugin_nets import build_program, nccl_sockets, our_net
from tests.bench.plugin_rows import missed
from tests.bench.plugin_speed import bench_latency, bench_telemetry, bench_throughput

from fabricpulse.lab import Lab

SPEED = ("throughput", "latency", "telemetry")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="throughput,latency,telemetry,rails,failover,chaos")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    rounds, seconds = arguments.rounds, arguments.seconds
    with tempfile.TemporaryDirectory() as directory:
        if {*SPEED, "rails"} & set(parts):
            program = build_program(Path(directory))
        if set(SPEED) & set(parts):
            nets = {"ours": our_net(), **({} if arguments.no_peer else nccl_sockets())}
            with Lab(hosts=2, rails=1) as lab:
                if "throughput" in parts:
                    bench_throughput(lab, program, nets, rounds, seconds)
                if "latency" in parts:
                    bench_latency(lab, program, nets, rounds, seconds)
                if "telemetry" in parts:
                    bench_telemetry(lab, program, nets, rounds, seconds)
        if "rails" in parts:
            bench_rails(program, rounds, seconds)
        if "failover" in parts:
            bench_failover(arguments.faults)
        if "chaos" in parts:
            bench_chaos(arguments.faults * 5)
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
