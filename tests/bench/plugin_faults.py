"""Faults and shaped NICs under the NCCL plugin: what a job notices of them."""

import statistics
import subprocess
import time
from pathlib import Path

from tests.bench.plugin_nets import measure, our_net
from tests.bench.plugin_rows import report
from tests.integration.nccl_plugin.chaos import play
from tests.integration.nccl_plugin.ring import Ring

from fabricpulse.lab import Lab


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
