"""The clock of a NIC: whatever a daemon does to it, a stamp is on the raw clock within its bound, or given up."""

import random
from collections.abc import Callable

import pytest

from fabricpulse.mesh._probe_engine import PhcLine

S, MS, US = 10**9, 10**6, 10**3
LEARNED = 16


class Phc:
    """A PHC, rates in ppb; the raw clock is the truth. `widths` : ns before and after the moment it is read at."""

    def __init__(self, seed: int, widths: Callable[[random.Random], tuple[int, int]]) -> None:
        self.random = random.Random(seed)
        self.widths = widths
        self.line = PhcLine()
        self.raw = self._since = 1000 * S
        self._from = 0
        self.rate_ppb = self.random.uniform(-100_000, 100_000)
        self.next_update = 0
        self.converted = self.given_up = self.lost = 0
        self.worst_excess = -(10**12)
        self.errors: list[int] = []
        self.bounds: list[int] = []

    def show(self, raw: int) -> int:
        return (
            1_700_000_000 * S
            + self._from
            + raw
            - self._since
            + round((raw - self._since) * self.rate_ppb * 1e-9)
        )

    def steer(self, by_ppb: float, step_ns: int = 0) -> None:
        gone = self.raw - self._since
        self._from += gone + round(gone * self.rate_ppb * 1e-9) + step_ns
        self._since, self.rate_ppb = self.raw, self.rate_ppb + by_ppb

    def read(self) -> None:
        before, after = self.widths(self.random)
        if not self.line.observe(self.show(self.raw), self.raw - before, self.raw + after):
            self.lost += 1

    def tick(self, steer: Callable[["Phc"], None] | None = None) -> None:
        """Reads, sends, reads; 20 ms later reads, then converts all stamps since, and one that is just now."""
        self.raw += self.random.randrange(50 * US)
        self.read()
        self.raw += self.random.randrange(100 * US, MS)
        stamps = [(self.show(self.raw), self.raw)]
        self.raw += self.random.randrange(10 * US, 200 * US)
        self.read()
        end = self.raw + self.random.randrange(15 * MS, 25 * MS)
        events = [(self.random.randrange(self.raw, end), "stamp") for _ in range(4)]
        if steer is not None and self.raw >= self.next_update:
            events.append((self.random.randrange(self.raw, end), "steer"))
            self.next_update = end + 63 * MS
        for raw, kind in sorted(events):
            self.raw = raw
            if kind == "steer" and steer is not None:
                steer(self)
            else:
                stamps.append((self.show(raw), raw))
        self.raw = end
        self.read()
        stamps += [(self.show(self.raw + after), self.raw + after) for after in (50 * US, 900 * US)]
        for stamp, raw in stamps:
            self._check(stamp, raw)

    def _check(self, stamp: int, raw: int) -> None:
        converted, bound = self.line.from_phc(stamp)
        if bound == 0:
            self.given_up += 1
            return
        self.converted += 1
        self.worst_excess = max(self.worst_excess, abs(converted - raw) - bound)
        self.errors.append(abs(converted - raw))
        self.bounds.append(bound)


def pcie(rand: random.Random) -> tuple[int, int]:
    """A read over the bus of 400 ns and more; the register is read anywhere in it."""
    width = 400 + round(rand.expovariate(1 / 40))
    before = rand.randrange(width + 1)
    return before, width - before


def precise(rand: random.Random) -> tuple[int, int]:
    return rand.randrange(9), rand.randrange(9)


def one_sided(rand: random.Random) -> tuple[int, int]:
    return (380 + rand.randrange(20), rand.randrange(20))


WIDTHS = [pcie, precise, one_sided]


def servo(phc: Phc) -> None:
    """What ptp4l does: mostly small changes, now and then a large one, back to within what hardware can."""
    size = 10 ** phc.random.uniform(0, 5.5)
    change = phc.random.choice((-1, 1)) * size
    if abs(phc.rate_ppb + change) > 900_000:
        change = -phc.rate_ppb
    phc.steer(change)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("seed", range(12))
def test_a_bound_is_never_exceeded_while_a_daemon_steers(
    seed: int, widths: Callable[[random.Random], tuple[int, int]]
) -> None:
    phc = Phc(seed, widths)
    often = 10 ** phc.random.uniform(-2, 0)
    for _ in range(400):
        phc.tick(servo if phc.random.random() < often else None)
    assert phc.worst_excess <= 0


@pytest.mark.parametrize("widths", WIDTHS)
def test_a_phc_that_is_left_alone_is_known_better_than_one_reading_says(
    widths: Callable[[random.Random], tuple[int, int]],
) -> None:
    """Readings are smoothed; a read that is late by the same each time cannot be seen, and is in the bound."""
    phc = Phc(1, widths)
    for _ in range(400):
        phc.tick()
    assert phc.lost == 0
    assert phc.given_up < 10 * LEARNED
    assert phc.worst_excess <= 0
    middle = 5 if widths is precise else 60
    late = 200 if widths is one_sided else 0
    assert sorted(phc.errors)[len(phc.errors) // 2] <= middle + late


def test_gentle_steering_costs_no_stamps() -> None:
    """20 ppb up or down each 63 ms, as ptp4l does once it has locked."""
    phc = Phc(2, pcie)
    for _ in range(400):
        phc.tick(lambda one: one.steer(one.random.choice((-20, 20))))
    assert (phc.lost, phc.worst_excess <= 0) == (0, True)
    assert phc.given_up < 10 * LEARNED


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("step_ns", [-S, -20 * US, 20 * US, 37 * S])
def test_what_is_stamped_around_a_step_is_given_up(
    step_ns: int, widths: Callable[[random.Random], tuple[int, int]]
) -> None:
    """The reading after it says so, and then nothing is converted until the line is known again."""
    phc = Phc(3, widths)
    for _ in range(200):
        phc.tick()
    assert phc.line.good
    phc.steer(0, step_ns)
    phc.raw += 20 * MS
    phc.read()
    assert (phc.lost, phc.line.good) == (1, False)
    assert phc.line.from_phc(phc.show(phc.raw - MS)) == (0, 0)
    for _ in range(200):
        phc.tick()
    assert (phc.lost, phc.line.good, phc.worst_excess <= 0) == (1, True, True)


@pytest.mark.parametrize(
    "rate", [0.0, 2.5, 1.01, -1.0], ids=["still", "as e1000e of QEMU", "1 % fast", "backward"]
)
def test_what_does_not_run_like_a_clock_is_never_used(rate: float) -> None:
    line, now = PhcLine(), 5 * S
    for _ in range(5000):
        now += 7 * MS
        line.observe(round(now * rate), now - 200, now + 200)
        assert not line.good
        assert line.from_phc(round(now * rate)) == (0, 0)


def test_one_that_is_stepped_again_and_again_is_trusted_ever_later() -> None:
    phc = Phc(4, pcie)
    converted = []
    for _ in range(4):
        before = phc.converted
        for _ in range(100):
            phc.tick()
        converted.append(phc.converted - before)
        phc.steer(0, MS)
    assert converted[0] > converted[1] > converted[2] > converted[3] == 0


def test_a_pause_is_no_fault_of_the_clock() -> None:
    """The engine stood still for 2 s: the line is learned anew, as quickly as at first."""
    phc = Phc(6, pcie)
    for _ in range(200):
        phc.tick()
    stamp = phc.show(phc.raw + S)
    phc.raw += 2 * S
    phc.read()
    assert (phc.lost, phc.line.good, phc.line.from_phc(stamp)) == (0, False, (0, 0))
    for _ in range(LEARNED):
        phc.tick()
    assert (phc.lost, phc.line.good, phc.worst_excess <= 0) == (0, True, True)


def test_readings_that_were_interrupted_are_not_taken() -> None:
    """The program lost the processor within one of them: 300 us wide, and of no use."""
    phc = Phc(5, pcie)
    for tick in range(300):
        phc.widths = (lambda _: (250 * US, 50 * US)) if tick % 7 == 0 else pcie
        phc.tick()
    assert (phc.lost, phc.line.good, phc.worst_excess <= 0) == (0, True, True)
    assert max(phc.bounds) < 8 * US
