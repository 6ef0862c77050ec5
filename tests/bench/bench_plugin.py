"""`make bench NAME=plugin`: the NCCL plugin beside NCCL's own socket transport, and its failover, in the lab.

One JSON object a line; rows in which the peer wins are printed like all others. Exits with 1 if a gate is missed. Needs
root. The peer is taken from the released NCCL (`nvidia-nccl-cu13`, 344 MB, pip puts it into build/peers) and driven
through its v12 interface by the same program, rounds interleaved. Options: `--only speed,rails,failover,chaos`,
`--rounds N`, `--seconds N` of one measurement, `--faults N`, `--no-peer`.
"""

import argparse
import json
import operator
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.integration.nccl_plugin.chaos import play
from tests.integration.nccl_plugin.ring import Ring

from fabricpulse.core.errors import UserError
from fabricpulse.lab import Lab
from fabricpulse.nccl_plugin.locate import library

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "build/peers/nccl"
PORT = 7100
SIZES = (4096, 65536, 1 << 20, 4 << 20)
missed: list[str] = []


def report(
    case: str, metric: str, value: float, unit: str, gate: Callable[[float], bool] | None = None, **more: Any
) -> None:
    """Prints one row; a missed gate is remembered."""
    row: dict[str, Any] = {
        "bench": "plugin",
        "case": case,
        "metric": metric,
        "value": round(value, 6),
        "unit": unit,
    }
    row.update(more)
    if gate is not None:
        row["gate"] = "ok" if gate(value) else "missed"
        if row["gate"] == "missed":
            missed.append(f"{case} {metric}")
    print(json.dumps(row), flush=True)


@dataclass
class Net:
    """What the measuring program needs to reach one implementation of the v12 interface."""

    arguments: list[str]
    env: dict[str, str] = field(default_factory=dict)


def our_net() -> Net:
    return Net([str(library()), "ncclNetPlugin_v12"], {"FABRICPULSE_NICS": "rail*"})


def nccl_socket() -> Net | None:
    """NCCL's own socket transport, or None with the reason on standard error."""
    found = list(PEERS.glob("nvidia/nccl/lib/libnccl.so.2"))
    if not found:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(PEERS)]
        done = subprocess.run([*pip, "nvidia-nccl-cu13"], capture_output=True, text=True, check=False)
        found = list(PEERS.glob("nvidia/nccl/lib/libnccl.so.2"))
        if not found:
            print(f"no peer: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return None
    symbols = subprocess.run(["nm", str(found[0])], capture_output=True, text=True, check=False).stdout
    places = {
        parts[2]: f"0x{parts[0]}"
        for parts in (line.split() for line in symbols.splitlines())
        if len(parts) == 3 and parts[2] in ("ncclNetSocket", "cudaGetDevice")
    }
    if len(places) != 2:
        print("no peer: this release of NCCL keeps its symbols to itself", file=sys.stderr)
        return None
    # One thread and one socket: more were two to four times slower on two processors.
    env = {"NCCL_SOCKET_IFNAME": "rail0", "NCCL_SOCKET_NTHREADS": "1", "NCCL_NSOCKS_PERTHREAD": "1"}
    return Net([str(found[0]), places["ncclNetSocket"], places["cudaGetDevice"]], env)


def build_program(directory: Path) -> Path:
    """The measuring program (tests/native/plugin_net_bench.cc)."""
    program = directory / "net-bench"
    source = ROOT / "tests/native/plugin_net_bench.cc"
    compiler = shutil.which("c++") or "c++"
    include = f"-I{ROOT}/nccl_plugin/src"
    subprocess.run(
        [compiler, "-std=c++17", "-O2", include, str(source), "-o", str(program), "-ldl"], check=True
    )
    return program


def measure(
    lab: Lab, program: Path, net: Net, mode: str, size: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """One run between two hosts: what the sender and the receiver have measured."""
    receiver, sender = lab.host(0), lab.host(1)
    results: dict[str, dict[str, Any]] = {}
    running = []
    for role, host in (("receive", receiver), ("send", sender)):
        output = (lab.directory / f"net-bench-{role}").open("w+")
        address = f"{receiver.front_end}:{PORT}"
        argv = [str(program), role, address, mode, str(size), str(seconds), *net.arguments]
        process = host.popen(argv, env=net.env, stdout=output, stderr=subprocess.STDOUT)
        running.append((role, process, output))
    for role, process, output in running:
        code = process.wait(seconds + 60)
        output.seek(0)
        said = output.read()
        output.close()
        if code != 0:
            raise UserError(f"{process.describe()} ended with {code}: {said.strip()[-500:]}")
        results[role] = json.loads([line for line in said.splitlines() if line.startswith("{")][-1])
    return results


def bench_speed(program: Path, peer: Net | None, rounds: int, seconds: float) -> None:
    """Throughput, processor time and latency over one NIC that is as fast as the machine."""
    nets = {"ours": our_net(), **({"peer": peer} if peer else {})}
    with Lab(hosts=2, rails=2) as lab:
        for size in SIZES:
            speed: dict[str, list[float]] = {name: [] for name in nets}
            cost: dict[str, list[float]] = {name: [] for name in nets}
            for _ in range(rounds):
                for name, net in nets.items():
                    result = measure(lab, program, net, "bandwidth", size, seconds)
                    speed[name].append(result["receive"]["gb_per_s"])
                    cost[name].append(result["receive"]["cpu_s_per_gb"] + result["send"]["cpu_s_per_gb"])
            gb = {name: statistics.median(values) for name, values in speed.items()}
            cpu = {name: statistics.median(values) for name, values in cost.items()}
            report(f"{size}", "throughput", gb["ours"], "GB/s", peer="nccl_socket", peer_value=gb.get("peer"))
            report(
                f"{size}", "cpu_per_gb", cpu["ours"], "s/GB", peer="nccl_socket", peer_value=cpu.get("peer")
            )
            if peer:
                least = 0.9 if size < 65536 else 1.0
                report(
                    f"{size}",
                    "throughput_ratio_nccl_socket",
                    gb["ours"] / gb["peer"],
                    "ratio",
                    partial(operator.le, least),
                )
                gate = None if size < 65536 else lambda v: v <= 1.1
                report(f"{size}", "cpu_per_gb_ratio_nccl_socket", cpu["ours"] / cpu["peer"], "ratio", gate)
        times: dict[str, list[float]] = {name: [] for name in nets}
        for _ in range(rounds):
            for name, net in nets.items():
                times[name].append(
                    measure(lab, program, net, "latency", 8, seconds)["send"]["half_round_trip_us"]
                )
        us = {name: statistics.median(values) for name, values in times.items()}
        report("8", "half_round_trip", us["ours"], "us", peer="nccl_socket", peer_value=us.get("peer"))
        if peer:
            report("8", "latency_ratio_nccl_socket", us["ours"] / us["peer"], "ratio", lambda v: v <= 1.25)
        values = {}
        for telemetry in ("1", "0"):
            net = our_net()
            net.env["FABRICPULSE_TELEMETRY"] = telemetry
            runs = [measure(lab, program, net, "bandwidth", 65536, seconds) for _ in range(rounds)]
            values[telemetry] = statistics.median(run["receive"]["gb_per_s"] for run in runs)
        report("65536", "telemetry_ratio", values["1"] / values["0"], "ratio", lambda v: v >= 0.98)


def bench_rails(program: Path, rounds: int, seconds: float) -> None:
    """One connection over two NICs of 200 Mbit/s; then one of them throttled four times."""
    with Lab(hosts=2, rails=2, nic_mbit=200) as lab:
        runs = [measure(lab, program, our_net(), "bandwidth", 1 << 20, seconds * 3) for _ in range(rounds)]
        rate = statistics.median(run["receive"]["gb_per_s"] for run in runs)
        report("200mbit", "two_nics_ratio", rate * 8e3 / 400, "ratio", lambda v: v >= 0.92)
        fault = lab.host(1).nic(0).limit(50, way="both")
        runs = [measure(lab, program, our_net(), "bandwidth", 1 << 20, seconds * 3) for _ in range(rounds)]
        rate = statistics.median(run["receive"]["gb_per_s"] for run in runs)
        report("50mbit+200mbit_from_start", "rebalance_ratio", rate * 8e3 / 250, "ratio")
        fault.undo()
        ring = Ring(lab, 2, ["--bytes", "16M", "--channels", "1"])
        ring.wait_running()
        time.sleep(1)
        fault = lab.host(1).nic(0).limit(50, way="both")
        since = time.time()
        time.sleep(5)
        until = time.time()
        report(
            "200mbit_to_50mbit",
            "rebalance_ratio",
            ring.bandwidth(until - 3, until) / 31.25e6,
            "ratio",
            lambda v: v >= 0.85,
        )
        reached = next(
            (
                at / 10
                for at in range(40)
                if ring.bandwidth(since + at / 10, since + at / 10 + 0.5) >= 0.85 * 31.25e6
            ),
            float("inf"),
        )
        report("200mbit_to_50mbit", "rebalance_s", reached, "s", lambda v: v <= 1)
        ring.stop()
        fault.undo()


def bench_failover(faults: int) -> None:
    """Link down under load, again and again: the gap that the workload sees, and how soon the lane is used again."""
    with Lab(hosts=2, rails=2, nic_mbit=200) as lab:
        ring = Ring(lab, 2, ["--bytes", "2M"])
        ring.wait_running()
        stalls, survivors, backs, round_trips = [], [], [], []
        for number in range(faults):
            nic = lab.host(number % 2).nic(number // 2 % 2)
            since = time.time()
            fault = nic.down()
            time.sleep(0.6)
            until = time.time()
            stalls.append(ring.stall_ms(since, until))
            survivors.append(ring.bandwidth(until - 0.4, until) / 25e6)
            fault.undo()
            repaired = time.monotonic()

            def carries(host: str = f"h{number % 2}", device: str = nic.device) -> bool:
                start = time.perf_counter()
                lanes = ring.lanes(host)
                round_trips.append((time.perf_counter() - start) * 1e6)
                return any(
                    lane["device"] == device and lane["state"] == "up" and lane["weight"] > 0
                    for lane in lanes
                )

            ring.until(carries, 30)
            backs.append(time.monotonic() - repaired)
            time.sleep(4)  # the damping of the next fault must not hide this one's
        ring.stop()
        stalls.sort()
        p99 = stalls[min(len(stalls) - 1, int(len(stalls) * 0.99))]
        report("link_down", "failover_stall_ms_p99", p99, "ms", lambda v: v <= 300, samples=len(stalls))
        report("link_down", "failover_stall_ms_p50", statistics.median(stalls), "ms")
        report("link_down", "survivor_ratio", statistics.median(survivors), "ratio", lambda v: v >= 0.9)
        report("link_up", "failback_s", statistics.median(backs), "s", lambda v: v <= 2)
        round_trips.sort()
        p99 = round_trips[min(len(round_trips) - 1, int(len(round_trips) * 0.99))]
        report("status", "status_us_p99", p99, "us", lambda v: v <= 2000)


def bench_chaos(faults: int) -> None:
    """Random faults, several at a time."""
    with Lab(hosts=3, rails=2, nic_mbit=300) as lab:
        ring = Ring(lab, 3, ["--bytes", "1M"])
        ring.wait_running()
        play(ring, lab, 7, faults)
        healed = time.time()
        hangs = 0
        try:
            ring.until(lambda: ring.bandwidth(healed, time.time()) > 0, 30)
        except AssertionError:
            hangs = 1
        for rank in ring.ranks:
            rank.process.terminate()
        codes = []
        for rank in ring.ranks:
            try:
                codes.append(rank.process.wait(30))
            except subprocess.TimeoutExpired:
                rank.process.kill()
                hangs += 1
        summaries = [summary for rank in ring.ranks for summary in rank.lines("summary")]
        for metric, value in (
            ("chaos_errors", sum(s["errors"] for s in summaries)),
            ("chaos_corrupt_bytes", sum(s["corrupt_bytes"] for s in summaries)),
            ("chaos_hangs", hangs),
        ):
            report(f"{faults}_faults", metric, value, "count", lambda v: v == 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="speed,rails,failover,chaos")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    with tempfile.TemporaryDirectory() as directory:
        if "speed" in parts or "rails" in parts:
            program = build_program(Path(directory))
        if "speed" in parts:
            peer = None if arguments.no_peer else nccl_socket()
            bench_speed(program, peer, arguments.rounds, arguments.seconds)
        if "rails" in parts:
            bench_rails(program, arguments.rounds, arguments.seconds)
        if "failover" in parts:
            bench_failover(arguments.faults)
        if "chaos" in parts:
            bench_chaos(arguments.faults * 5)
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
