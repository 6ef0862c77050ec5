"""Lateness is what processes waited for a CPU in a span of time, no more and never less."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fabricpulse.lab.demo.lateness import KEEP_S, Lateness, longest_wait_s, run_queue_waits

MS = 1_000_000


def log(**waits_ms: list[tuple[float, dict[int, int]]]) -> Lateness:
    lateness = Lateness()
    for process, samples in waits_ms.items():
        for at, threads in samples:
            lateness.add_waits(process, at, {thread: wait * MS for thread, wait in threads.items()})
    return lateness


def test_the_worst_thread_counts_not_their_sum() -> None:
    """Threads of one process that wait side by side delay it once; one that is new began at 0."""
    lateness = log(ring=[(1.0, {1: 100, 2: 5}), (2.0, {1: 130, 2: 45, 3: 20})])
    assert lateness.of_process("ring", 1.0, 2.0) == pytest.approx(0.040)


def test_the_span_is_widened_to_the_readings_around_it() -> None:
    """A wait between two readings is never lost; one of an earlier or a later reading is not counted."""
    lateness = log(ring=[(1.0, {1: 0}), (2.0, {1: 100}), (3.0, {1: 130}), (4.0, {1: 900})])
    assert lateness.of_process("ring", 2.2, 2.8) == pytest.approx(0.030)
    assert lateness.of_process("ring", 1.9, 2.1) == pytest.approx(0.130)


def test_a_path_adds_up_its_processes_and_a_stopped_machine_shows_in_the_heartbeat() -> None:
    """What passes two late processes is late by both; a machine that stood still for longer counts for more."""
    lateness = log(a=[(1.0, {1: 0}), (2.0, {1: 20})], b=[(1.0, {1: 0}), (2.0, {1: 15})])
    assert lateness.of_path(["a", "b", "unknown"], 1.0, 2.0) == pytest.approx(0.035)
    assert lateness.of_path(["a", "b"], 1.45, 1.46) == pytest.approx(0.01), "never more than the span itself"
    lateness.add_heartbeat(1.5, 0.2)
    assert lateness.of_path(["a", "b"], 1.0, 2.0) == pytest.approx(0.2)
    assert lateness.of_path(["a", "b"], 5.0, 6.0) == 0.0


def test_what_is_old_is_kept_coarsely() -> None:
    """A demo that stays up for days does not grow, and what it knew of the last hour still adds up."""
    lateness = Lateness()
    for number in range(20_000):
        at = number * 0.5
        lateness.add_waits("ring", at, {1: number * MS})
        lateness.add_heartbeat(at, 0.0)
    readings = lateness.waits["ring"]
    assert len(readings.times) == len(readings.waits) <= 3600 + 2 * (KEEP_S + 10) + 1
    assert len(lateness.heartbeats) <= 2 * KEEP_S + 1
    assert lateness.of_process("ring", 8000.0, 9900.0) == pytest.approx(3.8, abs=0.004)


def test_the_kernel_counts_the_wait_of_a_process_that_shares_its_cpu() -> None:
    """Two busy processes on one CPU: the one waits about as long as the other runs."""
    if run_queue_waits(os.getpid()) is None:
        pytest.skip("hardware: this kernel counts no run-queue delay")
    cpu = min(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nprint('on', flush=True)\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in busy:
            assert process.stdout is not None
            process.stdout.readline()
        before = run_queue_waits(busy[0].pid)
        assert before is not None
        deadline = time.monotonic() + 30
        while longest_wait_s(before, run_queue_waits(busy[0].pid) or {}) < 0.2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        for process in busy:
            process.kill()
            process.communicate()
    assert run_queue_waits(busy[0].pid) is None


def test_the_heartbeat_tells_that_it_was_stopped() -> None:
    """A heartbeat that was not run for 0.3 s says so, with the time at which it ran again."""
    command = [sys.executable, "-P", "-m", "fabricpulse.lab.heartbeat"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            resumed = time.monotonic()
            process.send_signal(signal.SIGCONT)
            for line in process.stdout:
                beat = json.loads(line)
                if beat["late_s"] >= 0.25:
                    break
            assert beat["at"] >= resumed
        finally:
            process.kill()
