"""A sidecar goes on with the page of one that was killed, whatever that one was doing; and takes it back at once."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fabricpulse.clocksync._heartbeat import Heartbeat
from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClock, FleetClockParameters
from fabricpulse.clocksync.outputs.config import OutputsConfig
from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.clocksync.sidecar.page_file import PageFile
from fabricpulse.clocksync.sidecar.published_clock import PublishedClock
from fabricpulse.core._layouts import clock_at
from fabricpulse.core.pauses import suspended_ns
from fabricpulse.core.shm import clock_page
from fabricpulse.core.shm.clock_page import ClockPageReader, ClockPageWriter, ClockStatus, raw_now_ns


@pytest.mark.parametrize("killed", ["between updates", "while it decides"])
def test_the_next_sidecar_has_the_fleet_time_of_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """It is in holdover at once, on the same line, and no reader sees time run backward."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    clock = HostClock()
    now = clock.cross_timestamp()
    fleet = FleetClock.start(FleetClockParameters(), now)
    page = fleet.correct(now, Correction(now.host_ns, 3_600_000_000_000, 0.0, 1_000))
    writer = ClockPageWriter(tmp_path / "clock")
    writer.write(page)
    reader = ClockPageReader(tmp_path / "clock")
    if killed == "while it decides":
        writer._set_sequence(writer._sequence + 1)
    before = reader.now()

    heir = PublishedClock(FleetClockParameters(), OutputsConfig(clockbound=""), lambda: None)

    after = reader.now()
    assert heir.fleet.page.status == after.status == ClockStatus.HOLDOVER
    elapsed_ns = clock.cross_timestamp().raw_ns - now.raw_ns
    assert before.fleet_ns <= after.fleet_ns <= now.host_ns + 3_600_000_000_000 + elapsed_ns + 1_000
    assert not reader.stale()


def test_what_contradicts_the_page_is_on_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the next tick."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    clock = PublishedClock(FleetClockParameters(), OutputsConfig(clockbound=""), lambda: None)
    clock.correct(Correction(clock.stamp_now_ns(), 3_600_000_000_000, 0.0, 1_000))
    reader = ClockPageReader(tmp_path / "clock")
    assert reader.now().status == ClockStatus.SYNCHRONIZED

    clock.contradict("causality")

    assert reader.now().status == ClockStatus.DISRUPTED


def test_a_page_that_holds_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two corrections nothing has changed. A step of the host clock and the end of a slew are written at once,
    and once a second that there still is a sidecar.
    """
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    elapsed_ns, stepped_ns, read = 0, 0, HostClock().cross_timestamp()
    # No clock but this one: of two reads beside each other the rate is not known.
    monkeypatch.setattr(
        HostClock,
        "cross_timestamp",
        lambda _: CrossTimestamp(read.host_ns + elapsed_ns + stepped_ns, read.raw_ns + elapsed_ns),
    )
    clock = PublishedClock(FleetClockParameters(), OutputsConfig(clockbound="off"), lambda: None)
    clock.correct(Correction(read.raw_ns + clock.fleet.epoch_ns, 3_600_000_000_000, 0.0, 1_000))

    def tick(after_ns: int) -> bool:
        """Whether the page was written."""
        nonlocal elapsed_ns
        elapsed_ns += after_ns
        before = (tmp_path / "clock").read_bytes()[clock_page.PAGES_OFFSET :]
        clock.tick()
        return (tmp_path / "clock").read_bytes()[clock_page.PAGES_OFFSET :] != before

    assert [tick(270_000_000) for _ in range(5)] == [False, False, False, True, False]
    stepped_ns = 1_000_000
    assert [tick(1_000_000) for _ in range(2)] == [True, False]
    reference_ns = read.raw_ns + elapsed_ns + clock.fleet.epoch_ns
    clock.correct(Correction(reference_ns, 3_600_000_001_000, 0.0, 1_000))
    slewed_s = clock.due_s - clock._sampled_s
    assert tick(round(slewed_s * 1e9)), "a slew has ended"
    assert (
        abs(clock.fleet.page.current.at(now := read.raw_ns + elapsed_ns + 10**9) - clock.fleet.target.at(now))
        <= 1
    )
    assert clock.due_s - clock._sampled_s > 1.5 * slewed_s
    clock.correct(Correction(reference_ns, 3_600_000_002_000, 0.0, 1_000))
    assert tick(400_000_000), "and overshot, as this process had no core"
    assert clock.due_s - clock._sampled_s == pytest.approx(slewed_s)


@pytest.mark.parametrize("phase_ns", [20_000_000, 270_000_000, 500_000_000, 740_000_000])
def test_a_host_clock_that_is_corrected_was_not_stepped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase_ns: int
) -> None:
    """chronyd makes it run 40 ppm faster for some seconds: readers would take stamps for disrupted."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    elapsed_ns, read = 0, HostClock().cross_timestamp()
    steered_ns = 10 * 10**9 + phase_ns

    def cross_timestamp(_: HostClock) -> CrossTimestamp:
        corrected_ns = 40 * max(0, min(elapsed_ns, steered_ns + 3 * 10**9) - steered_ns) // 10**6
        return CrossTimestamp(read.host_ns + elapsed_ns + corrected_ns, read.raw_ns + elapsed_ns)

    monkeypatch.setattr(HostClock, "cross_timestamp", cross_timestamp)
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0 + elapsed_ns / 1e9)
    clock = PublishedClock(FleetClockParameters(), OutputsConfig(clockbound="off"), lambda: None)
    for second in range(20):
        reference_ns = read.raw_ns + elapsed_ns + clock.fleet.epoch_ns
        clock.correct(Correction(reference_ns, 3_600_000_000_000, 0.0, 1_000))
        while clock.due_s < 1_000.0 + second + 1:
            elapsed_ns = round((clock.due_s - 1_000.0) * 1e9)
            clock.tick()
        elapsed_ns = (second + 1) * 10**9
    assert clock.fleet.host.steps == 0


def test_a_page_from_before_a_suspend_is_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody was there to take it back."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    clock = PublishedClock(FleetClockParameters(), OutputsConfig(clockbound=""), lambda: None)
    clock.correct(Correction(clock.stamp_now_ns(), 3_600_000_000_000, 0.0, 1_000))
    slept = suspended_ns() + 60 * 10**9
    monkeypatch.setattr(clock_page, "suspended_ns", lambda: slept)

    heir = PublishedClock(FleetClockParameters(), OutputsConfig(clockbound=""), lambda: None)

    assert heir.fleet.page.status == ClockStatus.UNKNOWN
    assert ClockPageReader(tmp_path / "clock").now().status == ClockStatus.UNKNOWN


def test_a_pause_that_no_clock_shows_is_in_the_first_correction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It excludes the page of the previous sidecar: that is taken back at once."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    clock = PublishedClock(FleetClockParameters(), OutputsConfig(clockbound=""), lambda: None)
    clock.correct(Correction(clock.stamp_now_ns(), 3_600_000_000_000, 0.0, 1_000))

    heir = PublishedClock(FleetClockParameters(), OutputsConfig(clockbound=""), lambda: None)
    heir.correct(Correction(heir.stamp_now_ns(), 3_601_000_000_000, 0.0, 1_000))

    assert ClockPageReader(tmp_path / "clock").now().status == ClockStatus.DISRUPTED
    assert heir.contradictions["edges"] == 1


_SIDECAR = """
import time
from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClockParameters
from fabricpulse.clocksync.outputs.config import OutputsConfig
from fabricpulse.clocksync.sidecar.published_clock import PublishedClock

clock = PublishedClock(FleetClockParameters(), OutputsConfig(clockbound="off"), lambda: None)
clock.correct(Correction(clock.stamp_now_ns(), 3_600_000_000_000, 0.0, 1_000))
print("synchronized", flush=True)
while True:
    time.sleep(0.1)  # between two ticks
    clock.tick()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_page_is_synchronized_no_longer_than_somebody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    """A pause of the machine, a frequency step: with a sidecar that is dead or stopped nobody would notice."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    sidecar = subprocess.Popen([sys.executable, "-c", _SIDECAR], stdout=subprocess.PIPE)
    try:
        assert sidecar.stdout is not None and sidecar.stdout.readline() == b"synchronized\n"
        reader = ClockPageReader(tmp_path / "clock")
        sidecar.send_signal(end)
        os.waitpid(sidecar.pid, os.WUNTRACED)
        late = raw_now_ns() + 100_000_001
        page, file = reader.read(), (tmp_path / "clock").read_bytes()
        assert page.at(page.bound_ref_raw_ns).status == ClockStatus.SYNCHRONIZED
        assert page.at(late).status == ClockStatus.HOLDOVER
        assert clock_at(file, page.bound_ref_raw_ns)[2] == ClockStatus.SYNCHRONIZED
        assert clock_at(file, late)[2] == ClockStatus.HOLDOVER
        monkeypatch.setattr(clock_page, "raw_now_ns", lambda *_: late)
        assert reader.now().status == ClockStatus.HOLDOVER
    finally:
        sidecar.kill()
        sidecar.communicate()


def test_a_heartbeat_ends_with_the_loop_that_it_stands_for() -> None:
    """The process lives, but nothing of it takes notice of anything."""
    word = memoryview(bytearray(8)).cast("q")
    heartbeat = Heartbeat(word)
    heartbeat.go_on_until(ends := raw_now_ns() + 20_000_000)
    while raw_now_ns() < ends + 100_000_000:
        assert (until := word[0]) <= min(ends, raw_now_ns() + 100_000_000), until
    assert word[0] == ends
    heartbeat.stop()


def test_a_heartbeat_ends_with_the_engine_whose_samples_it_counts() -> None:
    """Its trains are what shows a pause of the machine. When it goes on, the loop has to look first."""
    word, samples = memoryview(bytearray(8)).cast("q"), np.zeros(5, np.uint64)
    heartbeat = Heartbeat(word)
    heartbeat.follow(samples, 20_000_000)

    def measures_until_watched() -> None:
        until_ns = raw_now_ns() + 20 * 10**9
        heartbeat.go_on_until(until_ns)
        while word[0] <= raw_now_ns():
            samples[0] += 1
            heartbeat.go_on_until(until_ns)
            assert raw_now_ns() < until_ns

    measures_until_watched()
    now_ns = silent_ns = raw_now_ns()
    samples[0] += 1  # the last one
    while word[0] > now_ns:
        assert now_ns < silent_ns + 20 * 10**9
        now_ns = raw_now_ns()
        heartbeat.go_on_until(now_ns + 10**9)
    # By two clocks, of which one is disciplined.
    assert now_ns - silent_ns > 0.99 * heartbeat.silence_ns()
    assert heartbeat.longest_silence_ns() >= heartbeat.silence_ns()
    measures_until_watched()
    heartbeat.stop()


def test_what_delays_contradict_is_not_synchronized_though_the_loop_hangs() -> None:
    """The machine was paused: the engine counts a contradiction. The loop has granted some time, and does not come."""
    word, counts = memoryview(bytearray(8)).cast("q"), np.zeros(5, np.uint64)
    heartbeat = Heartbeat(word)
    heartbeat.follow(counts, 3_600 * 10**9)
    heartbeat.go_on_until(granted_ns := raw_now_ns() + 20 * 10**9)
    counts[1] += 1
    while word[0] > 1:
        counts[0] += 1
        assert raw_now_ns() < granted_ns
    heartbeat.go_on_until(granted_ns)  # by a loop that has yet to learn of it
    assert word[0] == 1
    heartbeat.go_on_until(granted_ns, 1)
    assert word[0] != 1
    heartbeat.stop()


def test_a_late_loop_handles_what_delays_contradict_before_the_page_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick or a correction comes before the notice; and of what is not handled yet, nothing is granted."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    clock = PublishedClock(FleetClockParameters(), OutputsConfig(clockbound="off"), lambda: None)
    counts, handled = np.zeros(5, np.uint64), [0]

    def contradicted() -> bool:
        before, handled[0] = handled[0], int(counts[1])
        return handled[0] > before

    clock.delays_contradict = contradicted
    clock.follow(counts, 3_600 * 10**9)
    clock.correct(Correction(clock.stamp_now_ns(), 3_600_000_000_000, 0.0, 1_000))
    assert clock.shown.status != ClockStatus.UNKNOWN
    counts[1] += 1
    clock.tick()
    assert clock.contradictions["causality"] == 1
    assert clock.fleet.page.status != ClockStatus.SYNCHRONIZED
    clock.tick()
    assert clock.contradictions["causality"] == 1
    assert clock._page_file._writer.watched_until_ns[0] != 1
    # Just after the clock has asked.
    monkeypatch.setattr(clock, "delays_contradict", lambda: bool(counts.__setitem__(1, 2)))
    clock.tick()
    assert clock._page_file._writer.watched_until_ns[0] == 1
    clock.leave()


def test_a_doubt_ends_synchronized_for_a_while() -> None:
    """The engine sees delays shift, which proves nothing yet."""
    word, counts = memoryview(bytearray(8)).cast("q"), np.zeros(5, np.uint64)
    heartbeat = Heartbeat(word)
    until_ns = raw_now_ns() + 20 * 10**9

    def until(ahead: bool) -> int:
        while (word[0] > raw_now_ns()) != ahead:
            counts[0] += 1
            heartbeat.go_on_until(until_ns)
            assert raw_now_ns() < until_ns
        return raw_now_ns()

    heartbeat.follow(counts, 5 * 10**6)
    until(ahead=True)
    counts[4] += 1
    behind_ns = until(ahead=False)
    assert until(ahead=True) - behind_ns > 100 * 10**6
    heartbeat.stop()


@pytest.mark.parametrize(("interval_ms", "silence_ms"), [(1, 60), (20, 200), (200, 1_000), (1_000, 3_000)])
def test_an_engine_that_probes_seldom_may_not_be_silent_for_long(interval_ms: int, silence_ms: int) -> None:
    """For ten seconds at one train a second a pause of the machine would stay unnoticed."""
    heartbeat = Heartbeat(memoryview(bytearray(8)).cast("q"))
    heartbeat.follow(np.zeros(5, np.uint64), interval_ms * 10**6)
    assert heartbeat.silence_ns() == silence_ms * 10**6
    heartbeat.stop()


_NO_THREAD = """
import resource, signal
from pathlib import Path
from fabricpulse.clocksync._heartbeat import Heartbeat

word = memoryview(bytearray(8)).cast("q")
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
# Less than the stack of a thread.
resource.setrlimit(resource.RLIMIT_AS, (mapped + (1 << 20), -1))
try:
    Heartbeat(word)
except OSError as error:
    print(error.errno, len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
"""


def test_where_no_thread_can_be_made_signals_still_come() -> None:
    """A sidecar that goes on without could not be stopped by SIGTERM."""
    said = subprocess.run([sys.executable, "-c", _NO_THREAD], stdout=subprocess.PIPE, check=True, timeout=60)
    assert said.stdout.split() == [str(errno.EAGAIN).encode(), b"0"]


def test_a_page_keeps_its_heartbeat_until_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file was removed, and no thread can be made for the new one: programs that have it open go on."""
    page_file = PageFile(tmp_path / "clock")
    clock = FleetClock.start(FleetClockParameters(), HostClock().cross_timestamp())
    page_file.begin(clock.page)
    page_file.watch_until(raw_now_ns() + 3_600 * 10**9, 0)
    word = page_file._writer.watched_until_ns
    (tmp_path / "clock").unlink()

    def refuse(_: memoryview) -> Heartbeat:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as refused:
        refused.setattr("fabricpulse.clocksync.sidecar.page_file.Heartbeat", refuse)
        assert page_file.write(clock.page)
    before = word[0]
    while word[0] == before and raw_now_ns() < before + 10**9:
        time.sleep(0.005)  # the thread beats 33 times a second
    assert word[0] > before
    assert page_file.write(clock.page)
    assert not page_file._writer.removed()
    page_file.leave()


def test_after_a_stall_there_is_no_synchronized_time_until_edges_show_what_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was stopped, or its loop hung, for more than a second: corrections may be older than that."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    clock = PublishedClock(FleetClockParameters(), OutputsConfig(clockbound="off"), lambda: None)
    watched: list[int] = []
    monkeypatch.setattr(clock._page_file, "watch_until", lambda raw_ns, _: watched.append(raw_ns))
    clock.correct(Correction(clock.stamp_now_ns(), 3_600_000_000_000, 0.0, 1_000))
    assert len(watched) == 1
    clock._sampled_s -= 2.0
    clock.tick()
    clock.correct(Correction(clock.stamp_now_ns(), 3_600_000_000_000, 0.0, 1_000))
    assert len(watched) == 1
    monkeypatch.setattr(clock, "_unmeasured_until_s", clock._sampled_s)
    clock.tick()
    assert len(watched) == 2
    # Only its loop was late: its heartbeat has followed an engine that went on.
    clock.follow(np.zeros(5, np.uint64), 3_600 * 10**9)
    clock._sampled_s -= 2.0
    clock.tick()
    assert len(watched) == 3


def test_without_an_engine_that_measures_there_is_no_synchronized_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a second, and of another engine, what happened meanwhile shows in edges alone."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    clock = PublishedClock(FleetClockParameters(), OutputsConfig(clockbound="off"), lambda: None)
    granted: list[int] = []
    monkeypatch.setattr(clock._page_file, "watch_until", lambda raw_ns, _: granted.append(raw_ns))
    silences = iter([0, 1_500_000_000, 0, 0, 0])
    monkeypatch.setattr(clock._page_file, "longest_silence_ns", lambda: next(silences))
    clock.follow(np.zeros(5, np.uint64), 20_000_000)
    for grants in 1, 1, 1:
        clock.tick()
        assert len(granted) == grants
    clock._unmeasured_until_s = 0.0
    clock.tick()
    assert len(granted) == 2
    clock.follow(np.zeros(5, np.uint64), 20_000_000)
    clock.tick()
    assert len(granted) == 2
