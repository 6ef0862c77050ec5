"""Throughput, processor time and latency of the NCCL plugin beside NCCL's own sockets, over one NIC that is as fast as
the machine."""

import statistics
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.plugin.limits import Limits
from tests.bench.plugin.nets import Net, measure, our_net
from tests.bench.plugin.rows import in_turn, report

from fabricpulse.lab import Lab
from fabricpulse.plugin.locate import library
from fabricpulse.plugin_ipc.control import ControlClient, ControlError

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


def bench_communicators(lab: Lab, program: Path, nets: dict[str, Net], rounds: int, seconds: float) -> None:
    """Eight communicators at the same time, each with a thread of its own that moves messages of 64 KiB: what they
    move together. They are more threads than a small machine has processors, so a round is four times as long."""
    case, mode, size = "communicators_8_64k", "bandwidth:8", 65536
    speed: dict[str, list[float]] = {name: [] for name in nets}
    cost: dict[str, list[float]] = {name: [] for name in nets}
    for number in range(rounds):
        for name in in_turn(list(nets), number):
            result = measure(lab, program, nets[name], mode, size, seconds * 4)
            speed[name].append(result["receive"]["gb_per_s"])
            cost[name].append(result["receive"]["cpu_s_per_gb"] + result["send"]["cpu_s_per_gb"])
    gb = {name: statistics.median(values) for name, values in speed.items()}
    cpu = {name: statistics.median(values) for name, values in cost.items()}
    report(case, "throughput", gb["ours"], "GB/s", **others(gb))
    report(case, "cpu_per_gb", cpu["ours"], "s/GB", **others(cpu))
    if peers := [name for name in nets if name != "ours"]:
        compare(case, "throughput_ratio_nccl", speed, max(peers, key=gb.__getitem__), ">= 1.0")
        compare(case, "cpu_per_gb_ratio_nccl", cost, min(peers, key=cpu.__getitem__), None)


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
# Of an idle pass of the ends whose processor time is compared, in place of NCCL's giving way in a loop.
NAP = {"NET_BENCH_NAP_US": "20"}


class Pairs:
    """Rounds of one thing on and off, by turns: throughput, and processor seconds for a GB of both ends together.

    Throughput of two busy processes on two processors says little: rounds of one run differ twofold. What the ends
    need for a GB is the cost. An end that has nothing to do naps (`NAP`), so that its processor time is work: with
    nothing changed between the two, pairs on a machine with ten times its load differed by 0.82 to 1.44 (once 2.8)
    instead of 0.43 to 1.57. A hundredth is more than noise on an idle machine only. Where the thing has processor time
    of its own that can be distinguished, that is judged in place of the ratio.
    """

    def __init__(self, print_row: Callable[..., None] = report) -> None:
        self._print_row = print_row
        self.speeds: dict[str, list[float]] = {"on": [], "off": []}
        self.costs: dict[str, list[float]] = {"on": [], "off": []}
        self.shares: list[float] = []

    def add(self, name: str, result: dict[str, dict[str, Any]]) -> None:
        """What `measure` has found with it "on" or "off"."""
        self.speeds[name].append(result["receive"]["gb_per_s"])
        self.costs[name].append(result["receive"]["cpu_s_per_gb"] + result["send"]["cpu_s_per_gb"])

    def add_share(self, result: dict[str, dict[str, Any]], part: Callable[[dict[str, Any]], float]) -> None:
        """A run in which `part` of an end's processor seconds for a GB was the thing's own."""
        own = sum(part(end) for end in result.values())
        self.shares.append(own / (self.costs["on"][-1] - own))

    def report(
        self, case: str, what: str, cost: str | None = None, share: str | None = None, **more: Any
    ) -> None:
        """Rows `<what>_ratio`, throughput with over without, and `<what>_cost`, processor time with over without:
        medians of the rounds' ratios. And `<what>_share`, the thing's own processor time over all other of both ends
        in the same runs. It leaves out what the thing costs the caches of the others."""
        for metric, found, unit, must in (
            ("ratio", self.speeds, "gb_per_s", None),
            ("cost", self.costs, "cpu_s_per_gb", cost),
        ):
            ratios = [on / off for on, off in zip(found["on"], found["off"], strict=True)]
            shown = {f"{name}_{unit}": round(statistics.median(values), 4) for name, values in found.items()}
            rounds = [round(each, 3) for each in ratios]
            value = statistics.median(ratios)
            self._print_row(case, f"{what}_{metric}", value, "ratio", must, rounds=rounds, **shown, **more)
        if self.shares:
            rounds = [round(each, 4) for each in self.shares]
            self._print_row(
                case, f"{what}_share", statistics.median(self.shares), "ratio", share, rounds=rounds, **more
            )


def profiler_s(end: dict[str, Any]) -> float:
    """What the profiler itself took, of an end of NCCL's own transport: its calls, and the threads of its library."""
    return float(end["profiler_s_per_gb"] + sum(end["threads_s_per_gb"].values()))


def control_s(end: dict[str, Any]) -> float:
    """What answering took: the control socket has a thread of its own."""
    return float(end["threads_s_per_gb"]["fabricpulse-ctl"])


def paired(
    lab: Lab,
    program: Path,
    on: Net,
    off: Net,
    rounds: int,
    part: Callable[[dict[str, Any]], float] | None = None,
) -> Pairs:
    """Messages of 64 KiB over one net, and over the other. part : of an end of `on`, what is its own."""
    pairs = Pairs()
    nets = {name: Net(net.arguments, {**net.env, **NAP}) for name, net in (("on", on), ("off", off))}
    for number in range(rounds):
        for name in in_turn(["on", "off"], number):
            result = measure(lab, program, nets[name], "bandwidth", 65536, PAIR_S)
            pairs.add(name, result)
            if part is not None and name == "on":
                pairs.add_share(result, part)
    return pairs


def bench_telemetry(lab: Lab, program: Path, nets: dict[str, Net], rounds: int) -> None:
    """What watching costs: the plugin's telemetry, and the profiler beside NCCL's own transport.
    Three times as many rounds as elsewhere, because a hundredth has to be distinguished from the noise of single
    runs."""
    # Printed, not judged: it has no processor time of its own, and rounds of one run were 0.98 to 1.87. By
    # instructions: tests/bench/rdma/watching.py.
    pairs = paired(lab, program, our_net(), our_net(FABRICPULSE_TELEMETRY="0"), rounds * 3)
    pairs.report("65536", "telemetry")
    if "nccl_socket" not in nets:
        return
    peer = nets["nccl_socket"]
    # The proxy's steps too (detail 2) are asked for while one looks for a fault: printed, not judged.
    for detail, count, gate in (("1", rounds * 3, "<= 0.01"), ("2", rounds, None)):
        env = {
            **peer.env,
            "NET_BENCH_PROFILER": str(library()),
            "FABRICPULSE_NICS": "rail*",
            "FABRICPULSE_DETAIL": detail,
        }
        pairs = paired(lab, program, Net(peer.arguments, env), peer, count, profiler_s)
        pairs.report(f"65536_detail_{detail}", "profiler", share=gate, transport="nccl_socket")


@dataclass(frozen=True)
class Askers:
    """Clients that ask each end for its status. pause_s : after each answer. anew : a connection for each question."""

    count: int = 1
    pause_s: float = 0.0
    anew: bool = False


ASKERS = {
    "65536_asked_100_per_s": Askers(pause_s=0.01),
    "65536_asked_without_pause": Askers(),
    "65536_asked_without_pause_by_8": Askers(count=8),
    "65536_asked_anew_without_pause": Askers(anew=True),
}


def bench_control(lab: Lab, program: Path, rounds: int) -> None:
    """What it costs the job that it is asked; the clients are not counted. As many rounds as for telemetry."""
    for case, askers in ASKERS.items():
        pairs = Pairs()
        answers = 0
        for number in range(rounds * 3):
            for name in in_turn(["on", "off"], number):
                if name == "off":
                    pairs.add(name, measure(lab, program, our_net(**NAP), "bandwidth", 65536, PAIR_S))
                    continue
                over = threading.Event()
                folders = [lab.host(at).run_dir / "plugin" for at in (0, 1)] * askers.count
                with ThreadPoolExecutor(len(folders)) as pool:
                    asked = [pool.submit(ask_until, over, folder, askers) for folder in folders]
                    try:
                        result = measure(lab, program, our_net(**NAP), "bandwidth", 65536, PAIR_S)
                        pairs.add(name, result)
                        pairs.add_share(result, control_s)
                    finally:
                        over.set()
                    answers += sum(each.result() for each in asked)
        pairs.report(case, "control", share="<= 0.02", answers_per_run=round(answers / (rounds * 3)))


def ask_until(over: threading.Event, directory: Path, askers: Askers) -> int:
    """Asks the newest process of a host for its status, again and again; how many answers there were."""
    answers = 0
    while not over.is_set():
        try:
            sockets = sorted(directory.glob("*.sock"), key=lambda path: path.stat().st_mtime)
            with ControlClient(sockets[-1]) as client:
                while not over.is_set():
                    client.call({"op": "status"})
                    answers += 1
                    over.wait(askers.pause_s)
                    if askers.anew:
                        break
        except (IndexError, OSError, ControlError):
            over.wait(0.01)  # not there yet, or gone
    return answers
