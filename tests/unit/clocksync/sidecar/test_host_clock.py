"""A look at both clocks of a host is not misled by readings that were disturbed."""

import time

import numpy as np
import pytest

from fabricpulse.clocksync._cross_timestamp import combine, cross_timestamp
from fabricpulse.clocksync.sidecar.host_clock import HostClock

_AHEAD_NS = 1_700_000_000_000_000_000


def _readings(cold: int, step_at: int = 1000, stepped_ns: int = 0) -> list[tuple[int, int, int]]:
    """A hundred readings, the first `cold` of which are slow before they have the real clock's value; that clock is
    stepped before reading `step_at`.
    """
    readings, now = [], 10**12
    for k in range(100):
        before, real = now, now + (400 if k < cold else 40)
        after = real + 40 + k % 5
        readings.append((before, real + _AHEAD_NS + (stepped_ns if k >= step_at else 0), after))
        now = after + 30
    return readings


def _error_ns(readings: list[tuple[int, int, int]]) -> int:
    real, raw, _ = combine(readings)
    return real - raw - _AHEAD_NS


@pytest.mark.parametrize("cold", [0, 1, 10, 60, 99])
def test_slow_readings_have_no_say(cold: int) -> None:
    assert abs(_error_ns(_readings(cold))) <= 3


@pytest.mark.parametrize("at", [0, 60, 100, 119])
def test_the_error_covers_wherever_in_a_reading_the_real_clock_was_read(at: int) -> None:
    readings = [(1_000 * k, 1_000 * k + at + _AHEAD_NS, 1_000 * k + 120 + k % 7) for k in range(20)]
    real, raw, error_ns = combine(readings)
    assert abs(real - raw - _AHEAD_NS) <= error_ns <= 72


@pytest.mark.parametrize("stepped_ns", [-1_000_000_000, -1_000, 1_000, 50_000_000])
@pytest.mark.parametrize("step_at", [1, 50, 99])
def test_a_clock_step_between_the_readings_errs_by_the_step_or_not_at_all(
    step_at: int, stepped_ns: int
) -> None:
    error = _error_ns(_readings(0, step_at, stepped_ns))
    assert min(abs(error), abs(error - stepped_ns)) <= 3


@pytest.mark.parametrize("backward", [0, 50, 99])
@pytest.mark.parametrize("by_ns", [1, 30, 10_000])
def test_a_reading_in_which_the_raw_clock_ran_backward_has_no_say(backward: int, by_ns: int) -> None:
    readings = _readings(0)
    before, real, _ = readings[backward]
    readings[backward] = before, real, before - by_ns
    assert abs(_error_ns(readings)) <= 3
    with pytest.raises(RuntimeError, match="ran backward"):
        combine([readings[backward]])


def test_what_the_kernel_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a reading before and one after, of both clocks; and looks agree with each other on how far these are
    apart.
    """
    monkeypatch.delenv("FABRICPULSE_VIRTUAL_CLOCK", raising=False)
    clock = HostClock()
    apart = []
    for _ in range(50):
        before = time.time_ns(), time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        look = clock.cross_timestamp()
        after = time.time_ns(), time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        assert before[0] <= look.host_ns <= after[0]
        assert before[1] <= look.raw_ns <= after[1]
        apart.append(look.host_ns - look.raw_ns)
    # In some ms both clocks go apart by less than that, whoever steers one of them.
    assert np.ptp(np.array(apart) - apart[0]) < 1_000


def test_no_reading_is_no_moment() -> None:
    with pytest.raises(ValueError, match="at least one reading"):
        combine([])
    with pytest.raises(ValueError, match="at least one reading"):
        cross_timestamp(0)
