"""Readers in another time namespace than the sidecar's, whose CLOCK_MONOTONIC_RAW is another clock."""

import subprocess
import sys
from pathlib import Path

import pytest

from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClock, FleetClockParameters
from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.core.shm.clock_page import ClockPageWriter

ROOT = Path(__file__).parents[3]
PYTHON = """
import sys
from pathlib import Path
from fabricpulse.core.shm.clock_page import ClockPageReader
print(ClockPageReader(Path(sys.argv[1])).now())
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Of a sidecar that is synchronized."""
    clock = HostClock()
    now = clock.cross_timestamp()
    fleet = FleetClock.start(FleetClockParameters(), now)
    ClockPageWriter(tmp_path / "clock").write(fleet.correct(now, Correction(now.host_ns, 0, 0.0, 1_000)))
    return tmp_path / "clock"


@pytest.mark.root
@pytest.mark.parametrize("seconds", [5, -5])
def test_a_reader_in_another_time_namespace_is_refused(page: Path, tmp_path: Path, seconds: int) -> None:
    """Not 5 s ahead within 7 us: refused, in C and in Python, with a reason; the same programs read it outside."""
    source, include = ROOT / "tests" / "native" / "clocks" / "clock_convert.c", ROOT / "core" / "include"
    subprocess.run(["cc", "-std=gnu11", f"-I{include}", source, "-o", tmp_path / "reader"], check=True)
    unshare = ["unshare", "--time", "--monotonic", str(seconds), "--fork"]
    readers: list[tuple[list[str | Path], str]] = [
        ([tmp_path / "reader", page], "Operation not supported"),
        ([sys.executable, "-Ic", PYTHON, page], "another time namespace"),
    ]
    for reader, reason in readers:
        inside = subprocess.run([*unshare, *reader], capture_output=True, text=True, check=False)
        outside = subprocess.run(reader, capture_output=True, text=True, check=False)
        assert inside.returncode != 0
        assert reason in inside.stderr
        assert outside.returncode == 0, outside.stderr
