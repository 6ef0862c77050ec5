"""The Python mirrors of the shared-memory headers agree with what the C++ compiler makes of them."""

import random
import struct
from pathlib import Path

import pytest

from fabricpulse.core._layouts import clock_at, clock_convert, layouts, virtual_clock_apply
from fabricpulse.core.shm import clock_page, probe_ring, virtual_clock
from fabricpulse.core.shm.clock_page import (
    ClockLine,
    ClockPage,
    ClockPageReader,
    ClockPageWriter,
    ClockStatus,
)
from fabricpulse.core.shm.virtual_clock import VirtualClock, VirtualClockWriter

NOW = 1_790_000_000_000_000_000
RAW = 123_456_789_000_000


def prefix(layout: struct.Struct, fields: int) -> int:
    """Byte offset of the field after the first `fields` format items of `layout`."""
    items = layout.format.replace(" ", "")[1:]
    out, count = "<", 0
    i = 0
    while count < fields:
        j = i
        while items[j].isdigit():
            j += 1
        out += items[i : j + 1]
        i = j + 1
        count += 1
    return struct.calcsize(out)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("virtual_clock", virtual_clock.HEADER.size),
        ("virtual_clock_segment", virtual_clock.SEGMENT.size),
        ("clock_page", clock_page.PAGE.size),
        ("clock_file", clock_page.FILE_SIZE),
        ("probe_ring_header", probe_ring.HEADER.size),
        ("probe_edge", probe_ring.EDGE.size),
        ("probe_sample", probe_ring.SAMPLE.size),
    ],
)
def test_sizes(name: str, size: int) -> None:
    """Each struct is as long in Python as in C++."""
    assert layouts()[name]["sizeof"] == size


@pytest.mark.parametrize(
    ("name", "field", "offset"),
    [
        ("virtual_clock", "count", virtual_clock.COUNT_OFFSET),
        ("virtual_clock", "segments", virtual_clock.HEADER.size),
        ("clock_file", "sequence", clock_page.SEQUENCE_OFFSET),
        ("clock_file", "watched_until_raw_ns", clock_page.WATCHED_OFFSET),
        ("clock_file", "pages", clock_page.PAGES_OFFSET),
        ("clock_page", "status", 0),
        ("clock_page", "current", prefix(clock_page.PAGE, 2)),
        ("clock_page", "previous", prefix(clock_page.PAGE, 5)),
        ("clock_page", "bound_ref_raw_ns", prefix(clock_page.PAGE, 8)),
        ("clock_page", "host", prefix(clock_page.PAGE, 12)),
        ("clock_page", "host_previous", prefix(clock_page.PAGE, 15)),
        ("clock_page", "host_since_ns", prefix(clock_page.PAGE, 18)),
        ("clock_page", "disruptions", prefix(clock_page.PAGE, 20)),
        ("clock_page", "time_namespace", prefix(clock_page.PAGE, 21)),
        ("clock_page", "vmclock_marker", prefix(clock_page.PAGE, 24)),
        ("probe_ring_header", "host", prefix(probe_ring.HEADER, 9)),
        ("probe_ring_header", "edges_sequence", prefix(probe_ring.HEADER, 12)),
        ("probe_ring_header", "next", prefix(probe_ring.HEADER, 13)),
        ("probe_ring_header", "contradictions", prefix(probe_ring.HEADER, 14)),
        ("probe_ring_header", "hidden_jump_ns", prefix(probe_ring.HEADER, 16)),
        ("probe_ring_header", "doubts", prefix(probe_ring.HEADER, 17)),
        ("probe_edge", "device", prefix(probe_ring.EDGE, 2)),
        ("probe_edge", "peer", prefix(probe_ring.EDGE, 4)),
        ("probe_edge", "peer_network", prefix(probe_ring.EDGE, 6)),
        ("probe_sample", "tx_valid", prefix(probe_ring.SAMPLE, 7)),
        ("probe_sample", "tx_ns", prefix(probe_ring.SAMPLE, 12)),
        ("probe_sample", "rx_ns", prefix(probe_ring.SAMPLE, 13)),
        ("probe_sample", "owd_ns", prefix(probe_ring.SAMPLE, 14)),
    ],
)
def test_offsets(name: str, field: str, offset: int) -> None:
    """Each field that a mirror names lies where C++ puts it."""
    assert layouts()[name][field] == offset


def test_virtual_clock_agrees_with_cpp(tmp_path: Path) -> None:
    """For random segments (steps and rates of both signs) Python and C++ give one host time, to the nanosecond."""
    rng = random.Random(1)
    for _ in range(20):
        path = tmp_path / "vclock"
        writer = VirtualClockWriter(path, capacity=8)
        start = NOW
        for _ in range(rng.randint(0, 8)):
            writer.append(start, rng.randint(-(10**12), 10**12), rng.randint(-(10**9), 10**9))
            start += rng.randint(0, 10**10)
        page, clock = path.read_bytes(), VirtualClock(path)
        for _ in range(50):
            kernel = NOW + rng.randint(-(10**11), 10**12)
            assert virtual_clock_apply(page, kernel) == clock.from_kernel(kernel)


def test_virtual_clock_law(tmp_path: Path) -> None:
    """host = kernel + offset + elapsed * rate / 10^12 by the segment of the stamp's own time; past stamps keep it."""
    path = tmp_path / "vclock"
    writer, clock = VirtualClockWriter(path, capacity=2), VirtualClock(path)

    assert clock.from_kernel(NOW) == NOW

    writer.append(NOW, 5_000, 2_000_000)  # 5 us ahead, +2 ppm
    assert clock.from_kernel(NOW + 10**9) == NOW + 10**9 + 5_000 + 2_000
    writer.append(NOW + 2 * 10**9, -700, 0)  # a step back
    assert clock.from_kernel(NOW + 3 * 10**9) == NOW + 3 * 10**9 - 700
    assert clock.from_kernel(NOW + 10**9) == NOW + 10**9 + 5_000 + 2_000
    with pytest.raises(ValueError, match="full"):
        writer.append(NOW + 4 * 10**9, 0, 0)


def test_virtual_clock_refuses_disorder(tmp_path: Path) -> None:
    """A segment older than the last is a fault of the lab, not something to search for later."""
    writer = VirtualClockWriter(tmp_path / "vclock")
    writer.append(NOW, 0, 0)

    with pytest.raises(ValueError, match="order of time"):
        writer.append(NOW - 1, 0, 0)


def test_clock_page_agrees_with_cpp(tmp_path: Path) -> None:
    """For random pages and stamps Python and C++ give one fleet time, bound, status and estimate."""
    rng = random.Random(2)
    path = tmp_path / "clock"
    writer = ClockPageWriter(path)
    reader = ClockPageReader(path)

    def line(of: int, to: int) -> ClockLine:
        return ClockLine(
            of + rng.randint(-(10**10), 10**10),
            to + rng.randint(-(10**12), 10**12),
            rng.randint(-(10**9), 10**9),
        )

    for _ in range(200):
        page = ClockPage(
            status=rng.choice(list(ClockStatus)),
            current=line(RAW, NOW),
            previous=line(RAW, NOW),
            bound_ref_raw_ns=RAW,
            bound_ns=rng.randint(0, 10**6),
            drift_ppb=rng.randint(0, 10**6),
            valid_until_raw_ns=RAW + rng.randint(0, 10**11),
            host=line(NOW, RAW),
            host_previous=line(NOW, RAW),
            host_since_ns=NOW + rng.randint(-(10**10), 10**10),
            host_bound_ns=rng.randint(0, 10**6),
            disruptions=rng.randint(0, 10),
            time_namespace=clock_page.time_namespace(),
            estimated_error_ns=rng.randint(0, 2**32 - 1),
            synchronized_until_raw_ns=RAW + rng.randint(0, 10**11),
        )
        writer.write(page)

        assert reader.read() == page
        apart = rng.randint(-(10**11), 10**11)
        for expected, got in (
            (page.convert(NOW + apart), clock_convert(path.read_bytes(), NOW + apart)),
            (page.at(RAW + apart), clock_at(path.read_bytes(), RAW + apart)),
        ):
            assert got == tuple(expected)
