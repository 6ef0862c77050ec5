"""A look at both clocks of a host is not misled by readings that were disturbed."""

import time
from collections.abc import Iterator

import pytest

from fabricpulse.clocksync.sidecar.host_clock import HostClock

_AHEAD_NS = 1_700_000_000_000_000_000


class Clocks:
    """The kernel's clocks, whose calls take what a test says. stepped_ns : of the host clock, when `step_at` calls of
    it were made.
    """

    def __init__(self, cold: int, step_at: int = 10**9, stepped_ns: int = 0) -> None:
        self.raw_ns, self.cold, self.step_at, self.stepped_ns = 10**12, cold, step_at, stepped_ns
        self.reads = 0

    def read(self, clock: int) -> int:
        if clock == time.CLOCK_REALTIME:
            self.reads += 1
            # A cold call takes long before it has its value; a warm one reads in the middle.
            self.raw_ns += 400 if self.reads <= self.cold else 40
            shown = self.raw_ns + _AHEAD_NS + (self.stepped_ns if self.reads >= self.step_at else 0)
            self.raw_ns += 40
            return shown
        self.raw_ns += 20
        shown = self.raw_ns
        self.raw_ns += 20 + self.reads % 5
        return shown


def _look(monkeypatch: pytest.MonkeyPatch, clocks: Clocks) -> int:
    """How far from the truth a look is."""
    monkeypatch.delenv("FABRICPULSE_VIRTUAL_CLOCK", raising=False)
    host = HostClock()
    monkeypatch.setattr(time, "clock_gettime_ns", clocks.read)
    look = host.instant()
    return look.host_ns - look.raw_ns - _AHEAD_NS


@pytest.fixture(params=[0, 10, 60, 95])
def cold(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many readings find cold caches."""
    yield request.param


def test_slow_readings_have_no_say(monkeypatch: pytest.MonkeyPatch, cold: int) -> None:
    assert abs(_look(monkeypatch, Clocks(cold))) <= 3


@pytest.mark.parametrize("stepped_ns", [-1_000_000_000, -1_000, 1_000, 50_000_000])
def test_a_step_amid_the_readings_gives_a_moment_of_before_or_after(
    monkeypatch: pytest.MonkeyPatch, stepped_ns: int
) -> None:
    error = _look(monkeypatch, Clocks(0, step_at=50, stepped_ns=stepped_ns))
    assert min(abs(error), abs(error - stepped_ns)) <= 3
