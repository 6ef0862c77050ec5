"""`make bench NAME=rdma`: lanes over queue pairs in a guest with Soft-RoCE, beside TCP lanes and NCCL's own transport.

One JSON object a line; exits with 1 if a gate is missed. Boots one guest, in which everything is measured, rounds
interleaved: peers on two hosts of one kernel, over the same emulated processor. Figures of Soft-RoCE say what the
software costs, not what a NIC does. NCCL's InfiniBand transport is taken from the released NCCL and driven by the same
program as the plugin (tests/native/net_bench/net_bench.cc). Needs what tests/rdma needs. Options:

    --only throughput,latency,interposer,two_rails,owd,failover,last_resort,chaos
    --rounds N   --seconds N (of one measurement)   --no-peer
    --faults N (of each kind)   --chaos N (random ones)   --seed N (of those)
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.bench.plugin.nets import build_program, nccl_ib
from tests.bench.rdma.parts import PARTS, run

from fabricpulse.lab.rdma.guest import Guest
from fabricpulse.lab.rdma.kernel import find_kernel

ROOT = Path(__file__).parents[3]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--faults", type=int, default=5)
    parser.add_argument("--chaos", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--program", type=Path, help=argparse.SUPPRESS)  # in the guest
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only {','.join(sorted(unknown))}: known are {', '.join(PARTS)}")
    if os.environ.get("FABRICPULSE_RDMA_GUEST") == "1":
        return run(
            parts,
            arguments.rounds,
            arguments.seconds,
            arguments.faults,
            arguments.chaos,
            arguments.seed,
            arguments.program,
            arguments.peer,
        )
    with tempfile.TemporaryDirectory() as directory:
        program = build_program(Path(directory))
        peer = [] if arguments.no_peer else nccl_ib()
        command = [sys.executable, "-P", "-m", "tests.bench.rdma.__main__", "--only", arguments.only]
        command += ["--rounds", str(arguments.rounds), "--seconds", str(arguments.seconds)]
        command += ["--faults", str(arguments.faults), "--chaos", str(arguments.chaos)]
        command += ["--seed", str(arguments.seed), "--program", str(program)]
        command += ["--peer", *peer] if peer else []
        guest = Guest(find_kernel(), environment={"PYTHONPATH": str(ROOT)})
        return guest.run(command, cwd=ROOT, timeout=6 * 3600.0)


if __name__ == "__main__":
    sys.exit(main())
