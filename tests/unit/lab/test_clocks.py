"""The clock of a lab host is wrong by exactly what was asked, now and in the past."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabricpulse.core.shm.virtual_clock import VirtualClock
from fabricpulse.lab.clocks import LEAD_NS, HostClock, WanderDriver

SECOND = 1_000_000_000


@pytest.fixture
def driver() -> Iterator[WanderDriver]:
    """Ended after the test."""
    made = WanderDriver()
    yield made
    made.close()


@pytest.fixture
def clock(tmp_path: Path, driver: WanderDriver) -> HostClock:
    """A clock whose host runs programs already."""
    made = HostClock(tmp_path / "clock", driver)
    made.mark_in_use()
    return made


def test_a_new_clock_is_the_kernels(clock: HostClock) -> None:
    """No offset, now, in an hour and an hour ago."""
    now = time.time_ns()
    assert [clock.truth(now + shift) for shift in (-3600 * SECOND, 0, 3600 * SECOND)] == [0, 0, 0]


def test_offset_and_drift_are_exact(clock: HostClock) -> None:
    """5 ms ahead and 30 ppm fast: 5 ms at the start, 30 us more a second later, 30 ms more after 1000 s."""
    start = clock.set(offset_ns=5_000_000, drift_ppm=30)
    assert clock.truth(start) == 5_000_000
    assert clock.truth(start + SECOND) == 5_030_000
    assert clock.truth(start + 1000 * SECOND) == 35_000_000
    assert clock.truth(start - 1) == 0


def test_a_slow_clock(clock: HostClock) -> None:
    """Negative rates lose time."""
    start = clock.set(drift_ppm=-100)
    assert clock.truth(start + 10 * SECOND) == -1_000_000


def test_a_change_of_rate_is_continuous(clock: HostClock) -> None:
    """No step where only the rate changes, to the nanosecond."""
    clock.set(offset_ns=1000, drift_ppm=50)
    start = clock.set(drift_ppm=-50)
    assert abs(clock.truth(start) - clock.truth(start - 1)) <= 1


def test_a_step_is_a_step_and_the_past_stays(clock: HostClock) -> None:
    """Stamps from before the step keep their meaning; the rate goes on."""
    first = clock.set(offset_ns=0, drift_ppm=10)
    start = clock.step(-3_000_000)
    assert start > first
    assert clock.truth(first) == 0
    assert clock.truth(start - 1) == (start - 1 - first) // 100_000
    assert clock.truth(start) - clock.truth(start - 1) == pytest.approx(-3_000_000, abs=1)
    assert clock.truth(start + SECOND) - clock.truth(start) == pytest.approx(10_000, abs=1)


def test_a_change_is_published_before_it_holds(clock: HostClock) -> None:
    """Once programs run, nobody can have read a stamp of after the change without it."""
    asked = time.time_ns()
    assert clock.set(offset_ns=1) >= asked + LEAD_NS
    assert clock.step(1) >= asked + LEAD_NS


def test_before_the_first_program_a_change_holds_at_once(tmp_path: Path, driver: WanderDriver) -> None:
    """So that a scenario's clocks are wrong from the first stamp on."""
    fresh = HostClock(tmp_path / "clock", driver)
    assert fresh.set(offset_ns=7) <= time.time_ns()


def test_the_page_as_a_daemon_reads_it_agrees_with_the_true_time(clock: HostClock) -> None:
    """The page, read as a daemon reads it, agrees with truth() at every moment of a wild clock."""
    draw = random.Random(5)
    for _ in range(50):
        clock.set(offset_ns=draw.randrange(-(10**9), 10**9), drift_ppm=draw.uniform(-200, 200))
        clock.step(draw.randrange(-(10**6), 10**6))
    reader = VirtualClock(clock.path)
    now = time.time_ns()
    for _ in range(200):
        at = now + draw.randrange(-SECOND, 60 * SECOND)
        assert reader.from_kernel(at) - at == clock.truth(at)


def walk(path: Path, driver: WanderDriver, seed: int, steps: int) -> list[float]:
    """The rates of a wander, one per step, driven by hand."""
    clock = HostClock(path, driver)
    clock.set(wander_ppb=100, seed=seed, interval_s=3600)
    rates = []
    for _ in range(steps):
        clock._walk(1.0)
        rates.append(clock.drift_ppm)
    return rates


def test_wander_is_a_seeded_random_walk_of_the_rate(tmp_path: Path, driver: WanderDriver) -> None:
    """Same seed, same walk; steps of 100 ppb standard deviation and no trend."""
    rates = walk(tmp_path / "a", driver, 1, 2000)
    assert rates == walk(tmp_path / "b", driver, 1, 2000)
    assert rates != walk(tmp_path / "c", driver, 2, 2000)
    steps = [1000 * (after - before) for before, after in itertools.pairwise(rates)]
    assert (sum(step**2 for step in steps) / len(steps)) ** 0.5 == pytest.approx(100, rel=0.1)
    assert abs(sum(steps) / len(steps)) < 10


def test_the_driver_walks_until_the_wander_ends(tmp_path: Path, driver: WanderDriver) -> None:
    """Rates change while it wanders, and stand still after wander_ppb=0."""
    clock = HostClock(tmp_path / "clock", driver)
    changed = threading.Event()
    change, count = clock._change, 0

    def counting(
        offset_ns: int | None, rate_ppt: int | None, delta_ns: int = 0, raw_delta_ns: int = 0
    ) -> int:
        nonlocal count
        count += 1
        if count >= 4:
            changed.set()
        return change(offset_ns, rate_ppt, delta_ns, raw_delta_ns)

    clock._change = counting  # type: ignore[method-assign]
    clock.set(wander_ppb=1000, interval_s=0.005)
    assert changed.wait(60)
    assert clock.drift_ppm != 0
    clock.set(wander_ppb=0)
    rate = clock.drift_ppm
    assert not clock._walk(1)
    assert clock.drift_ppm == rate


def test_a_full_page_does_not_kill_the_driver(tmp_path: Path, driver: WanderDriver) -> None:
    """A wander that has filled its page ends; other clocks go on."""
    clock = HostClock(tmp_path / "clock", driver, capacity=3)
    clock.set(wander_ppb=10, interval_s=3600)
    assert clock._walk(1)
    assert not clock._walk(1)
    assert clock.truth(time.time_ns() + SECOND) is not None


def test_the_oscillator_is_on_both_clocks_and_steering_on_one(clock: HostClock) -> None:
    """An error of 30 ppm is on the raw clock as well, a step and what daemons do are not; a pause is on both."""
    raw_now, now = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW), time.time_ns()
    begin = clock.set(drift_ppm=30)

    def raw_error(after_s: float) -> int:
        raw_ns = raw_now + begin - now + round(after_s * SECOND)
        return clock.raw_from_kernel(raw_ns) - raw_ns

    assert abs(raw_error(10) - raw_error(0) - 300_000) < 100
    steered = clock.steer(500)
    clock.step(5_000_000)
    assert abs(raw_error(10) - raw_error(0) - 300_000) < 100
    assert clock.truth(steered + 10 * SECOND) - clock.truth(steered) > 5_000_000
    clock.pause(2_000_000)
    assert abs(raw_error(10) - raw_error(0) - 300_000 + 2_000_000) < 100
    raw_ns = raw_now + 20 * SECOND
    assert abs(clock.kernel_raw(clock.raw_from_kernel(raw_ns)) - raw_ns) <= 1
