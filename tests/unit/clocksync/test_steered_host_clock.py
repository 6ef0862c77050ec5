"""Whoever steps, slews or turns the host clock, at whatever moment: fleet time goes on, within its bound."""

import itertools
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.fixtures.sweep import seeds

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClock, FleetClockParameters
from fabricpulse.clocksync.clock.host_clock_model import HostChange, HostClockModel
from fabricpulse.core.shm.clock_page import ClockStatus, FleetTime

S = 10**9
START_NS = 1_700_000_000 * S
EDGE_BOUND_NS = 1_500


@dataclass
class SteeredClock:
    """A host whose crystal is 20 ppm fast, and whose clock somebody steers. Times are true seconds."""

    random: random.Random
    since_s: float = 0.0
    host_ns: float = 5.0 * S
    turned_ppb: float = 0.0

    def turn(self, at_s: float, by_ppb: float) -> None:
        """From then on the host clock gains `by_ppb` more over the raw clock."""
        self.host_ns += (at_s - self.since_s) * self.turned_ppb
        self.since_s, self.turned_ppb = at_s, self.turned_ppb + by_ppb

    def step(self, at_s: float, by_ns: float) -> None:
        """The host clock jumps."""
        self.turn(at_s, 0.0)
        self.host_ns += by_ns

    def cross_timestamp(self, t_s: float, noise_ns: float = 10.0) -> CrossTimestamp:
        """A reading of both; not before the last event."""
        raw = round(t_s * S + t_s * 20_000)
        ahead = self.host_ns + (t_s - self.since_s) * self.turned_ppb
        return CrossTimestamp(START_NS + raw + round(ahead + self.random.gauss(0, noise_ns)), raw)


@dataclass
class Host:
    """A sidecar in short: ticks 4 a second, and once a second a straight line through what was measured in 4 s, with a
    bound that knows nothing of what the host clock did meanwhile.
    """

    clock: SteeredClock
    fleet: FleetClock = field(init=False)
    samples: list[tuple[float, CrossTimestamp]] = field(default_factory=list)
    t_s: float = 0.0
    last_ns: int = 0
    disrupted_s: float = 0.0
    held_s: float = 0.0
    outside: list[tuple[float, int, FleetTime]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fleet = FleetClock.start(FleetClockParameters(), self.clock.cross_timestamp(0.0))

    def run(self, until_s: float) -> None:
        """Reads fleet time between all that happens."""
        while self.t_s < until_s:
            end_s = min(self.t_s + self.clock.random.uniform(0.02, 0.06), until_s)
            tick = int(end_s * 4) > int(self.t_s * 4)
            correct = int(end_s) > int(self.t_s)
            self.t_s = end_s
            self.read()
            self.samples.append((end_s, self.clock.cross_timestamp(end_s)))
            if tick:
                breaks = self.fleet.breaks
                self.fleet.tick(self.clock.cross_timestamp(end_s))
                if self.fleet.breaks != breaks:
                    self.samples.clear()
                self.read()
            if correct:
                self.correct()
                self.read()

    def read(self) -> None:
        raw_ns = self.clock.cross_timestamp(self.t_s).raw_ns
        shown = self.fleet.page.at(raw_ns)
        if shown.status == ClockStatus.UNKNOWN:
            return
        assert shown.fleet_ns >= self.last_ns, (
            f"fleet time ran backward by {self.last_ns - shown.fleet_ns} ns"
        )
        self.last_ns = shown.fleet_ns
        if abs(shown.fleet_ns - START_NS - round(self.t_s * S)) > shown.bound_ns:
            self.outside.append((self.t_s, shown.fleet_ns - START_NS - round(self.t_s * S), shown))
        if shown.status == ClockStatus.DISRUPTED:
            self.disrupted_s = self.t_s
        if shown.status == ClockStatus.HOLDOVER:
            self.held_s = self.t_s

    def correct(self) -> None:
        self.samples = [s for s in self.samples if s[0] > self.t_s - 4.0]
        if len(self.samples) < 12:
            return
        ref = self.samples[-1][1].host_ns
        host = np.array([s.host_ns - ref for _, s in self.samples], np.float64)
        truth = np.array([START_NS - ref + round(t * S) for t, _ in self.samples], np.float64)
        rate, offset = np.polyfit(host, truth - host, 1)
        correction = Correction(ref, round(float(offset)), float(rate) * 1e9, EDGE_BOUND_NS)
        self.fleet.correct(self.clock.cross_timestamp(self.t_s), correction)


def synced(seed: int) -> Host:
    host = Host(SteeredClock(random.Random(seed)))
    host.run(10.0 + random.Random(seed).uniform(0.0, 1.0))
    assert host.fleet.page.status == ClockStatus.SYNCHRONIZED
    return host


@pytest.mark.parametrize("ppm", [0.1, 0.3, 1, 3, 10, 30, 60, 79, 90, 120, 200, 450, 1_000])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_turn_for_good(ppm: float, sign: int) -> None:
    """The bound holds all the time, and within 10 s everything is as it was before."""
    for seed in range(8):
        host = synced(seed)
        turned_s = host.t_s
        host.clock.turn(turned_s, sign * ppm * 1e3)
        host.run(turned_s + 30.0)
        assert host.outside == [], seed
        assert host.disrupted_s < turned_s + 5.0
        assert host.held_s < turned_s + 10.0
        assert host.fleet.page.status == ClockStatus.SYNCHRONIZED
        assert host.fleet.page.disruptions <= (2 if ppm > 70 else 0)
        assert host.fleet.page.at(host.clock.cross_timestamp(host.t_s).raw_ns).bound_ns < 2_500


@pytest.mark.parametrize(
    "by_ns", [-S // 2, S // 2, -1_000_000, 1_000_000, -60_000, 60_000, -3_600 * S, 3_600 * S]
)
def test_a_step(by_ns: int) -> None:
    """Readers see nothing of it, but for the status, which is DISRUPTED until the next correction."""
    for seed in range(8):
        host = synced(seed)
        stepped_s = host.t_s
        host.clock.step(stepped_s, by_ns)
        host.run(stepped_s + 15.0)
        assert host.outside == [], seed
        assert stepped_s <= host.disrupted_s < stepped_s + 4.0
        assert host.held_s < stepped_s
        assert host.fleet.page.disruptions == 1
        assert host.fleet.page.status == ClockStatus.SYNCHRONIZED


@pytest.mark.parametrize("seed", seeds(40, quick=12))
def test_whatever_happens(seed: int) -> None:
    """Turns of 0.1 to 1,000 ppm, for a moment or for good, and steps of both signs, some within one interval."""
    host, chance = synced(seed), random.Random(1_000 + seed)
    for _ in range(25):
        if chance.random() < 0.3:
            host.clock.step(host.t_s, chance.choice([-1, 1]) * 10 ** chance.uniform(2, 9.5))
        else:
            host.clock.turn(host.t_s, chance.choice([-1, 1]) * 10 ** chance.uniform(2, 6))
        host.run(host.t_s + chance.choice([0.03, 0.1, 0.4, 1.0, 3.0, 8.0, 15.0]))
    assert host.outside == []
    quiet_s = host.t_s
    host.run(quiet_s + 25.0)
    assert host.outside == []
    assert max(host.disrupted_s, host.held_s) < quiet_s + 12.0
    assert host.fleet.page.status == ClockStatus.SYNCHRONIZED


def test_a_daemon_that_steers_all_the_time_costs_nothing() -> None:
    """chronyd that follows a good source changes the rate by parts of a ppm, every few seconds."""
    host, chance = synced(1), random.Random(2)
    before = host.fleet.page.disruptions, host.fleet.breaks
    for _ in range(30):
        host.clock.turn(host.t_s, -host.clock.turned_ppb + chance.uniform(-200, 200))
        host.run(host.t_s + chance.uniform(1.0, 8.0))
    assert host.outside == []
    assert (host.fleet.page.disruptions, host.fleet.breaks) == before
    assert host.held_s < 10.0


@pytest.mark.parametrize("ppm", [0.0, 5.0, -60.0, 300.0, -1_000.0])
def test_stamps_of_the_host_clock_are_converted_again_as_soon_as_the_turn_is_known(ppm: float) -> None:
    """From the second look after it on: within the bound of the stamp, for stamps from then on."""
    for seed in range(5):
        host = synced(seed)
        turned_s = host.t_s
        host.clock.turn(turned_s, ppm * 1e3)
        host.run(turned_s + 0.8)
        for t_s in np.arange(host.t_s, host.t_s + 6.0, 0.1):
            stamp = host.clock.cross_timestamp(t_s)
            shown = host.fleet.page.convert(stamp.host_ns)
            assert abs(shown.fleet_ns - START_NS - round(t_s * S)) <= shown.bound_ns
            host.run(t_s + 0.1)
            late = host.fleet.page.convert(
                stamp.host_ns
            )  # a stamp is a little older than the page that converts it
            assert abs(late.fleet_ns - START_NS - round(t_s * S)) <= late.bound_ns
        assert host.fleet.page.host_bound_ns < 300


def test_the_line_is_as_good_as_its_readings() -> None:
    """Readings that err by 10 ns: the line by less, its rate by some ppb; a pause of 10 s changes nothing."""
    clock = SteeredClock(random.Random(3))
    line = HostClockModel.start(clock.cross_timestamp(0.0), 7 * S)
    for tick in range(1, 60):
        change = line.observe(clock.cross_timestamp(tick / 4))
        assert change == HostChange.NONE
    assert line.observe(clock.cross_timestamp(25.0)) == HostChange.NONE
    assert line.bend().rate_ppb < 50
    exact = clock.cross_timestamp(25.2, 0.0)
    assert abs(line.raw_ns(exact.host_ns) - exact.raw_ns) < 50
    assert abs(line.line.rate_ppt) < 20_000


@pytest.mark.parametrize("by_ns", [-700 * 10**6, 700 * 10**6])
def test_stamps_of_before_a_step_go_by_the_clock_of_then(by_ns: int) -> None:
    """Stamps are some 10 ms old when they are converted; those of before a step are of the clock as it was."""
    host = synced(4)
    host.run(12.0)
    old = host.clock.cross_timestamp(11.7)
    host.clock.step(12.1, by_ns)
    host.run(12.6)
    stamps = [(11.7, old)] if by_ns > 0 else []  # after a step back the same stamps come again
    stamps += [(t, host.clock.cross_timestamp(t)) for t in (12.3, 12.5)]
    for t_s, stamp in stamps:
        shown = host.fleet.page.convert(stamp.host_ns)
        assert abs(shown.fleet_ns - START_NS - round(t_s * S)) < 3_000


def test_turns_and_steps_are_told_apart() -> None:
    """What goes on in the next interval was a turn."""
    for ppm, steps in ((60, 0), (300, 1), (-1_000, 1)):
        clock = SteeredClock(random.Random(5))
        line = HostClockModel.start(clock.cross_timestamp(0.0), 7 * S)
        changes = [line.observe(clock.cross_timestamp(tick / 4)) for tick in range(1, 20)]
        clock.turn(4.80, ppm * 1e3)
        changes += [line.observe(clock.cross_timestamp(tick / 4)) for tick in range(20, 60)]
        assert changes.count(HostChange.STEP) == steps
        broken = [c != HostChange.NONE for c in changes]
        assert [k for k, _ in itertools.groupby(broken)] == [False, True, False], "it is learned at once"
        assert sum(broken) <= 2
