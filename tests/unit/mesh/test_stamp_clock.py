"""The stamp clock: whatever is done to the host clock, what is stamped with it is on the raw clock, or given up."""

import random

import pytest

from fabricpulse.mesh._probe_engine import StampClock

S, MS = 10**9, 10**6
EPOCH = 1_700_000_000 * S
TICK_NS = 5 * MS


class Host:
    """A host clock over a raw clock that is the truth. Ticks are 3.75 to 6.25 ms apart, readings err by 8 ns."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stamps = StampClock(EPOCH)
        self.raw, self.since = 50 * S, 50 * S
        self.ahead, self.rate_ppb = EPOCH, 20_000.0
        self.converted = self.given_up = 0
        self.worst = 0

    def host(self, raw: int) -> int:
        return raw + self.ahead + round((raw - self.since) * self.rate_ppb * 1e-9)

    def steer(self, by_ppb: float, step_ns: int = 0) -> None:
        """At once."""
        self.ahead += round((self.raw - self.since) * self.rate_ppb * 1e-9) + step_ns
        self.since, self.rate_ppb = self.raw, self.rate_ppb + by_ppb

    def tick(self) -> bool:
        """What packets were stamped with meanwhile, and one shortly after the reading."""
        begin, length = self.raw, round(TICK_NS * self.random.uniform(0.75, 1.25))
        stamped = []
        for raw in sorted(self.random.randrange(begin, begin + length) for _ in range(5)):
            self.raw = raw
            stamped.append((self.host(raw), raw))
        self.raw = begin + length
        held = self.stamps.observe(self.host(self.raw), self.raw + round(self.random.gauss(0, 8)), 60)
        for host, raw in [*stamped, (self.host(self.raw + 100_000), self.raw + 100_000)]:
            self._check(host, raw)
        return held

    def _check(self, host: int, raw: int) -> None:
        stamp = self.stamps.from_host(host)
        if stamp == 0:
            self.given_up += 1
            return
        self.converted += 1
        self.worst = max(self.worst, abs(stamp - EPOCH - raw))

    def run(self, ticks: int) -> int:
        """How often a reading showed that the clock was steered."""
        return sum(not self.tick() for _ in range(ticks))


@pytest.mark.parametrize(
    ("steering_ppb", "every"),
    [(0.0, 1), (100.0, 200), (500.0, 3200), (500.0, 200)],
    ids=["left alone", "as phc2sys", "as chronyd", "often"],
)
def test_daemons_that_steer_gently_cost_nothing(steering_ppb: float, every: int) -> None:
    """No stamp is given up after the first two ticks, none is wrong by more than its readings."""
    host = Host(1)
    host.run(3)
    host.given_up = host.worst = 0
    for tick in range(3200):
        if tick % every == 0:
            host.steer(host.random.choice([-1, 1]) * steering_ppb)
        assert host.tick()
    assert host.given_up == 0
    assert host.worst < 60


@pytest.mark.parametrize("ppm", [500, -500, 80_000])
def test_a_slew_costs_the_stamps_of_its_begin_and_end(ppm: int) -> None:
    """20 us at 500 ppm, as adjtime does: all stamps that are converted are right, and few are given up."""
    host = Host(2)
    host.run(100)
    host.given_up = host.worst = 0
    host.steer(ppm * 1e3)
    assert host.run(8) == 1
    host.steer(-ppm * 1e3)
    assert host.run(100) == 1
    # Of the tick in which it began a stamp after the reading is converted as before: the engine forgets those.
    assert host.given_up <= 6 * 6
    assert host.worst < 100 + 60


@pytest.mark.parametrize("step_ns", [-3_600 * S, -MS, -1_000, 1_000, MS, 3_600 * S])
def test_a_step_is_noticed_by_the_next_reading(step_ns: int) -> None:
    """Stamps of that tick are given up; a second later all is as before."""
    host = Host(3)
    host.run(50)
    host.worst = 0
    host.steer(0.0, step_ns)
    assert not host.tick()
    host.run(3)
    host.given_up = 0
    assert host.run(200) == 0
    assert host.given_up == 0
    assert host.worst < 60


@pytest.mark.parametrize("after_ns", [0, 50_000, 6 * MS, 19 * MS])
@pytest.mark.parametrize("step_ns", [-3_600 * S, -MS, -1_000, 0, 1_000, MS, 3_600 * S])
def test_a_step_is_seen_before_the_next_reading(step_ns: int, after_ns: int) -> None:
    """By what both clocks show then; nothing is entered."""
    host = Host(6)
    host.run(50)
    host.raw += after_ns
    host.steer(0.0, step_ns)
    assert host.stamps.holds(host.host(host.raw), host.raw, 60) == (step_ns == 0)
    # An interrupted reading says less, by its width.
    assert host.stamps.holds(host.host(host.raw), host.raw, 5_000) == (abs(step_ns) <= 5_000)


def test_before_two_readings_nothing_holds() -> None:
    host = Host(7)
    for _ in range(3):
        assert not host.stamps.holds(host.host(host.raw), host.raw, 60)
        host.tick()
    assert host.stamps.holds(host.host(host.raw), host.raw, 60)


def test_an_interrupted_reading_is_not_taken() -> None:
    """It is 50 us wide, and wrong by that: what is converted is not."""
    host = Host(4)
    host.run(50)
    host.worst = 0
    for _ in range(20):
        assert host.stamps.observe(host.host(host.raw), host.raw + 50_000, 50_000)
        assert host.run(5) == 0
    assert host.worst < 60


def test_stamps_that_are_too_old_or_too_new_are_given_up() -> None:
    """Seconds: a driver that reports late, or another clock."""
    host = Host(5)
    assert host.stamps.from_host(host.host(host.raw)) == 0
    host.run(100)
    for away in (-3_600 * S, -5 * S, 30 * MS, 3_600 * S):
        assert host.stamps.from_host(host.host(host.raw) + away) == 0


@pytest.mark.parametrize(
    ("earlier_ns", "agrees"),
    [(-MS, False), (-20_000, False), (-500, True), (0, True), (5 * MS, True), (11 * MS, False), (S, False)],
)
@pytest.mark.parametrize("steered", [False, True])
def test_the_stamp_of_a_nic_is_before_that_of_the_kernel(
    earlier_ns: int, agrees: bool, steered: bool
) -> None:
    """Else it is by another clock. Seen while the host clock is steered, too."""
    host = Host(1)
    host.run(100)
    if steered:
        host.steer(5_000)
        host.run(1)
    kernel = host.raw - 3 * MS
    assert host.stamps.agrees(host.host(kernel), EPOCH + kernel - earlier_ns, 300) == agrees
