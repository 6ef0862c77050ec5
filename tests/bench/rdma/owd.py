"""What `make bench NAME=rdma` measures of one-way delays: netem's delay on one queue pair's path, as reported."""

import statistics
import tempfile
import time
from pathlib import Path

from tests.bench.rows import Rows
from tests.rdma.ring_pair import RingPair

from fabricpulse.core.shm.clock_page import ClockLine, ClockPage, ClockPageWriter, ClockStatus
from fabricpulse.lab.rdma.fleet import RdmaFleet
from fabricpulse.plugin_ipc.telemetry import DelaySource, PluginTelemetryReader, Table

PATIENCE_S = 240.0
DELAYS_MS = (1, 5)
DELAYED_RAIL = 1

# Of each rail: chunks whose delay was counted, and their sum in ns.
Delays = dict[str, tuple[int, int]]


def owd(fleet: RdmaFleet, rows: Rows, rounds: int, seconds: float) -> None:
    """Mean delay that rank 1 has counted per rail with netem's delay on one of them, less that without.

    Both hosts are one kernel: fleet time is its raw clock, and what is missed is the measurement's own.
    """
    differences: dict[int, list[float]] = {ms: [] for ms in DELAYS_MS}
    named: dict[int, list[bool]] = {ms: [] for ms in DELAYS_MS}
    options = ["--stream", "8K-8K", "--channels", "2", "--depth", "1"]
    with tempfile.TemporaryDirectory() as folder, RingPair(Path(folder), options) as ring:
        for rank in range(2):
            ClockPageWriter(ring.run_dir(rank) / "clock").write(_page())
        ring.until_moved(1, PATIENCE_S)
        ring.until(lambda: ring.up(0) and ring.up(1), PATIENCE_S)
        ring.until(lambda: len(_counted(ring)) == fleet.rails, PATIENCE_S)
        for _ in range(rounds):
            for ms in DELAYS_MS:
                usual = _means_ms(ring, seconds)
                with fleet.netem("h0", DELAYED_RAIL, "delay", f"{ms}ms"):
                    time.sleep(0.5)
                    slow = _means_ms(ring, seconds)
                found = {rail: slow[rail] - usual[rail] for rail in slow.keys() & usual.keys()}
                rail = f"rail{DELAYED_RAIL}"
                if rail not in found:
                    continue
                differences[ms].append(found[rail])
                named[ms].append(max(found, key=lambda name: found[name]) == rail)
        ring.finish(PATIENCE_S)
    for ms, reported in differences.items():
        median = statistics.median(reported) if reported else float("nan")
        rows.report(
            f"delay of {ms} ms", "owd_error_percent", abs(median - ms) / ms * 100, "%", "<= 20",
            reported_ms=median, rounds=len(reported), named_percent=100 * statistics.mean(named[ms] or [False]),
        )  # fmt: skip


def _page() -> ClockPage:
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    same = ClockLine(now, now, 0)
    return ClockPage(
        status=ClockStatus.SYNCHRONIZED,
        current=same,
        previous=same,
        bound_ref_raw_ns=now,
        bound_ns=0,
        drift_ppb=0,
        valid_until_raw_ns=now + 24 * 3600 * 10**9,
        host=ClockLine(time.time_ns(), now, 0),
        host_previous=ClockLine(time.time_ns(), now, 0),
        host_since_ns=0,
        host_bound_ns=0,
        disruptions=0,
    )


def _counted(ring: RingPair) -> Delays:
    (path,) = (ring.run_dir(1) / "plugin").glob("*.telemetry")
    reader = PluginTelemetryReader(path)
    try:
        snapshot = reader.read(30.0)
    finally:
        reader.close()
    names = snapshot.device_names()
    found: Delays = {}
    for record in snapshot.tables[Table.LANES]:
        if int(record["delay_source"]) != DelaySource.FLEET:
            continue
        rail = names[int(record["device"])]
        count, total = found.get(rail, (0, 0))
        found[rail] = (count + int(record["delay"]["count"]), total + int(record["delay"]["sum_ns"]))
    return found


def _means_ms(ring: RingPair, seconds: float) -> dict[str, float]:
    """Of the chunks of a while, by rail; rails that carried none are missing."""
    before = _counted(ring)
    time.sleep(seconds)
    after = _counted(ring)
    counted = {
        rail: (after[rail][0] - before[rail][0], after[rail][1] - before[rail][1])
        for rail in after.keys() & before.keys()
    }
    return {rail: total / count / 1e6 for rail, (count, total) in counted.items() if count > 0}
