"""A reader in Python unpacks the clock page once for each update."""

from itertools import pairwise
from pathlib import Path

import pytest

from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClock, FleetClockParameters
from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.core.shm.clock_page import ClockPageReader, ClockPageWriter, ClockStatus


def test_now_follows_each_update_and_unpacks_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred readings between two updates cost one copy; the reading after an update is by the new page."""
    clock = HostClock()
    now = clock.cross_timestamp()
    fleet = FleetClock.start(FleetClockParameters(), now)
    writer = ClockPageWriter(tmp_path / "clock")
    reader = ClockPageReader(tmp_path / "clock")
    copies = 0
    take = ClockPageReader._copy_page

    def counted(self: ClockPageReader, sequence: bytes) -> bool:
        nonlocal copies
        copies += 1
        return take(self, sequence)

    monkeypatch.setattr(ClockPageReader, "_copy_page", counted)
    assert reader.now().status == ClockStatus.UNKNOWN
    for update in range(1, 4):
        writer.write(fleet.correct(clock.cross_timestamp(), Correction(now.host_ns, 0, 0.0, 1_000 * update)))
        shown = [reader.now() for _ in range(100)]
        assert copies == update
        assert all(s.status == ClockStatus.SYNCHRONIZED for s in shown)
        assert all(a.fleet_ns <= b.fleet_ns for a, b in pairwise(shown))
    reader.close()
