"""What `make bench NAME=rdma` measures inside the guest."""

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.plugin.speed import Askers
from tests.bench.rdma import faults as fault_runs
from tests.bench.rdma import interposer, owd
from tests.bench.rdma.watching import asked, watching
from tests.bench.rows import Rows
from tests.rdma.ring_pair import RingPair

from fabricpulse.lab.rdma.fleet import HOSTS, RdmaFleet, build
from fabricpulse.plugin.locate import library

PARTS = (
    "throughput",
    "latency",
    "interposer",
    "two_rails",
    "owd",
    "watching",
    "failover",
    "peer_failover",
    "last_resort",
    "chaos",
)
SIZES = {"64 KiB": 1 << 16, "1 MiB": 1 << 20, "4 MiB": 1 << 22}
PATIENCE_S = 240.0
# Far below what the guest can do by its instruction clock, in both directions of both rails at once.
TWO_RAILS_MBIT = 80
# Payload of a packet of path MTU 4096 by what tbf counts of it: Ethernet, IP, UDP, BTH, ICRC.
ON_WIRE = 4096 / (4096 + 14 + 20 + 8 + 12 + 4)

rows = Rows("rdma")


def run(
    parts: list[str],
    rounds: int,
    seconds: float,
    faults: int,
    chaos: int,
    seed: int,
    program: Path,
    peer: list[str] | None,
) -> int:
    """Builds the fleet in this guest, measures, prints the rows. Returns the exit code."""
    fleet = build(rails=2)
    nets = _nets(peer)
    if "throughput" in parts:
        _throughput(program, nets, rounds, seconds)
    if "latency" in parts:
        _latency(program, nets, rounds, seconds)
    if "interposer" in parts and "nccl_ib" in nets:
        arguments, environment = nets["nccl_ib"]
        interposer.interposer(
            fleet,
            rows,
            lambda env, mode, size, span: _measure(program, arguments, env, mode, size, span),
            environment,
            rounds,
            seconds,
        )
    if "two_rails" in parts:
        _two_rails(fleet, rounds, seconds)
    if "owd" in parts:
        owd.owd(fleet, rows, rounds, seconds)
    if "watching" in parts:
        _watching(program, nets, rounds, seconds)
    if "failover" in parts:
        fault_runs.failover(fleet, rows, faults)
    if "peer_failover" in parts and peer:
        _peer_failover(fleet, program, peer, faults)
    if "last_resort" in parts:
        fault_runs.last_resort(fleet, rows, faults)
    if "chaos" in parts:
        fault_runs.chaos(fleet, rows, chaos, seed)
    return rows.exit_code()


def _nets(peer: list[str] | None) -> dict[str, tuple[list[str], Callable[[int], dict[str, str]]]]:
    """By name: arguments of the measuring program, and the environment of a host."""
    ours = [str(library()), "ncclNetPlugin_v12"]
    nets: dict[str, tuple[list[str], Callable[[int], dict[str, str]]]] = {
        "verbs": (ours, lambda host: {"FABRICPULSE_NICS": "rail0", "FABRICPULSE_LANES": "verbs"}),
        "tcp": (ours, lambda host: {"FABRICPULSE_NICS": "rail0", "FABRICPULSE_LANES": "tcp"}),
    }
    if peer:
        # Without a limit of retries Soft-RoCE never gives up.
        settings = {
            "NCCL_SOCKET_IFNAME": "ctl",
            "NCCL_IB_RETRY_CNT": "6",
            "NCCL_IB_TIMEOUT": "14",
            "NCCL_DEBUG": "WARN",
        }
        nets["nccl_ib"] = (peer, lambda host: {**settings, "NCCL_IB_HCA": f"=rxe{host}-0"})
    return nets


def _measure(
    program: Path,
    arguments: list[str],
    environment: Callable[[int], dict[str, str]],
    mode: str,
    size: int,
    seconds: float,
    askers: Askers | None = None,
) -> dict[str, dict[str, Any]]:
    """One run between the two hosts: what the receiver and the sender have measured. Fails if a byte was wrong."""
    running = []
    with tempfile.TemporaryDirectory() as run_dir:
        folders = []
        for number, role in enumerate(("receive", "send")):
            folders.append(Path(run_dir, role))
            folders[-1].mkdir()
            command = [
                *("ip", "netns", "exec", HOSTS[number], str(program), role, "10.8.0.1:7100", mode),
                *(str(size), str(seconds), *arguments),
            ]
            env = {**os.environ, "FABRICPULSE_RUN_DIR": str(folders[-1]), **environment(number)}
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            running.append((role, process))
        said, answers = asked(
            [folder / "plugin" for folder in folders],
            askers,
            lambda: {role: process.communicate(timeout=PATIENCE_S)[0] for role, process in running},
        )
    # Of both: which of them has failed, the other one does not know.
    ends = [
        f"{role}: {process.returncode}: {said[role].decode(errors='replace')[-800:]}"
        for role, process in running
    ]
    assert not any(process.returncode for _, process in running), "\n".join(ends)
    return {
        role: {
            **json.loads([line for line in output.splitlines() if line.startswith(b"{")][-1]),
            "answers": answers,
        }
        for role, output in said.items()
    }


def _peer_failover(fleet: RdmaFleet, program: Path, peer: list[str], count: int) -> None:
    """NCCL fails over between the NICs of one virtual device, and only if a setting says so."""
    _, environment = _nets(peer)["nccl_ib"]

    def both(host: int) -> dict[str, str]:
        return {
            **environment(host),
            "NCCL_IB_HCA": f"=rxe{host}-0,rxe{host}-1",
            "NCCL_IB_RESILIENCY_PORT_FAILOVER": "1",
            "NET_BENCH_FUSED": "2",
        }

    fault_runs.peer_failover(
        fleet,
        rows,
        count,
        lambda seconds: _measure(program, peer, both, "bandwidth", SIZES["1 MiB"], seconds),
    )


def _watching(program: Path, nets: dict[str, Any], rounds: int, seconds: float) -> None:
    def measure(
        name: str, env: dict[str, str], span: float, askers: Askers | None
    ) -> dict[str, dict[str, Any]]:
        arguments, environment = nets[name]
        return _measure(
            program,
            arguments,
            lambda host: {**environment(host), **env},
            "bandwidth",
            SIZES["64 KiB"],
            span,
            askers,
        )

    watching(measure, rows, "nccl_ib" in nets, rounds, seconds)


def _throughput(program: Path, nets: dict[str, Any], rounds: int, seconds: float) -> None:
    for case, size in SIZES.items():
        speeds: dict[str, list[float]] = {name: [] for name in nets}
        costs: dict[str, list[float]] = {name: [] for name in nets}
        works: dict[str, list[float]] = {name: [] for name in nets}
        idle: dict[str, list[float]] = {name: [] for name in nets}
        for _ in range(rounds):
            for name, (arguments, environment) in nets.items():
                found = _measure(program, arguments, environment, "bandwidth", size, seconds)
                speeds[name].append(found["receive"]["gb_per_s"])
                costs[name].append(sum(end["cpu_s_per_gb"] for end in found.values()))
                works[name].append(costs[name][-1] - sum(end["wait_s_per_gb"] for end in found.values()))
                idle[name].append(sum(end["idle_passes"] / end["messages"] for end in found.values()))
        for name in nets:
            rows.report(case, f"throughput_{name}", statistics.median(speeds[name]), "GB/s", rounds=rounds)
            rows.report(
                case,
                f"cpu_per_gb_{name}",
                statistics.median(costs[name]),
                "s/GB",
                without_waiting=statistics.median(works[name]),
                idle_passes_a_message=statistics.median(idle[name]),
            )
        for peer, gate in (("nccl_ib", ">= 1.0"), ("tcp", None)):
            if peer in nets:
                ratio = statistics.median(
                    ours / theirs for ours, theirs in zip(speeds["verbs"], speeds[peer], strict=True)
                )
                cost = statistics.median(
                    ours / theirs for ours, theirs in zip(costs["verbs"], costs[peer], strict=True)
                )
                work = statistics.median(
                    ours / theirs for ours, theirs in zip(works["verbs"], works[peer], strict=True)
                )
                cheap = "<= 1.0" if gate else None
                rows.report(case, f"throughput_ratio_{peer}", ratio, "ratio", gate, peer=peer)
                rows.report(
                    case, f"cpu_per_gb_ratio_{peer}", cost, "ratio", cheap, peer=peer, without_waiting=work
                )


def _latency(program: Path, nets: dict[str, Any], rounds: int, seconds: float) -> None:
    halves: dict[str, list[float]] = {name: [] for name in nets}
    for _ in range(rounds):
        for name, (arguments, environment) in nets.items():
            found = _measure(program, arguments, environment, "latency", 8, seconds)
            halves[name].append(found["send"]["half_round_trip_us"])
    for name in nets:
        rows.report("8 B", f"latency_{name}", statistics.median(halves[name]), "us", rounds=rounds)
    if "nccl_ib" in nets:
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(halves["verbs"], halves["nccl_ib"], strict=True)
        )
        rows.report("8 B", "latency_ratio_nccl_ib", ratio, "ratio", "<= 1.1", peer="nccl_ib")


def _two_rails(fleet: RdmaFleet, rounds: int, seconds: float) -> None:
    """Both rails shaped to the same rate: what a connection carries over both, beside their sum."""
    rate_bytes = TWO_RAILS_MBIT * 1e6 / 8
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for rail in range(fleet.rails):
            stack.enter_context(fleet.shaped(rail, f"{TWO_RAILS_MBIT}mbit"))
        # Both ranks send: each direction of each rail is full.
        options = ["--stream", "256K-256K", "--channels", "1"]
        ring = stack.enter_context(RingPair(Path(folder), options))
        ring.until_moved(1, PATIENCE_S)
        ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
        ring.until_moved(4 << 20, PATIENCE_S)
        shares = []
        for _ in range(rounds):
            before, began = ring.moved(), time.monotonic()
            time.sleep(max(seconds, 2.0))  # the measurement
            after, took = ring.moved(), time.monotonic() - began
            shares += [
                (now - old) / took / (fleet.rails * rate_bytes) / ON_WIRE
                for now, old in zip(after, before, strict=True)
            ]
        ring.finish(PATIENCE_S)
    rows.report(
        f"2 x {TWO_RAILS_MBIT} Mbit/s",
        "two_rails_ratio",
        statistics.median(shares),
        "ratio",
        ">= 0.92",
        rounds=rounds,
    )
