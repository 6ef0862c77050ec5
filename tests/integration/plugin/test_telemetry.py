"""What the lanes of a real job say of their paths: delays on fleet time or marked as halved round trips, and marks."""

import time
from collections.abc import Iterator

import pytest
from tests.integration.plugin.ring import Ring

from fabricpulse.core.shm.clock_page import ClockLine, ClockPage, ClockPageWriter, ClockStatus, raw_now_ns
from fabricpulse.lab import Lab
from fabricpulse.plugin_ipc.telemetry import DelaySource, PluginTelemetryReader, Records, Table, text

pytestmark = pytest.mark.root

SEND, RECEIVE = 1, 2
FLEET_OFFSET_NS = 7_000_000_000  # fleet time is no host's own
ARGUMENTS = ("--bytes", "256K", "--channels", "1")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(hosts=2, rails=1) as started:
        yield started


def lanes(ring: Ring, host: str, direction: int) -> Records:
    """The lanes of a host's job in one direction that have carried chunks."""
    (path,) = (ring.lab.host(host).run_dir / "plugin").glob("*.telemetry")
    reader = PluginTelemetryReader(path)
    found = reader.read().tables[Table.LANES]
    reader.close()
    carried: Records = found[
        (found["direction"] == direction) & (found["sent_chunks"] + found["received_chunks"] > 0)
    ]
    return carried


def give_fleet_time(lab: Lab, offsets_ns: dict[str, int]) -> list[ClockPageWriter]:
    """A clock page for a minute on each host; fleet time is that far ahead of the host's own."""
    now, raw = time.time_ns(), raw_now_ns()
    pages = []
    for host, offset in offsets_ns.items():
        line, stamps = ClockLine(raw, now + offset, 0), ClockLine(now, raw, 0)
        pages.append(ClockPageWriter(lab.host(host).run_dir / "clock"))
        pages[-1].write(
            ClockPage(
                *(ClockStatus.SYNCHRONIZED, line, line, raw, 1_000, 0, raw + 60_000_000_000),
                *(stamps, stamps, now, 0, 0),
            )
        )
    return pages


def rounds_profiled(ring: Ring, host: str) -> int:
    """The all-reduces that the profiler was called for."""
    (path,) = (ring.lab.host(host).run_dir / "plugin").glob("*.telemetry")
    reader = PluginTelemetryReader(path)
    found = reader.read().tables[Table.COLLECTIVES]
    reader.close()
    return sum(int(r["operations"]) for r in found if text(r["function"]) == "AllReduce")


def test_without_fleet_time_delays_are_marked_as_halved_round_trips(lab: Lab) -> None:
    ring = Ring(lab, 2, (*ARGUMENTS, "--profile"))
    ring.wait_running()
    ring.until(lambda: min(rounds_profiled(ring, host) for host in ("h0", "h1")) > 3)
    for host in ("h0", "h1"):
        sending, receiving = lanes(ring, host, SEND), lanes(ring, host, RECEIVE)
        assert set(sending["delay_source"]) == {DelaySource.HALF_RTT}
        assert (sending["delay"]["count"] > 0).all()
        assert set(receiving["delay_source"]) == {DelaySource.NONE}
        assert set(receiving["delay"]["count"]) == {0}
    ring.stop()


def test_with_fleet_time_the_receiver_counts_one_way_delays(lab: Lab) -> None:
    """h1's page runs a second ahead: that is added to what comes there and taken from what comes back, as only a
    difference of two stamps on fleet time shows it. No round trip would."""
    pages = give_fleet_time(lab, {"h0": FLEET_OFFSET_NS, "h1": FLEET_OFFSET_NS + 1_000_000_000})
    ring = Ring(lab, 2, ARGUMENTS)
    ring.wait_running()
    totals = {}
    for host in ("h0", "h1"):
        sending, receiving = lanes(ring, host, SEND), lanes(ring, host, RECEIVE)
        assert set(receiving["delay_source"]) == {DelaySource.FLEET}
        assert set(sending["delay"]["count"]) == {0}
        delay = receiving["delay"]
        assert (delay["count"] == receiving["received_chunks"]).all()
        assert (delay["count"] == delay["buckets"].sum(axis=1)).all()
        totals[host] = int(delay["count"].sum()), int(delay["sum_ns"].sum())
    count, sum_ns = totals["h1"]
    assert 1.0 <= sum_ns / count / 1e9 < 2.0
    assert totals["h0"][1] == 0  # less than nothing counts as nothing
    ring.stop()
    assert pages


def test_congestion_marks_are_counted(lab: Lab) -> None:
    """Segments that a switch has marked CE on their way to h1, as the sender's kernel counts them."""
    for host in lab.hosts:
        host.run(["sysctl", "-qw", "net.ipv4.tcp_ecn=1"])
    lab.host(1).nic("rail0").ecn_mark(100, "rx")
    ring = Ring(lab, 2, ARGUMENTS)
    ring.wait_running()
    ring.until(lambda: bool(lanes(ring, "h0", SEND)["ecn_marked"].sum() > 0))
    assert lanes(ring, "h1", SEND)["ecn_marked"].sum() == 0
    ring.stop()
