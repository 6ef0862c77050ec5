"""`make bench NAME=plugin`: the NCCL plugin beside NCCL's own socket transport, and its failover, in the lab.

One JSON object a line; rows in which the peer wins are printed like all others. Exits with 1 if a gate is missed. Needs
root. The peer is taken from the released NCCL (`nvidia-nccl-cu13`, 344 MB, pip puts it into build/peers) and driven
through its v12 interface by the same program in the order of calls of NCCL's proxy (tests/native/plugin_net_bench.cc),
rounds interleaved. iperf3 and UCX (scripts/system_packages.sh bench) are printed beside them if they are installed.
Options: `--only PART,...`, `--rounds N`, `--seconds N` of one measurement, `--faults N` (five times as many in
the chaos), `--no-peer`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.bench.plugin_contention import bench as bench_contention
from tests.bench.plugin_faults import (
    bench_chaos,
    bench_failover,
    bench_peer_failover,
    bench_rails,
    bench_status,
)
from tests.bench.plugin_limits import bench_limits
from tests.bench.plugin_nets import build_program, nccl_sockets, our_net
from tests.bench.plugin_rows import missed
from tests.bench.plugin_speed import SIZES, bench_latency, bench_telemetry, bench_throughput

from fabricpulse.lab import Lab

SPEED = ("throughput", "latency", "telemetry", "limits")
FAULTS = ("rails", "contention", "failover", "peer_failover", "status", "chaos")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join((*SPEED, *FAULTS)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--faults", type=int, default=200)
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
        if not arguments.no_peer and {*SPEED, "peer_failover"} & set(parts):
            nets |= nccl_sockets()
        if set(SPEED) & set(parts):
            with Lab(hosts=2, rails=1) as lab:
                if "throughput" in parts:
                    bench_throughput(lab, program, nets, rounds, seconds)
                if "latency" in parts:
                    bench_latency(lab, program, nets, rounds, seconds)
                if "telemetry" in parts:
                    bench_telemetry(lab, program, nets, rounds, seconds)
                if "limits" in parts:
                    bench_limits(lab, SIZES, 3, seconds)
        if "rails" in parts:
            bench_rails(program, rounds, seconds)
        if "contention" in parts:
            bench_contention(rounds)
        if "failover" in parts:
            bench_failover(arguments.faults)
        if "peer_failover" in parts:
            two = {name: net for name, net in nets.items() if name != "nccl_socket_thread"}
            bench_peer_failover(program, two, 5)
        if "status" in parts:
            bench_status(3)
        if "chaos" in parts:
            bench_chaos(arguments.faults * 5)
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
