"""What `make bench NAME=rdma` measures under faults: stalls, the way back, and random faults on a checked stream."""

import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.bench.plugin.stalls import Lateness
from tests.bench.rows import Rows, quantile
from tests.rdma.ring_pair import RingPair

from fabricpulse.lab.rdma.fleet import RdmaFleet
from fabricpulse.plugin_ipc.control import ControlError

PATIENCE_S = 240.0
# Fixed, so that a fault starts where the last one has been forgotten: damping halves in 4 s.
SETTLE_S = 4.0
MIB = 1 << 20
# Of a run of NCCL's own transport: how long it runs before the fault, amid it and after it.
PEER_BEFORE_S, PEER_FAULT_S, PEER_AFTER_S = 0.3, 3.0, 2.0

# By so much a thread of the guest that comes before all others is late only if the machine below it is.
HOST_LATE_MS, MOST_SET_APART = 10.0, 0.1

# What ends a part early; its rows are printed all the same.
FAILURES = (AssertionError, ControlError, OSError, subprocess.SubprocessError)

Fault = Callable[[], AbstractContextManager[None]]


def one_rail_faults(fleet: RdmaFleet) -> dict[str, Fault]:
    """Of rail 0, while rail 1 is whole."""
    return {
        "admin down": lambda: fleet.admin_down("h0", 0),
        "cable pull here": lambda: fleet.cable_pulled("h0", 0),
        "cable pull at the peer": lambda: fleet.cable_pulled("h1", 0),
        "dead path": lambda: fleet.path_dead(0),
        "one direction dead": lambda: fleet.netem("h0", 0, "loss", "100%"),
    }


def failover(fleet: RdmaFleet, rows: Rows, count: int) -> None:
    """The longest time without a byte around each fault of rail 0 while rail 1 is whole, and the way back to rail 0.

    Faults during which the machine below the guest was late are set apart; more than a tenth of them and the run says
    nothing."""
    kinds = one_rail_faults(fleet)
    stalls: dict[str, list[float]] = {kind: [] for kind in kinds}
    late: dict[str, list[float]] = {kind: [] for kind in kinds}
    quiet: list[float] = []
    back: list[float] = []
    options = ["--bytes", "1M", "--slice", "256K", "--channels", "1"]
    under_way = "the start"
    lateness = Lateness(realtime=True)
    with tempfile.TemporaryDirectory() as folder, RingPair(Path(folder), options) as ring:
        # What was measured until a failure is printed all the same: an hour of faults is not lost with the last one.
        try:
            ring.until_moved(1, PATIENCE_S)
            ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
            for number in range(count):
                for kind, fault in kinds.items():
                    under_way = f"{kind}, {number + 1} of {count}"
                    time.sleep(SETTLE_S)  # so that no fault begins in the recovery of the one before
                    # What the guest's own slowness makes of it: gaps without any fault.
                    began = time.time_ns()
                    ring.until_moved(MIB, PATIENCE_S)
                    time.sleep(1.0)  # the span that is judged
                    quiet.append(ring.stall_ms(began))
                    began = time.time_ns()
                    with fault():
                        ring.until(lambda: not ring.up(0), PATIENCE_S)
                        ring.until_moved(MIB, PATIENCE_S)
                        ended = time.time_ns()
                    stalls[kind].append(ring.stall_ms(began))
                    late[kind].append(lateness.most_ms(began / 1e9, ended / 1e9))
                    repaired_at = time.monotonic()
                    ring.until(lambda: ring.up(0), PATIENCE_S)
                    back.append(time.monotonic() - repaired_at)
                    print(
                        f"failover: {under_way}: {stalls[kind][-1]:.0f} ms, host late by {late[kind][-1]:.0f}",
                        file=sys.stderr,
                    )
            under_way = "the end"
            ring.finish(PATIENCE_S)
        except FAILURES as failure:
            rows.report(under_way, "failover_failure", 1, "failures", "== 0", said=_said(failure))
        finally:
            lateness.stop()
    without = {
        "without_fault_median": median(quiet),
        "without_fault_p95": quantile(quiet, 0.95) if quiet else None,
    }
    set_apart = 0
    for kind, every in stalls.items():
        found = [stall for stall, ms in zip(every, late[kind], strict=False) if ms <= HOST_LATE_MS]
        set_apart += len(every) - len(found)
        rows.report(
            kind, "failover_stall_ms_p95", quantile(found or [math.nan], 0.95), "ms", "<= 300", faults=len(found),
            median=median(found), set_apart=len(every) - len(found),
            p95_of_all=quantile(every, 0.95) if every else None,
            each=[round(stall) for stall in every], host_late_ms=[round(ms) for ms in late[kind]],
            **without,
        )  # fmt: skip
    measured = sum(map(len, stalls.values()))
    rows.report(
        "all of these", "failover_set_apart", set_apart / measured if measured else math.nan, "ratio",
        f"<= {MOST_SET_APART}", faults=measured, host_late_ms=HOST_LATE_MS,
    )  # fmt: skip
    rows.report(
        "all of these", "failback_s", quantile(back or [math.nan], 0.95), "s", "<= 2", faults=len(back),
        median=median(back), most=max(back, default=None),
    )  # fmt: skip


def peer_failover(
    fleet: RdmaFleet, rows: Rows, count: int, run: Callable[[float], dict[str, dict[str, Any]]]
) -> None:
    """The same faults under one connection of NCCL's own transport with its failover on, over both NICs of each host as
    one: the longest gap between two messages. Printed beside the plugin's; a run that ends with an error is counted.

    run : what the ends of a run of so many seconds have measured."""
    for kind, fault in one_rail_faults(fleet).items():
        gaps: list[float] = []
        errors: list[str] = []
        for number in range(count):
            with ThreadPoolExecutor(1) as pool:
                ends = pool.submit(run, PEER_BEFORE_S + PEER_FAULT_S + PEER_AFTER_S)
                try:
                    started = fleet.sent_bytes("h1", 0) + MIB
                    deadline = time.monotonic() + PATIENCE_S
                    while fleet.sent_bytes("h1", 0) < started and not ends.done():
                        assert time.monotonic() < deadline, "NCCL has sent nothing"
                        time.sleep(0.05)  # a counter of the kernel's
                    time.sleep(PEER_BEFORE_S)  # the fault meets a run that is under way
                    with fault():
                        time.sleep(PEER_FAULT_S)  # the fault lasts so long
                    gaps.append(ends.result()["receive"]["longest_gap_ms"])
                except FAILURES as failure:
                    errors.append(_said(failure))
            time.sleep(SETTLE_S)  # so that no fault begins in the recovery of the one before
            said = f"{gaps[-1]:.0f} ms" if len(gaps) > number - len(errors) else errors[-1]
            print(f"peer_failover: {kind}, {number + 1} of {count}: {said}", file=sys.stderr)
        rows.report(
            kind, "failover_stall_ms_nccl_ib", statistics.median(gaps or [math.nan]), "ms", None,
            each=[round(gap) for gap in gaps], errors=len(errors), said=errors[-1:], faults=count,
        )  # fmt: skip


def median(found: list[float]) -> float | None:
    """None, which JSON has a word for, of none."""
    return statistics.median(found) if found else None


def last_resort(fleet: RdmaFleet, rows: Rows, count: int) -> None:
    """All rails dead, the control network left for TCP: whether the job goes on, how soon, how fast, and back again."""
    options = ["--bytes", "256K", "--slice", "256K", "--channels", "1"]
    errors = 0
    stalls: list[float] = []
    speeds: list[float] = []
    back: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        RingPair(Path(folder), options, {"FABRICPULSE_LAST_RESORT": "ctl"}) as ring,
    ):
        try:
            ring.until_moved(1, PATIENCE_S)
            for _ in range(count):
                ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
                time.sleep(SETTLE_S)  # so that no fault begins in the recovery of the one before
                began = time.time_ns()
                with _outage(fleet, 0.0):
                    ring.until(ring.on_last_resort, PATIENCE_S)
                    ring.until_moved(MIB, PATIENCE_S)
                    stalls.append(ring.stall_ms(began))
                    moved, since = sum(ring.moved()), time.monotonic()
                    ring.until_moved(4 * MIB, PATIENCE_S)
                    speeds.append((sum(ring.moved()) - moved) / 1e6 / (time.monotonic() - since))
                repaired_at = time.monotonic()
                ring.until(lambda: not ring.on_last_resort(), PATIENCE_S)
                back.append(time.monotonic() - repaired_at)
            ring.finish(PATIENCE_S)
        except FAILURES as failure:
            errors += 1
            rows.report("at its end", "last_resort_failure", 1, "failures", said=_said(failure))
        errors += sum(summary["errors"] for rank in range(2) for summary in ring.lines(rank, "summary"))
    rows.report("all queue pairs dead, TCP left", "last_resort", errors, "errors", "== 0", faults=len(back))
    for metric, found, unit in (
        ("last_resort_stall_ms", stalls, "ms"),
        ("last_resort_speed", speeds, "MB/s"),
        ("last_resort_failback_s", back, "s"),
    ):
        if found:
            rows.report(
                "all queue pairs dead, TCP left",
                metric,
                statistics.median(found),
                unit,
                faults=len(found),
                most=max(found),
            )


def chaos(fleet: RdmaFleet, rows: Rows, count: int, seed: int) -> None:
    """Random faults, one after the other, on a stream whose every message, byte and resting buffer is checked."""
    dice = random.Random(seed)
    options = ["--stream", "0-256K", "--channels", "2", "--seed", str(seed)]
    errors = hangs = corrupt = double_or_lost = late = 0
    done: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, RingPair(Path(folder), options) as ring:
        try:
            ring.until_moved(1, PATIENCE_S)
            ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
            for _ in range(count):
                name, fault = _any_fault(fleet, ring, dice)
                with fault:
                    time.sleep(dice.uniform(0.05, 2.0))
                done[name] = done.get(name, 0) + 1
                ring.until_moved(64 << 10, PATIENCE_S)
            ring.finish(PATIENCE_S)
        except FAILURES as failure:
            alive = all(Path(f"/proc/{pid}").exists() for pid in ring.pids)
            errors, hangs = (0, 1) if alive else (1, 0)
            rows.report("at its end", "chaos_failure", 1, "failures", said=_said(failure))
        for rank in range(2):
            for summary in ring.lines(rank, "summary"):
                errors += summary["errors"]
                corrupt += summary["corrupt_bytes"]
                double_or_lost += summary["double_or_lost"]
                late += summary["late_writes"]
    faults = sum(done.values())
    for metric, value, unit in (
        ("chaos_errors", errors, "errors"),
        ("chaos_corrupt_bytes", corrupt, "bytes"),
        ("chaos_double_or_lost", double_or_lost, "messages"),
        ("chaos_hangs", hangs, "hangs"),
        ("chaos_late_writes", late, "writes"),
    ):
        rows.report("random faults", metric, value, unit, "== 0", faults=faults, seed=seed, kinds=done)


def _said(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {failure}"[-1500:]


def _any_fault(
    fleet: RdmaFleet, ring: RingPair, dice: random.Random
) -> tuple[str, AbstractContextManager[None]]:
    host, rail = dice.choice(("h0", "h1")), dice.randrange(fleet.rails)
    single: dict[str, Fault] = {
        "admin down": lambda: fleet.admin_down(host, rail),
        "cable pull": lambda: fleet.cable_pulled(host, rail),
        "dead path": lambda: fleet.path_dead(rail),
        "one direction dead": lambda: fleet.netem(host, rail, "loss", "100%"),
        "loss": lambda: fleet.netem(host, rail, "loss", f"{dice.uniform(1, 5):.1f}%"),
        "duplicates": lambda: fleet.netem(host, rail, "duplicate", f"{dice.uniform(1, 5):.1f}%"),
        "corruption": lambda: fleet.netem(host, rail, "corrupt", f"{dice.uniform(1, 3):.1f}%"),
        "address gone": lambda: fleet.without_address(host, rail),
    }
    kinds: dict[str, Fault] = {
        **single,
        "second fault during failover": lambda: _second(fleet, rail, dice),
        "both rails dead": lambda: _outage(fleet, dice.uniform(0.0, 5.0)),
        "peer stopped": lambda: _stopped(dice.choice(ring.pids)),
    }
    name = dice.choice(list(kinds))
    return name, kinds[name]()


@contextmanager
def _second(fleet: RdmaFleet, rail: int, dice: random.Random) -> Iterator[None]:
    """A rail dies, and the other loses its cable while what was under way is moved there."""
    with fleet.path_dead(rail):
        time.sleep(dice.uniform(0.0, 0.3))
        with fleet.cable_pulled(dice.choice(("h0", "h1")), 1 - rail):
            time.sleep(dice.uniform(0.0, 0.5))
        yield


@contextmanager
def _outage(fleet: RdmaFleet, seconds: float) -> Iterator[None]:
    with ExitStack() as stack:
        for rail in range(fleet.rails):
            stack.enter_context(fleet.path_dead(rail))
        time.sleep(seconds)
        yield


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """The processor stands still for one of the ranks."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
