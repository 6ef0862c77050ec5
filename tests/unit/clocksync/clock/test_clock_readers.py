"""The readers of fleet time in C, and the ClockBound segment read by a program that shares no code with its writer."""

import os
import shutil
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.outputs.clockbound import ClockBoundData, ClockBoundWriter, from_page
from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.core import pauses
from fabricpulse.core.pauses import VmClock, marker_of, suspended_ns
from fabricpulse.core.shm import clock_page
from fabricpulse.core.shm.clock_page import (
    ClockLine,
    ClockPage,
    ClockPageReader,
    ClockPageWriter,
    ClockStatus,
    raw_now_ns,
)
from fabricpulse.core.shm.virtual_clock import VirtualClock, VirtualClockWriter

ROOT = Path(__file__).parents[4]
S = 10**9


def build(source: str, target: Path, *flags: str) -> Path:
    """Compiles tests/native/`source`, with all warnings as errors."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    include = f"-I{ROOT / 'core' / 'include'}"
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", *flags, include]
    subprocess.run(
        [*command, str(ROOT / "tests" / "native" / "clocks" / source), "-o", str(target)], check=True
    )
    return target


def page(now: CrossTimestamp, status: ClockStatus = ClockStatus.SYNCHRONIZED) -> ClockPage:
    """Fleet time 1 ms ahead of the host and 20 ppm faster, within 2 us."""
    line = ClockLine(now.raw_ns, now.host_ns + 1_000_000, 20_000_000)
    host = ClockLine(now.host_ns, now.raw_ns, 0)
    return ClockPage(
        status, line, line, now.raw_ns, 2_000, 250, now.raw_ns + 10 * S, host, host, now.host_ns, 0, 3
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "flags", [("-O2",), ("-O1", "-g", "-fsanitize=address,undefined")], ids=["fast", "sanitized"]
)
def test_c_reader_never_fails_or_runs_backward_beside_a_writer(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """A million reads beside a writer that slews as fast as it can: none is earlier than the last."""
    reader = build("clock_reader.c", tmp_path / "reader", *flags)
    now = raw_now_ns()
    writer = ClockPageWriter(tmp_path / "clock")
    line = ClockLine(now, time.time_ns(), 0)
    first = page(HostClock().cross_timestamp())._replace(
        current=line, previous=line, valid_until_raw_ns=now + 60 * S
    )
    writer.write(first)
    stop = threading.Event()
    late = 0

    def slew() -> None:
        nonlocal late
        current, rate = line, 500_000_000
        while not stop.is_set():
            here = raw_now_ns() + 50_000_000
            rate = -rate
            current, old = ClockLine(here, current.at(here), rate), current
            until = here + 60 * S
            writer.write(first._replace(current=current, previous=old, valid_until_raw_ns=until))
            # It had no core for 50 ms: readers have gone beyond where the new line begins.
            late += raw_now_ns() >= here
            while raw_now_ns() < here and not stop.is_set():  # a page holds no third line
                time.sleep(0.0005)

    thread = threading.Thread(target=slew)
    thread.start()
    try:
        result = subprocess.run(
            [
                str(reader),
                str(tmp_path / "clock"),
                "40000000" if flags == ("-O2",) else "1000000",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        stop.set()
        thread.join()
    _, status, backward, _ = result.stdout.split()
    assert status == "1"
    assert int(backward) <= late


def test_python_reader_follows_a_line_that_came_while_it_had_no_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the copy of the page and the reading of the clock the page is replaced, and the new line begins."""
    now = raw_now_ns()
    writer = ClockPageWriter(tmp_path / "clock")
    line = ClockLine(now, time.time_ns(), 500_000_000)
    first = page(HostClock().cross_timestamp())._replace(
        current=line, previous=line, valid_until_raw_ns=now + 60 * S
    )
    writer.write(first)
    slower = ClockLine(now + S, line.at(now + S), 0)
    second = first._replace(current=slower, previous=line)

    def sleep(*_: object) -> int:
        writer.write(second)
        monkeypatch.setattr(clock_page, "raw_now_ns", lambda *_: now + 3 * S)
        return now + 2 * S

    monkeypatch.setattr(clock_page, "raw_now_ns", sleep)
    reader = ClockPageReader(tmp_path / "clock")
    assert reader.now().fleet_ns == slower.at(now + 3 * S)
    reader.close()


def test_a_line_that_has_begun_is_not_published(tmp_path: Path) -> None:
    """Readers keep the page before, whole; what has not begun they get."""
    now = HostClock().cross_timestamp()
    writer, first = ClockPageWriter(tmp_path / "clock"), page(now)
    writer.write(first)
    reader = ClockPageReader(tmp_path / "clock")
    late = first._replace(current=ClockLine(now.raw_ns + 1, now.host_ns, 0), previous=first.current)
    assert not writer.write(late, begins_ns=late.current.from_ns)
    assert reader.read().current == first.current
    assert reader.now().status == ClockStatus.SYNCHRONIZED
    ahead = late._replace(current=ClockLine(now.raw_ns + 600 * S, now.host_ns, 0))
    assert writer.write(ahead, begins_ns=ahead.current.from_ns)
    assert reader.read().current == ahead.current
    reader.close()


def test_python_reader_says_now_earliest_and_latest(tmp_path: Path) -> None:
    """As the page has it: 1 ms ahead of the host, 20 ppm faster, within 2 us that grow."""
    written = HostClock().cross_timestamp()
    ClockPageWriter(tmp_path / "clock").write(page(written))
    reader = ClockPageReader(tmp_path / "clock")
    before = raw_now_ns() - written.raw_ns
    now = reader.now()
    after = raw_now_ns() - written.raw_ns
    assert now.status == ClockStatus.SYNCHRONIZED
    assert before <= now.fleet_ns - written.host_ns - 1_000_000 <= after + after // 50_000
    assert now.fleet_ns - now.earliest_ns == now.latest_ns - now.fleet_ns == now.bound_ns
    assert 2_000 <= now.bound_ns <= 2_000 + after // 4_000_000 + 1
    reader.close()


def test_clockbound_client_sees_what_the_page_says(tmp_path: Path) -> None:
    """Status, bound and interval of a client are those of the page: offset from fleet time plus its bound."""
    client = build("clockbound_reader.c", tmp_path / "client", "-O2")
    writer = ClockBoundWriter(tmp_path / "shm0")
    now = HostClock().cross_timestamp()
    host = now.host_ns
    writer.publish(page(now), now, 1_000)
    out = subprocess.run(
        [str(client), str(tmp_path / "shm0")], capture_output=True, text=True, check=True
    ).stdout
    status, bound, drift, marker, earliest, latest = (int(word) for word in out.split())
    assert (status, bound, drift, marker) == (1, 1_002_000, 21_251, 0)
    real, half = (earliest + latest) // 2, (latest - earliest) // 2
    assert host <= real <= time.time_ns()
    # The bound grows with the age of the segment, which is at least that of a coarse tick.
    age_s = (time.time_ns() - host) * 1e-9
    assert 1_002_000 <= half <= 1_002_000 + 21_251 * (age_s + 0.02)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (ClockStatus.UNKNOWN, 0),
        (ClockStatus.SYNCHRONIZED, 1),
        (ClockStatus.HOLDOVER, 2),
        (ClockStatus.DISRUPTED, 3),
    ],
)
def test_clockbound_status(status: ClockStatus, expected: int) -> None:
    """Each status has its ClockBound value, and a page whose writer is gone is unknown."""
    now, late = CrossTimestamp(50 * S, 5 * S), CrossTimestamp(61 * S, 16 * S)
    assert from_page(page(now, status), now, 0, 1_000).status == expected
    assert from_page(page(now, status), late, 0, 1_000).status == 0


def test_a_segment_outlives_its_writer_as_in_holdover() -> None:
    """The sidecar is killed while synchronized: clients go on with this segment, and nobody can tell them to be careful
    any more. A crystal that turns by 900 ppb then stays within what they compute for 1,000 s.
    """
    now = CrossTimestamp(50 * S, 5 * S)
    data = from_page(page(now), now, 0, 1_000)
    assert data.status == 1
    for age_s in (10, 100, 999):
        fleet_ahead_ns = 1_000_000 + age_s * (20_000 + 900)
        assert fleet_ahead_ns <= data.bound_ns + age_s * data.max_drift_ppb


def test_no_torn_reads_of_the_clockbound_segment(tmp_path: Path) -> None:
    """Two million snapshots beside a writer at full speed: the fields of each belong together."""
    client = build("clockbound_reader.c", tmp_path / "client", "-O2")
    writer = ClockBoundWriter(tmp_path / "shm0")
    stop = threading.Event()

    def write() -> None:
        number = 1
        while not stop.is_set():
            writer.write(ClockBoundData(number * 1000, 2 * S, number * 1000, number, 1, 1))
            number += 1

    writer.write(ClockBoundData(1000, 2 * S, 1000, 1, 1, 1))
    thread = threading.Thread(target=write)
    thread.start()
    try:
        result = subprocess.run(
            [str(client), str(tmp_path / "shm0"), "torn", "2000000"],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        stop.set()
        thread.join()
    reads, torn, _, changes = (int(word) for word in result.stdout.split())
    assert torn == 0
    assert reads >= 2_000_000
    assert changes >= 1_000


def test_clockbound_generation_is_even_at_rest_and_never_zero_again(tmp_path: Path) -> None:
    """The generation wraps from 65534 to 2: 0 would mean a segment that was never written."""
    writer = ClockBoundWriter(tmp_path / "shm0")
    seen = set()
    for _ in range(40_000):
        writer.write(ClockBoundData(0, 0, 0, 0, 0, 0))
        seen.add(int.from_bytes((tmp_path / "shm0").read_bytes()[14:16], "little"))
    assert 0 not in seen
    assert all(generation % 2 == 0 for generation in seen)
    assert {2, 65_534} <= seen


@pytest.fixture(scope="module")
def convert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Converts a stamp of the host clock in C."""
    folder = tmp_path_factory.mktemp("native")
    return build("clock_convert.c", folder / "convert", "-O2", f'-DFP_VMCLOCK_PATH="{folder / "vmclock0"}"')


@pytest.mark.parametrize("language", ["c", "python"])
@pytest.mark.parametrize(
    "step_ns", [-S, -1_000_000, -5_000, -400, 0, 400, 5_000, 1_000_000, 150 * 31_556_952 * S]
)
def test_stamps_of_a_host_clock_that_moved_unseen_are_not_false(
    tmp_path: Path, convert: Path, monkeypatch: pytest.MonkeyPatch, step_ns: int, language: str
) -> None:
    """The sidecar is stopped when the host clock moves: the bound of a converted stamp holds, and a step is reported.

    Fleet time by the raw clock is the truth here.
    """
    virtual = tmp_path / "host-clock"
    clock = VirtualClockWriter(virtual)
    clock.append(0, 0, 0)
    ClockPageWriter(tmp_path / "clock").write(page(HostClock().cross_timestamp()))
    clock.append(time.time_ns(), step_ns, 0)
    monkeypatch.setenv("FABRICPULSE_VIRTUAL_CLOCK", str(virtual))
    if language == "c":
        done = subprocess.run([convert, tmp_path / "clock"], capture_output=True, text=True, check=True)
        truth, fleet, bound, status, now_status, late_ns = (int(word) for word in done.stdout.split())
    else:
        host = VirtualClock(virtual)
        reader = ClockPageReader(tmp_path / "clock", host)
        before = raw_now_ns()
        stamp = host.from_kernel(time.time_ns())
        now, then = reader.now(), reader.convert(stamp)
        late_ns = raw_now_ns() - before
        truth, now_status = now.fleet_ns, now.status
        fleet, bound, status = then.fleet_ns, then.bound_ns, then.status
    assert now_status == ClockStatus.SYNCHRONIZED
    if abs(step_ns) >= 1_000_000:
        assert status in (ClockStatus.DISRUPTED, ClockStatus.UNKNOWN)
    if status == ClockStatus.UNKNOWN:
        assert abs(step_ns) > 10 * S
        return
    # The deviation is of the raw clock, than which fleet time runs 20 ppm faster here.
    scaled_ns = abs(step_ns) // 50_000
    assert truth - fleet <= bound + scaled_ns + late_ns
    assert fleet - truth <= bound + scaled_ns
    if abs(step_ns) <= 5_000 and status == ClockStatus.SYNCHRONIZED:
        assert bound <= 2_000 + abs(step_ns) + late_ns


@pytest.mark.parametrize("language", ["c", "python"])
@pytest.mark.parametrize(
    ("paused", "status"),
    [
        ("", ClockStatus.SYNCHRONIZED),
        ("suspend", ClockStatus.DISRUPTED),
        ("vmclock", ClockStatus.DISRUPTED),
        ("no correction", ClockStatus.HOLDOVER),
    ],
)
def test_readers_see_what_happened_while_the_sidecar_was_stopped(
    tmp_path: Path,
    convert: Path,
    monkeypatch: pytest.MonkeyPatch,
    paused: str,
    status: ClockStatus,
    language: str,
) -> None:
    """A suspend, a disruption that the hypervisor reports, no correction for longer than synchronized fleet time holds:
    nobody is left to write it to the page."""
    vmclock = convert.parent / "vmclock0"
    vmclock.write_bytes(struct.pack("<IIHBBIQ", 0x4B4C4356, 104, 1, 0, 0, 0, 7).ljust(4096, b"\0"))
    monkeypatch.setattr(pauses, "VMCLOCK", vmclock)
    marker = marker_of(VmClock(vmclock))
    now = HostClock().cross_timestamp()
    written = page(now)._replace(
        synchronized_until_raw_ns=now.raw_ns + (0 if paused == "no correction" else 10 * S),
        suspended_ns=max(suspended_ns(), 0),
        vmclock_marker=marker + 1 if paused == "vmclock" else marker,
    )
    command = [str(convert), str(tmp_path / "clock")]
    if paused == "suspend":
        if language == "c" and os.geteuid() != 0:
            pytest.skip("only root may have another CLOCK_BOOTTIME")
        # In its time namespace a minute was slept; the page does not say in which one it was written.
        command = ["unshare", "--time", "--boottime", "60", *command]
        monkeypatch.setattr(clock_page, "time_namespace", lambda: 0)
        monkeypatch.setattr(clock_page, "suspended_ns", lambda: suspended_ns() + 60 * S)
    ClockPageWriter(tmp_path / "clock").write(written)
    if language == "c":
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        statuses = [int(word) for word in done.stdout.split()[3:5]]
    else:
        reader = ClockPageReader(tmp_path / "clock")
        statuses = [reader.now().status, reader.convert(time.time_ns()).status]
    assert statuses == [status, status]
