"""Faults and shaped NICs under the NCCL plugin: what a job notices of them."""

import os
import statistics
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.bench.plugin.nets import Net, measure, our_net
from tests.bench.plugin.rows import in_turn, report
from tests.bench.plugin.stalls import Lateness, back, running
from tests.bench.rows import quantile
from tests.integration.plugin.chaos import connect_beside_a_stopped_peer, play
from tests.integration.plugin.ring import RENDEZVOUS_PORT, Ring

from fabricpulse.lab import Lab
from fabricpulse.plugin_ipc.control import ControlClient


def bench_rails(program: Path, rounds: int, seconds: float) -> None:
    """One connection over two NICs of 200 Mbit/s; then one of them throttled four times."""
    with Lab(hosts=2, rails=2, nic_mbit=200) as lab:
        runs = [measure(lab, program, our_net(), "bandwidth", 1 << 20, seconds * 3) for _ in range(rounds)]
        rate = statistics.median(run["receive"]["gb_per_s"] for run in runs)
        report("200mbit", "two_nics_ratio", rate * 8e3 / 400, "ratio", ">= 0.92")
        fault = lab.host(1).nic(0).limit(50, way="both")
        runs = [measure(lab, program, our_net(), "bandwidth", 1 << 20, seconds * 3) for _ in range(rounds)]
        rate = statistics.median(run["receive"]["gb_per_s"] for run in runs)
        report("50mbit+200mbit_from_start", "rebalance_ratio", rate * 8e3 / 250, "ratio")
        fault.undo()
        rebalance(lab)


REBALANCES = 5
THROTTLED_S = 4.0
# Of the average that has to reach the gate, and to the end: messages of 512 KiB, one in 84 ms on the slow NIC, and the
# rounds of the all-reduce, one in 0.5 s, make half a second read 0.7 to 1.1 of what four seconds do.
SPAN_S = 1.0


def rebalance(lab: Lab) -> None:
    """One of two NICs throttled four times under load: what is used of both, and since when."""
    gate = 0.85
    ring = Ring(lab, 2, ["--bytes", "16M", "--channels", "1"])
    ring.wait_running()
    shares, took = [], []
    for number in range(REBALANCES):
        time.sleep(2)  # a fixed time at full speed between two faults is part of what is measured
        fault = lab.host(1).nic(number % 2).limit(50, way="both")
        since = time.time()
        time.sleep(THROTTLED_S)
        fault.undo()
        shares.append(ring.bandwidth(since + 1, since + THROTTLED_S) / 31.25e6)
        end = since + THROTTLED_S

        def used(start: float, until: float = end) -> bool:
            return ring.bandwidth(start, until) >= gate * 31.25e6

        starts = [at / 10 for at in range(int((THROTTLED_S - SPAN_S) * 10))]
        held = (at for at in starts if used(since + at, since + at + SPAN_S) and used(since + at))
        took.append(next(held, float("inf")))
    ring.stop()
    case = "200mbit_to_50mbit"
    share, seconds = statistics.median(shares), statistics.median(took)
    rounds = [round(each, 4) for each in shares]
    report(case, "rebalance_ratio", share, "ratio", f">= {gate}", rounds=rounds)
    report(case, "rebalance_s", seconds, "s", "<= 1", rounds=[round(each, 1) for each in took])


# The same rail every 3 s: a penalty of 1000 that halves in 4 s stays just below the 2500 at which a lane is damped.
FAULT_EVERY_S = 1.5
FAULT_LASTS_S = 0.5
LONG_FAULTS = 8  # two on each NIC of both hosts
# A message takes 80 ms on one NIC: a window of a few of them reads up to a quarter too much or too little.
LONG_FAULT_LASTS_S = 3.0


def survivors(lab: Lab, ring: Ring) -> list[float]:
    """The bandwidth with one NIC down over that NIC's capacity: from half a second after the fault to its end."""
    found = []
    for number in range(LONG_FAULTS):
        host, rail = f"h{number // 2 % 2}", number % 2
        nic = lab.host(host).nic(rail)
        since = time.time() + 0.5
        fault = nic.down()
        time.sleep(LONG_FAULT_LASTS_S)  # the measurement itself
        until = time.time()
        fault.undo()
        found.append(ring.bandwidth(since, until) / 25e6)
        ring.until(partial(ring.carries, host, nic.device), 30)
        time.sleep(1)  # so that the same rail is not down more often than without damping
    return found


def bench_failover(faults: int) -> None:
    """Link down under load, again and again, by turns on each NIC of both hosts: the gap that the workload sees and how
    soon the lane is used again; then, under longer faults, what is left on the other NIC."""
    with Lab(hosts=2, rails=2, nic_mbit=200) as lab:
        ring = Ring(lab, 2, ["--bytes", "4M"])
        ring.wait_running()
        stalls: list[float] = []
        backs: list[float] = []
        for number in range(faults):
            next_at = time.monotonic() + FAULT_EVERY_S
            host, rail = f"h{number // 2 % 2}", number % 2
            nic = lab.host(host).nic(rail)
            since = time.time()
            fault = nic.down()
            time.sleep(FAULT_LASTS_S)
            fault.undo()
            repaired = time.monotonic()
            ring.until(partial(ring.carries, host, nic.device), 30)
            backs.append(time.monotonic() - repaired)
            time.sleep(max(0.0, next_at - time.monotonic()))
            # Looked up only now: reading takes processor time from the job. Gaps of the return count too.
            stalls.append(ring.stall_ms(since, time.time() - 0.2))
        left = survivors(lab, ring)
        ring.stop()
    count = len(stalls)
    p99 = quantile(stalls, 0.99)
    report("link_down", "failover_stall_ms_p99", p99, "ms", "<= 300", samples=count)
    report("link_down", "failover_stall_ms_p50", statistics.median(stalls), "ms", samples=count)
    report("link_down", "failover_stall_ms_max", max(stalls), "ms", samples=count)
    share = statistics.median(left)
    report(
        "link_down",
        "survivor_ratio",
        share,
        "ratio",
        ">= 0.9",
        worst=round(min(left), 4),
        best=round(max(left), 4),
        samples=len(left),
    )
    back = quantile(backs, 0.99)
    report("link_up", "failback_s_p99", back, "s", "<= 2", samples=count)
    report("link_up", "failback_s", statistics.median(backs), "s", "<= 2", samples=count)


def bench_peer_failover(program: Path, nets: dict[str, Net], faults: int) -> None:
    """The same fault under one connection of each net, driven by the same program: the longest gap between messages.

    Few, because NCCL's sockets stand still until TCP tries again. The NIC comes back after half a second; lost for
    good, NCCL's job would hang.
    """
    with Lab(hosts=2, rails=2, nic_mbit=200) as lab:
        nets = {name: net for name, net in nets.items() if name != "nccl_socket_thread"}
        gaps: dict[str, list[float]] = {name: [] for name in nets}
        for _ in range(faults):
            for name, net in nets.items():
                with ThreadPoolExecutor() as pool:
                    run = pool.submit(measure, lab, program, net, "bandwidth", 65536, 3.0)
                    time.sleep(1.2)  # past the start, well before the end
                    with lab.host(1).nic(0).down():
                        time.sleep(FAULT_LASTS_S)
                    gaps[name].append(run.result()["receive"]["longest_gap_ms"])
        for name, values in gaps.items():
            report(
                f"link_down_{name}",
                "longest_gap_ms_p50",
                statistics.median(values),
                "ms",
                worst=max(values),
                samples=len(values),
            )


STATUS_S = 3.0
# As a monitor asks, and more often than answers are paid for (`control/token_bucket.h`).
POLLED_EVERY_S, FLOODED_EVERY_S = 0.1, 0.01
# Until what a flood has asked is paid for: the next span would wait for it.
PAID_S = 1.5


def ask(
    client: ControlClient | None, every_s: float, *, realtime: bool = False
) -> tuple[tuple[float, float], list[float]]:
    """Asks for the status for three seconds, or nobody for as long: the span of CLOCK_REALTIME, and the round trips in
    microseconds. A real-time asker does not itself wait for a processor behind the job."""
    if realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    took = []
    since = time.time()
    try:
        for at in range(1, int(STATUS_S / every_s) + 1):
            if client is not None:
                start = time.perf_counter()
                client.call({"op": "status"})
                took.append((time.perf_counter() - start) * 1e6)
            time.sleep(max(0.0, since + at * every_s - time.time()))
        return (since, time.time()), took
    finally:
        if realtime:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def bench_status(rounds: int) -> None:
    """Round trips of the control socket under load, asked ten times a second, and what being asked a hundred times a
    second costs the job: over NICs of 400 Mbit/s, and over NICs as fast as the machine, where each answer takes
    processor time from the data.

    Answers may cost a job one per cent of its processor time, so a hundred a second wait: their round trips are
    printed, not judged. So are those of an asker that gets a processor at once: the difference is what the ordinary one
    waits for a processor behind the job, which no control socket can change. Where the processors are the limit the
    bandwidth of a round moves by a third whether anybody asks or not, so its ratio is printed there, not judged.
    """
    for case, mbit, loss in (("2x400mbit", 400, ">= 0.98"), ("unshaped", None, None)):
        with Lab(hosts=2, rails=2, nic_mbit=mbit) as lab:
            ring = Ring(lab, 2, ["--bytes", "4M"])
            ring.wait_running()
            took: dict[str, list[float]] = {"quiet": [], "polled": [], "realtime": [], "flooded": []}
            ratios: list[float] = []
            (path,) = (lab.host("h0").run_dir / "plugin").glob("*.sock")
            with ControlClient(path) as client:
                client.call({"op": "status"})  # who has asked nothing yet is dropped after two seconds
                for number in range(rounds):
                    speeds = {}
                    for name in in_turn(list(took), number):
                        every_s = FLOODED_EVERY_S if name == "flooded" else POLLED_EVERY_S
                        span, found = ask(
                            None if name == "quiet" else client, every_s, realtime=name == "realtime"
                        )
                        took[name] += found
                        ring.wait_printed(span[1])
                        speeds[name] = ring.bandwidth(*span)
                        if name == "flooded":
                            time.sleep(PAID_S)  # the next span would wait for what this one has asked
                    ratios.append(speeds["flooded"] / speeds["quiet"])
            ring.stop()
        for name, must in (("polled", "<= 2000"), ("realtime", None), ("flooded", None)):
            report(
                case, f"status_us_p99_{name}", quantile(took[name], 0.99), "us", must, samples=len(took[name])
            )
        report(
            case, "status_us_p50_polled", statistics.median(took["polled"]), "us", samples=len(took["polled"])
        )
        shown = [round(each, 3) for each in ratios]
        ratio = statistics.median(ratios)
        report(case, "bandwidth_while_asked_ratio", ratio, "ratio", loss, rounds=shown)


LONGEST_FAULT_S = 6.0
MAX_GAP_MS = 300
# One fault of this many is a job that starts beside a stopped process.
STARTS_SHARE = 10
PHASE = 25


def bench_chaos(faults: int, seed: int) -> None:
    """Random faults, several at a time: half of them on any NIC, all NICs of a host and processes too, under numbered
    messages with a checksum; a few while jobs start; the rest on one rail while the other is whole, under an all-reduce
    whose longest gap counts. Another seed draws other faults: a large number of them can be played in batches."""
    starts = max(1, faults // STARTS_SHARE)
    anywhere = faults // 2
    chaos_anywhere(anywhere, seed)
    chaos_starts(starts, seed)
    chaos_beside_a_whole_rail(faults - anywhere - starts, seed)


def chaos_anywhere(faults: int, seed: int) -> None:
    """Errors, damage and hangs under faults of all kinds."""
    with Lab(hosts=3, rails=2, nic_mbit=300) as lab:
        ring = Ring(lab, 3, ["--stream", "0-262144"])
        ring.wait_running()
        story = play(ring.ranks, lab, seed, faults, (0.02, 0.2), LONGEST_FAULT_S)
        healed = time.time()
        hangs = 0
        try:
            ring.until(lambda: ring.slowest(healed, time.time()) > 0, 30)
        except AssertionError:
            hangs = 1
        for rank in ring.ranks:
            rank.process.terminate()
        for rank in ring.ranks:
            try:
                rank.process.wait(30)
            except subprocess.TimeoutExpired:
                rank.process.kill()
                hangs += 1
        summaries = [summary for rank in ring.ranks for summary in rank.lines("summary")]
        hangs += len(ring.ranks) - len(summaries)  # ended without a word
        messages = sum(s["rounds"] for s in summaries)
        for metric, value in (
            ("chaos_errors", sum(s["errors"] for s in summaries)),
            ("chaos_corrupt_bytes", sum(s["corrupt_bytes"] for s in summaries)),
            ("chaos_double_or_lost", sum(s["double_or_lost"] for s in summaries)),
            ("chaos_hangs", hangs),
        ):
            report(
                f"{faults}_faults",
                metric,
                value,
                "count",
                "== 0",
                messages=messages,
                kinds=Counter(each.split()[1] for each in story),
            )


def chaos_starts(starts: int, seed: int) -> None:
    """Jobs that fail because a process was stopped for 0.1 to 4 s while it connected."""
    failed = []
    with Lab(hosts=2, rails=2, nic_mbit=300) as lab:
        for number in range(starts):
            try:
                connect_beside_a_stopped_peer(lab, seed + number, RENDEZVOUS_PORT + number)
            except AssertionError as error:
                failed.append(str(error)[-500:])
    report(f"{starts}_starts", "chaos_start_errors", len(failed), "count", "== 0", said=failed[:3])


def chaos_beside_a_whole_rail(faults: int, seed: int) -> None:
    """Gaps of the job while one rail is whole; what the machine itself was late is printed beside them."""
    gaps: list[float] = []
    late: list[float] = []
    lateness = Lateness()
    with (
        Lab(hosts=3, rails=2, nic_mbit=300) as lab,
        running(lab, ["--bytes", "1M", "--slice", "128K"]) as ring,
    ):
        for number in range(0, faults, PHASE):
            for rank in ring.ranks:
                for nic in lab.host(rank.host).nics:
                    ring.until(partial(back, ring, rank.host, nic.device), 60)
            time.sleep(1)  # what the return of the lanes costs is not of the next phase
            since = time.time()
            play(
                ring.ranks,
                lab,
                seed + number,
                min(PHASE, faults - number),
                (0.05, 0.4),
                LONGEST_FAULT_S,
                number // PHASE % 2,
            )
            until = time.time()
            ring.wait_printed(until)
            for rank in ring.ranks:
                for entry in rank.lines("interval"):
                    at = entry["real_ns"] / 1e9
                    if since <= at <= until:
                        gaps.append(float(entry["stall_ms"]))
                        late.append(lateness.most_ms(at - entry["stall_ms"] / 1e3, at))
    lateness.stop()
    long = [(round(gap), round(waited)) for gap, waited in zip(gaps, late, strict=True) if gap > MAX_GAP_MS]
    report(
        f"{faults}_faults_beside_a_whole_rail", "chaos_long_gaps", len(long), "count", "== 0",
        longest_ms=max(gaps), host_late_ms=round(max(late), 1), gaps_and_host_late_ms=long[:10],
    )  # fmt: skip
