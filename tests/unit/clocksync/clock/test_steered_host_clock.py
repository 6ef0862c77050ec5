"""Whoever steps or steers the host clock, at whatever moment: stamps of it are converted within their bounds."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
from tests.fixtures.sweep import seeds

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.host_clock_model import HostClockModel

S = 10**9
START_NS = 1_700_000_000 * S


@dataclass
class SteeredClock:
    """A host clock over a raw clock that is true. Times are true seconds."""

    random: random.Random
    since_s: float = 0.0
    ahead_ns: float = 5.0 * S
    steered_ppb: float = 0.0

    def steer(self, at_s: float, by_ppb: float) -> None:
        """From then on the host clock gains `by_ppb` more over the raw clock."""
        self.ahead_ns += (at_s - self.since_s) * self.steered_ppb
        self.since_s, self.steered_ppb = at_s, self.steered_ppb + by_ppb

    def step(self, at_s: float, by_ns: float) -> None:
        """The host clock jumps."""
        self.steer(at_s, 0.0)
        self.ahead_ns += by_ns

    def cross_timestamp(self, t_s: float, noise_ns: float = 10.0) -> CrossTimestamp:
        """A reading of both; not before the last event."""
        raw = round(t_s * S)
        ahead = self.ahead_ns + (t_s - self.since_s) * self.steered_ppb
        return CrossTimestamp(START_NS + raw + round(ahead + self.random.gauss(0, noise_ns)), raw)


def observed(
    clock: SteeredClock, begin: int, end: int, model: HostClockModel | None = None
) -> HostClockModel:
    """A model that has had readings at the quarters of a second from `begin` to before `end`."""
    model = model or HostClockModel.start(clock.cross_timestamp(begin / 4))
    for quarter in range(begin, end):
        model.observe(clock.cross_timestamp(quarter / 4))
    return model


def error_ns(model: HostClockModel, clock: SteeredClock, t_s: float) -> float:
    """Of the conversion of a stamp taken at that time."""
    stamp = clock.cross_timestamp(t_s, 0.0).host_ns
    return abs((model.line if stamp >= model.since_ns else model.previous).at(stamp) - t_s * S)


def test_the_line_is_as_good_as_its_readings() -> None:
    """Readings that err by 10 ns: the line by 50, its bound by 400, also after 10 s without one."""
    clock = SteeredClock(random.Random(3))
    model = observed(clock, 0, 60)
    assert not model.observe(clock.cross_timestamp(25.0))
    assert error_ns(model, clock, 25.2) < 50
    assert model.bound_ns < 400
    assert model.steps == 0


@pytest.mark.parametrize("ppm", [0.1, 5.0, -60.0, 300.0, -1_000.0])
def test_a_steered_clock_is_followed(ppm: float) -> None:
    """Within two seconds the conversion is as good as before; meanwhile the bound holds, from the next reading on."""
    for seed in range(5):
        clock = SteeredClock(random.Random(seed))
        model = observed(clock, 0, 40)
        clock.steer(9.8, ppm * 1e3)
        for quarter in range(40, 60):
            model.observe(clock.cross_timestamp(quarter / 4))
            for t_s in np.arange(quarter / 4, (quarter + 1) / 4, 0.05):
                assert error_ns(model, clock, t_s) <= model.bound_ns + 30
        assert model.bound_ns < 150


@pytest.mark.parametrize("by_ns", [-700 * 10**6, 700 * 10**6, 60_000, -3_600 * S])
def test_stamps_from_before_a_step_go_by_the_clock_of_then(by_ns: int) -> None:
    """Stamps are some 10 ms old when they are converted."""
    clock = SteeredClock(random.Random(4))
    model = observed(clock, 0, 48)
    old = clock.cross_timestamp(11.7).host_ns
    clock.step(12.1, by_ns)
    assert model.observe(clock.cross_timestamp(12.25))
    assert model.steps == 1
    if by_ns > S // 2:  # after a step back the same stamps come again
        assert abs(model.previous.at(old) - 11.7 * S) < 100
    for t_s in (12.26, 12.4):
        assert error_ns(model, clock, t_s) < 100
    observed(clock, 50, 60, model)
    assert model.steps == 1
    assert model.bound_ns < 150


@pytest.mark.parametrize("seed", seeds(40, quick=12))
def test_whatever_happens(seed: int) -> None:
    """Steering by 0.1 to 1,000 ppm and steps of both signs: a stamp of now is converted within the bound."""
    chance = random.Random(1_000 + seed)
    clock = SteeredClock(random.Random(seed))
    model = observed(clock, 0, 20)
    for quarter in range(20, 400):
        if chance.random() < 0.1:
            clock.step(quarter / 4 - 0.1, chance.choice([-1, 1]) * 10 ** chance.uniform(2, 9.5))
        elif chance.random() < 0.2:
            clock.steer(
                quarter / 4 - chance.uniform(0, 0.25), chance.choice([-1, 1]) * 10 ** chance.uniform(2, 6)
            )
        model.observe(clock.cross_timestamp(quarter / 4))
        assert error_ns(model, clock, quarter / 4) <= model.bound_ns + 30
