"""Throughput, processor time and latency of the NCCL plugin beside NCCL's own sockets, over one NIC that is as fast as
the machine."""

import operator
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.plugin_nets import Net, measure, our_net
from tests.bench.plugin_rows import report

from fabricpulse.lab import Lab
from fabricpulse.nccl_plugin.locate import library

SIZES = (4096, 65536, 1 << 20, 4 << 20)


def in_turn(names: list[str], number: int) -> list[str]:
    """Forwards and backwards by turns, so that a drift of the machine's speed favours nobody."""
    return names if number % 2 == 0 else names[::-1]


def others(values: dict[str, float]) -> dict[str, Any]:
    """What the peers did, for the row of ours."""
    return {name: round(value, 4) for name, value in values.items() if name != "ours"}


def bench_throughput(lab: Lab, program: Path, nets: dict[str, Net], rounds: int, seconds: float) -> None:
    """One connection, up to eight messages under way. The gate is against the best setting of the peer."""
    for size in SIZES:
        speed: dict[str, list[float]] = {name: [] for name in nets}
        cost: dict[str, list[float]] = {name: [] for name in nets}
        for number in range(rounds):
            for name in in_turn(list(nets), number):
                result = measure(lab, program, nets[name], "bandwidth", size, seconds)
                speed[name].append(result["receive"]["gb_per_s"])
                cost[name].append(result["receive"]["cpu_s_per_gb"] + result["send"]["cpu_s_per_gb"])
        gb = {name: statistics.median(values) for name, values in speed.items()}
        cpu = {name: statistics.median(values) for name, values in cost.items()}
        case = f"{size}"
        peers = [name for name in nets if name != "ours"]
        report(case, "throughput", gb["ours"], "GB/s", **others(gb))
        report(case, "cpu_per_gb", cpu["ours"], "s/GB", **others(cpu))
        if not peers:
            continue
        fastest, cheapest = max(peers, key=gb.__getitem__), min(peers, key=cpu.__getitem__)
        least = 0.9 if size < 65536 else 1.0
        report(
            case,
            "throughput_ratio_nccl_socket",
            gb["ours"] / gb[fastest],
            "ratio",
            partial(operator.le, least),
            peer=fastest,
        )
        report(
            case,
            "cpu_per_gb_ratio_nccl_socket",
            cpu["ours"] / cpu[cheapest],
            "ratio",
            (lambda v: v <= 1.1) if size >= 65536 else None,
            peer=cheapest,
        )


def bench_latency(lab: Lab, program: Path, nets: dict[str, Net], rounds: int, seconds: float) -> None:
    """Eight bytes to and fro, receives posted ahead."""
    times: dict[str, list[float]] = {name: [] for name in nets}
    for number in range(rounds):
        for name in in_turn(list(nets), number):
            result = measure(lab, program, nets[name], "latency", 8, seconds)
            times[name].append(result["send"]["half_round_trip_us"])
    us = {name: statistics.median(values) for name, values in times.items()}
    peers = [name for name in nets if name != "ours"]
    report("8", "half_round_trip", us["ours"], "us", **others(us))
    if peers:
        fastest = min(peers, key=us.__getitem__)
        ratio = us["ours"] / us[fastest]
        report("8", "latency_ratio_nccl_socket", ratio, "ratio", lambda v: v <= 1.25, peer=fastest)


def paired(
    lab: Lab, program: Path, on: Net, off: Net, rounds: int, seconds: float
) -> tuple[float, float, float]:
    """Throughput with something on over throughput with it off: the median of the rounds' ratios; GB/s on and off."""
    ratios, speeds = [], {"on": list[float](), "off": list[float]()}
    for number in range(rounds):
        found = {}
        for name in in_turn(["on", "off"], number):
            net = on if name == "on" else off
            found[name] = measure(lab, program, net, "bandwidth", 65536, seconds)["receive"]["gb_per_s"]
            speeds[name].append(found[name])
        ratios.append(found["on"] / found["off"])
    return statistics.median(ratios), statistics.median(speeds["on"]), statistics.median(speeds["off"])


def bench_telemetry(lab: Lab, program: Path, nets: dict[str, Net], rounds: int, seconds: float) -> None:
    """What watching costs: the plugin's telemetry, and the profiler beside NCCL's own transport."""
    ratio, on, off = paired(lab, program, our_net(), our_net(FABRICPULSE_TELEMETRY="0"), rounds, seconds)
    report("65536", "telemetry_ratio", ratio, "ratio", lambda v: v >= 0.98, on_gb_s=on, off_gb_s=off)
    if "nccl_socket" not in nets:
        return
    peer = nets["nccl_socket"]
    for detail, gate in (("1", lambda v: v >= 0.99), ("2", None)):
        env = {
            **peer.env,
            "NET_BENCH_PROFILER": str(library()),
            "FABRICPULSE_NICS": "rail*",
            "FABRICPULSE_DETAIL": detail,
        }
        ratio, on, off = paired(lab, program, Net(peer.arguments, env), peer, rounds, seconds)
        report(
            f"65536_detail_{detail}",
            "profiler_ratio",
            ratio,
            "ratio",
            gate,
            transport="nccl_socket",
            on_gb_s=on,
            off_gb_s=off,
        )
