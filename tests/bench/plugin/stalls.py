"""How long a job stands still when a path dies, lanes that are given up without a cause, damage that arrives."""

import itertools
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.plugin.rows import report
from tests.bench.rows import quantile
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab
from fabricpulse.lab.faults import Fault
from fabricpulse.lab.node import Nic

# Mbit/s of a NIC (None: as fast as the machine) and the size of a message: one that takes 3 ms on a NIC, so that a gap
# is a stall and not a message that waits for its turn.
SPEEDS: dict[int | None, str] = {50: "16K", 200: "64K", 500: "128K", None: "512K"}
KINDS: dict[str, Callable[[Nic], Fault]] = {
    "carrier": lambda nic: nic.down(),
    "silent": lambda nic: nic.black_hole(),
    "one_way_rx": lambda nic: nic.black_hole("rx"),
    "one_way_tx": lambda nic: nic.black_hole("tx"),
}
FAULT_LASTS_S, FAULT_EVERY_S = 0.4, 1.5


class Lateness:
    """How late a thread of ours is that sleeps 5 ms at a time: what a number of milliseconds is worth here.

    realtime : it comes before all other threads: in a guest, what the machine below is late."""

    def __init__(self, realtime: bool = False) -> None:
        self._realtime = realtime
        self._stop = threading.Event()
        self._late: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        while not self._stop.is_set():
            before = time.time()
            time.sleep(0.005)
            self._late.append((before, (time.time() - before - 0.005) * 1e3))

    def most_ms(self, since_s: float, until_s: float) -> float:
        """The longest in a span of CLOCK_REALTIME."""
        return max((late for at, late in list(self._late) if since_s <= at <= until_s), default=0.0)

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()


class Waiting:
    """How long the job's own threads wait for a processor: the kernel's count of each.

    `Lateness` is a thread that sleeps, and such a one gets a processor at once where one that works waits: beside other
    work it was 2 ms late while the threads that carry the job waited for 190 ms of 400.
    """

    def __init__(self, ring: Ring) -> None:
        self._tasks = [Path(f"/proc/{rank.process.outer_pid}/task") for rank in ring.ranks]
        self._before = self._read()

    def ms(self) -> float:
        """Of the thread that has waited longest since this was made."""
        now = self._read()
        return max(now[task] - self._before[task] for task in now.keys() & self._before.keys()) * 1e-6

    def _read(self) -> dict[str, int]:
        """Nanoseconds by thread."""
        found = {}
        for tasks in self._tasks:
            for task in tasks.iterdir():
                with suppress(OSError):  # it has just ended
                    found[task.name] = int((task / "schedstat").read_text().split()[1])
        return found


@contextmanager
def running(lab: Lab, arguments: list[str], env: dict[str, str] | None = None) -> Iterator[Ring]:
    """A ring on all hosts that is under way; at the end it must stop without an error."""
    ring = Ring(lab, len(lab.hosts), arguments, env=env)
    ring.wait_running()
    yield ring
    ring.stop()


def back(ring: Ring, host: str, device: str) -> bool:
    """Whether all lanes over a host's NIC are in service."""
    return ring.states(host, device) <= {"up", "slow_start"}


def bench_stalls(faults: int) -> None:
    """Each kind of fault on each NIC of both hosts in turn, on slow and fast links: the longest gap that the job sees.

    What the machine itself was late is printed beside it: on a busy one a number of milliseconds says little. Faults
    count as on time where no thread of the job waited for a processor for more than 10 ms meanwhile.
    """
    each = max(1, faults // len(SPEEDS))
    for kind, break_nic in KINDS.items():
        gaps: dict[int | None, list[float]] = {}
        late: list[float] = []
        waits: list[float] = []
        for mbit, size in SPEEDS.items():
            lateness = Lateness()
            with (
                Lab(hosts=2, rails=2, nic_mbit=mbit) as lab,
                running(lab, ["--bytes", "1M", "--slice", size]) as ring,
            ):
                for number in range(each):
                    next_at = time.monotonic() + FAULT_EVERY_S
                    host = f"h{number // 2 % 2}"
                    nic = lab.host(host).nic(number % 2)
                    waiting = Waiting(ring)
                    since = time.time()
                    fault = break_nic(nic)
                    time.sleep(FAULT_LASTS_S)
                    until = time.time()
                    waited = waiting.ms()
                    fault.undo()
                    ring.until(partial(back, ring, host, nic.device), 30)
                    time.sleep(max(0.0, next_at - time.monotonic()))
                    gap = ring.stall_ms(since, until)
                    gaps.setdefault(mbit, []).append(gap)
                    late.append(lateness.most_ms(since, until))
                    waits.append(waited if gap < FAULT_LASTS_S * 1e3 else waiting.ms())
            lateness.stop()
        flat = list(itertools.chain(*gaps.values()))
        medians = {
            f"{mbit or 'unshaped'}": round(statistics.median(found), 1) for mbit, found in gaps.items()
        }
        shown: dict[str, Any] = {
            "samples": len(flat),
            "host_late_ms_p99": round(quantile(late, 0.99), 1),
            "job_waited_ms_p50": round(statistics.median(waits), 1),
            "job_waited_ms_p99": round(quantile(waits, 0.99), 1),
        }
        report(kind, "failover_stall_ms_p99", quantile(flat, 0.99), "ms", "<= 60", **shown)
        report(
            kind, "failover_stall_ms_p50", statistics.median(flat), "ms", "<= 50", by_mbit=medians, **shown
        )
        on_time = [gap for gap, waited in zip(flat, waits, strict=True) if waited <= 10]
        if on_time:
            report(
                kind,
                "failover_stall_ms_p99_host_on_time",
                quantile(on_time, 0.99),
                "ms",
                samples=len(on_time),
            )


def bench_spurious(seconds: float) -> None:
    """Lanes that are given up although nothing is wrong, beside twice as many busy loops as processors."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], stdout=subprocess.DEVNULL)
        for _ in range(4)
    ]
    try:
        with Lab(hosts=2, rails=2) as lab, running(lab, ["--bytes", "4M"]) as ring:
            before = {host: ring.events(host)[1] for host in ("h0", "h1")}
            since = time.time()
            time.sleep(seconds)
            downs = [
                event["reason"]
                for host, index in before.items()
                for event in ring.events(host, index)[0]
                if event["kind"] == "lane_down"
            ]
            gap = ring.stall_ms(since, time.time())
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    report(
        "4_busy_loops", "spurious_lane_failures", len(downs), "count", "== 0",
        seconds=seconds, reasons=sorted(set(downs)), longest_gap_ms=gap,
    )  # fmt: skip


def bench_integrity(flips: int) -> None:
    """Bytes that are damaged past TCP's checksum under numbered messages with a checksum of their own."""
    with Lab(hosts=2, rails=1) as lab:
        ring = Ring(lab, 2, ["--stream", "0-400000"], env={"FABRICPULSE_PAYLOAD_CRC": "1"})
        ring.wait_running()
        with lab.host(1).nic(0).corrupt(2):
            ring.until(
                lambda: sum(lane["corrupt_frames"] for h in ("h0", "h1") for lane in ring.lanes(h)) >= flips,
                600,
            )
        found = sum(lane["corrupt_frames"] for host in ("h0", "h1") for lane in ring.lanes(host))
        for rank in ring.ranks:
            rank.process.terminate()
        for rank in ring.ranks:
            rank.process.wait(60)
        summaries = [summary for rank in ring.ranks for summary in rank.lines("summary")]
    wrong = sum(s["corrupt_bytes"] + s["double_or_lost"] + s["errors"] for s in summaries)
    report(
        f"{flips}_flips", "flips_delivered", wrong, "count", "== 0",
        found=found, messages=sum(s["rounds"] for s in summaries), hangs=len(ring.ranks) - len(summaries),
    )  # fmt: skip
