"""The ClockBound client as it is published reads our segment. Needs cargo and a registry, so it is run by name only:

python -m pytest tests/peers/test_clockbound_client.py
"""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.unit.clocksync.clock.test_clock_readers import page

from fabricpulse.clocksync.outputs.clockbound import ClockBoundWriter
from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.core.shm.clock_page import ClockStatus


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in clockbound_client/, built against the published crate."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed")
    source = tmp_path_factory.mktemp("clockbound") / "client"
    shutil.copytree(Path(__file__).parent / "clockbound_client", source)
    subprocess.run(["cargo", "build", "--quiet"], cwd=source, check=True)
    return source / "target" / "debug" / "clockbound-client"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (ClockStatus.UNKNOWN, "Unknown"),
        (ClockStatus.SYNCHRONIZED, "Synchronized"),
        (ClockStatus.HOLDOVER, "FreeRunning"),
        (ClockStatus.DISRUPTED, "Disrupted"),
    ],
)
def test_the_published_client_reads_the_segment(
    tmp_path: Path, client: Path, status: ClockStatus, expected: str
) -> None:
    """It opens the segment on a host without a VMClock, and status and interval are those of the page."""
    now = HostClock().cross_timestamp()
    host = now.host_ns
    ClockBoundWriter(tmp_path / "shm0").publish(page(now, status), now, 1_000)

    result = subprocess.run(
        [str(client), str(tmp_path / "shm0")], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    word, earliest, latest = result.stdout.split()
    assert word == expected
    assert host <= (int(earliest) + int(latest)) // 2 <= time.time_ns()
    if status != ClockStatus.UNKNOWN:
        # 1 ms from fleet time, 2 us of its bound, and what both rates add in the age of the segment.
        half = (int(latest) - int(earliest)) // 2
        assert 1_002_000 <= half <= 1_002_000 + 21_251 * ((time.time_ns() - host) * 1e-9 + 0.02)
