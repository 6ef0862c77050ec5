"""`make bench NAME=rdma`: lanes over queue pairs in a guest with Soft-RoCE, beside TCP lanes and NCCL's own transport.

One JSON object a line; exits with 1 if a gate is missed. Rounds are interleaved in one guest: peers on two hosts of one
kernel, over the same emulated processor. Figures of Soft-RoCE say what the software costs, not what a NIC does.
Throughput, latency, interposer, shaped rails, one-way delays and what watching costs have a guest of their own, whose
clock counts instructions (1 ns each): in a guest that gets a part of a busy machine's time, timers and idle passes cost
a message more, and the plugin has more of those than its peer; of two shaped rails 0.15 of their sum was used; delays
of 1 and 5 ms were reported as 1.6 and 8; rounds of `interposer_ratio` were 0.9 to 2. `--host-clock` measures them, too,
by this machine's clock. NCCL's InfiniBand transport is taken from the released NCCL and driven by the same program as
the plugin (tests/native/net_bench/net_bench.cc). Needs what tests/rdma needs. Faults have the host's clock, as an
hour of theirs takes ten by instructions; `--instruction-clock` is for a machine too busy to say anything about them.
Options:

    --only throughput,latency,interposer,two_rails,owd,watching,failover,peer_failover,last_resort,chaos
    --rounds N   --seconds N (of one measurement)   --no-peer   --host-clock   --instruction-clock (of faults, too)
    --faults N (of each kind)   --chaos N (random ones)   --seed N (of those)
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.bench.plugin.nets import build_program, nccl_ib
from tests.bench.rdma.parts import PARTS, run

from fabricpulse.core.errors import UserError
from fabricpulse.lab.rdma.guest import Guest
from fabricpulse.lab.rdma.kernel import find_kernel

ROOT = Path(__file__).parents[3]
# Parts of the guest whose clock counts instructions: what they measure is work or netem's delay, without faults.
COUNTED = ("throughput", "latency", "interposer", "two_rails", "owd", "watching")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="default: 3, by the instruction clock 0.5")
    clock = parser.add_mutually_exclusive_group()
    clock.add_argument("--host-clock", action="store_true")
    clock.add_argument("--instruction-clock", action="store_true")
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
            arguments.seconds or 3.0,
            arguments.faults,
            arguments.chaos,
            arguments.seed,
            arguments.program,
            arguments.peer,
        )
    with tempfile.TemporaryDirectory() as directory:
        program = build_program(Path(directory))
        peer = [] if arguments.no_peer else nccl_ib()
        exits = []
        for counted in (True, False):
            chosen = [
                part
                for part in parts
                if (arguments.instruction_clock or (part in COUNTED and not arguments.host_clock)) == counted
            ]
            if not chosen:
                continue
            seconds = arguments.seconds or (0.5 if counted else 3.0)
            command = [sys.executable, "-P", "-m", "tests.bench.rdma.__main__", "--only", ",".join(chosen)]
            command += ["--rounds", str(arguments.rounds), "--seconds", str(seconds)]
            command += ["--faults", str(arguments.faults), "--chaos", str(arguments.chaos)]
            command += ["--seed", str(arguments.seed), "--program", str(program)]
            command += ["--peer", *peer] if peer else []
            environment = {"PYTHONPATH": str(ROOT)}
            guest = Guest(find_kernel(), environment=environment, instruction_clock=counted)
            try:
                exits.append(guest.run(command, cwd=ROOT, timeout=6 * 3600.0))
            except UserError as error:  # the rows of the other guest are worth having
                print(f"bench rdma: {','.join(chosen)}: {error}", file=sys.stderr)
                exits.append(2)
        return max(exits)


if __name__ == "__main__":
    sys.exit(main())
