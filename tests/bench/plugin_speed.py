"""Throughput, processor time and latency of the NCCL plugin beside NCCL's own sockets, over one NIC that is as fast as
the machine."""

import statistics
from pathlib import Path
from typing import Any

from tests.bench.plugin_limits import Limits
from tests.bench.plugin_nets import Net, measure, our_net
from tests.bench.plugin_rows import in_turn, report

from fabricpulse.lab import Lab
from fabricpulse.plugin.locate import library

SIZES = (4096, 65536, 1 << 20, 4 << 20)


def others(values: dict[str, float]) -> dict[str, Any]:
    """What the peers did, for the row of ours."""
    return {name: round(value, 4) for name, value in values.items() if name != "ours"}


def compare(case: str, metric: str, values: dict[str, list[float]], peer: str, must: str | None) -> None:
    """The median of the rounds' ratios of ours to one peer."""
    ratios = [ours / theirs for ours, theirs in zip(values["ours"], values[peer], strict=True)]
    shown = [round(ratio, 3) for ratio in ratios]
    report(case, metric, statistics.median(ratios), "ratio", must, peer=peer, rounds=shown)


def bench_throughput(lab: Lab, program: Path, nets: dict[str, Net], rounds: int, seconds: float) -> None:
    """One connection, up to eight messages under way, and in the same rounds what UCX and iperf3 reach. The gates are
    medians of the rounds' ratios, against the best setting of the peer."""
    speed: dict[tuple[int, str], list[float]] = {}
    cost: dict[tuple[int, str], list[float]] = {}
    limits = Limits(lab)
    for number in range(rounds):
        limits.iperf3()
        for size in SIZES:
            limits.ucx(size)
            for name in in_turn(list(nets), number):
                result = measure(lab, program, nets[name], "bandwidth", size, seconds)
                used = result["receive"]["cpu_s_per_gb"] + result["send"]["cpu_s_per_gb"]
                speed.setdefault((size, name), []).append(result["receive"]["gb_per_s"])
                cost.setdefault((size, name), []).append(used)
    for size in SIZES:
        gb = {name: statistics.median(speed[size, name]) for name in nets}
        cpu = {name: statistics.median(cost[size, name]) for name in nets}
        case = f"{size}"
        report(case, "throughput", gb["ours"], "GB/s", **others(gb))
        report(case, "cpu_per_gb", cpu["ours"], "s/GB", **others(cpu))
        if peers := [name for name in nets if name != "ours"]:
            least = 0.9 if size < 65536 else 1.0
            compare(
                case,
                "throughput_ratio_nccl_socket",
                {name: speed[size, name] for name in nets},
                max(peers, key=gb.__getitem__),
                f">= {least}",
            )
            compare(
                case,
                "cpu_per_gb_ratio_nccl_socket",
                {name: cost[size, name] for name in nets},
                min(peers, key=cpu.__getitem__),
                "<= 1.1" if size >= 65536 else None,
            )
    limits.report()


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
        compare("8", "latency_ratio_nccl_socket", times, fastest, "<= 1.25")


PAIR_S = 1.0


def paired(lab: Lab, program: Path, on: Net, off: Net, rounds: int) -> tuple[list[float], float, float]:
    """Throughput with something on over throughput with it off: the rounds' ratios; GB/s on and off."""
    ratios, speeds = [], {"on": list[float](), "off": list[float]()}
    for number in range(rounds):
        found = {}
        for name in in_turn(["on", "off"], number):
            net = on if name == "on" else off
            found[name] = measure(lab, program, net, "bandwidth", 65536, PAIR_S)["receive"]["gb_per_s"]
            speeds[name].append(found[name])
        ratios.append(found["on"] / found["off"])
    return ratios, statistics.median(speeds["on"]), statistics.median(speeds["off"])


def bench_telemetry(lab: Lab, program: Path, nets: dict[str, Net], rounds: int) -> None:
    """What watching costs: the plugin's telemetry, and the profiler beside NCCL's own transport. Three times as many
    rounds as elsewhere, because a hundredth has to be told from the noise of single runs."""
    ratios, on, off = paired(lab, program, our_net(), our_net(FABRICPULSE_TELEMETRY="0"), rounds * 3)
    ratio = statistics.median(ratios)
    shown = [round(each, 3) for each in ratios]
    report(
        "65536",
        "telemetry_ratio",
        ratio,
        "ratio",
        ">= 0.98",
        on_gb_s=on,
        off_gb_s=off,
        rounds=shown,
    )
    if "nccl_socket" not in nets:
        return
    peer = nets["nccl_socket"]
    # The proxy's steps too (detail 2) are asked for while one looks for a fault: printed, not judged.
    for detail, count, gate in (("1", rounds * 3, ">= 0.99"), ("2", rounds, None)):
        env = {
            **peer.env,
            "NET_BENCH_PROFILER": str(library()),
            "FABRICPULSE_NICS": "rail*",
            "FABRICPULSE_DETAIL": detail,
        }
        ratios, on, off = paired(lab, program, Net(peer.arguments, env), peer, count)
        report(
            f"65536_detail_{detail}",
            "profiler_ratio",
            statistics.median(ratios),
            "ratio",
            gate,
            transport="nccl_socket",
            on_gb_s=on,
            off_gb_s=off,
            rounds=[round(each, 3) for each in ratios],
        )
