"""Somebody steps and slews a host's clock under its sidecar, watched by a C reader that does nothing else."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.daemons import HOSTS, Daemons, Watch, all_have
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockPageReader, ClockStatus

ROOT = Path(__file__).parents[3]


class TightReader:
    """`clock_watch` on two hosts' pages for some seconds."""

    def __init__(self, binary: Path, fleet: SyntheticFleet, host: str, other: str, seconds: float) -> None:
        pages = [str(fleet.directory / name / "clock") for name in (host, other)]
        self._process = subprocess.Popen(
            [str(binary), *pages, str(seconds)], stdout=subprocess.PIPE, text=True
        )

    def check(self) -> dict[ClockStatus, int]:
        """Asserts that no read was earlier than one before it, and none outside the bounds; reads by status."""
        out, _ = self._process.communicate()
        assert self._process.returncode == 0
        reads, backward, furthest, outside, widest, *statuses = (int(word) for word in out.split())
        assert reads > 100_000
        assert backward == 0, f"{backward} times backward, by up to {furthest} ns"
        assert outside == 0, f"{outside} reads of {reads} outside both bounds, up to {widest} ns apart"
        return dict(zip(ClockStatus, statuses, strict=True))


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    target = tmp_path / "clock_watch"
    source = ROOT / "tests" / "native" / "clock_watch.c"
    include = f"-I{ROOT / 'core' / 'include'}"
    command = [
        "cc",
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        include,
        str(source),
        "-o",
        str(target),
    ]
    subprocess.run(command, check=True)
    return target


@pytest.fixture
def synchronized(fleet: SyntheticFleet, daemons: Daemons) -> Daemons:
    """Four hosts that are, and whose windows are as long as they get."""
    daemons.coordinator()
    for host in HOSTS:
        daemons.sidecar(host)
    wait_for(lambda: all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED), 20, "synchronized")
    Watch(fleet).run(6, 1_000_000)
    return daemons


def disruptions(daemons: Daemons, host: str) -> float:
    return daemons.metrics(host)["fabricpulse_clock_disruptions_total"]


# More of them in virtual time: tests/unit/clocksync/test_steered_host_clock.py.
@pytest.mark.parametrize(
    "slews", [((60, 0), (450, 1)), pytest.param(((10, 0), (-200, 1)), marks=pytest.mark.slow)]
)
def test_slews_of_a_host_clock(
    fleet: SyntheticFleet, synchronized: Daemons, reader: Path, slews: tuple[tuple[int, int], ...]
) -> None:
    """By so many ppm, for good: no read runs backward or leaves the bounds; all is well soon after, disrupted at most
    so often."""
    watch = Watch(fleet)
    for ppm, disrupted in slews:
        before = disruptions(synchronized, "h2")
        tight = TightReader(reader, fleet, "h2", "h0", 14)
        fleet.turn_clock("h2", ppm * 1_000)
        began = time.monotonic()
        while time.monotonic() - began < 12:
            watch.once()
            time.sleep(0.02)
        statuses = tight.check()
        assert statuses[ClockStatus.UNKNOWN] == 0
        assert disruptions(synchronized, "h2") - before <= disrupted
        wait_for(lambda: all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED), 5, f"synchronized after {ppm} ppm")


def test_steps_of_a_host_clock(fleet: SyntheticFleet, synchronized: Daemons, reader: Path) -> None:
    """Half a second back, and forth: readers see nothing of it but the status."""
    for by_ns in (-500_000_000, 500_000_000):
        tight = TightReader(reader, fleet, "h1", "h0", 10)
        # Of reading a clock that nobody touches, so that the step lies within the reader's time.
        time.sleep(1)
        fleet.step_clock("h1", by_ns)
        Watch(fleet).run(7, 1_000_000)
        statuses = tight.check()
        assert statuses[ClockStatus.UNKNOWN] == 0
        assert statuses[ClockStatus.DISRUPTED] > 0
        wait_for(lambda: all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED), 3, "synchronized again")


def test_a_reader_outlives_the_sidecar_and_the_file(fleet: SyntheticFleet, synchronized: Daemons) -> None:
    """A page that is open goes on with the next sidecar; one that somebody removed is there again."""
    page = fleet.directory / "h3" / "clock"
    reader = ClockPageReader(page)
    synchronized.kill("h3")
    synchronized.sidecar("h3")
    wait_for(lambda: reader.now().status == ClockStatus.HOLDOVER, 10, "the next sidecar goes on")
    wait_for(lambda: reader.now().status == ClockStatus.SYNCHRONIZED, 20, "and synchronizes")
    assert not reader.stale()
    reader.close()

    page.unlink()
    wait_for(page.exists, 3, "there is a page again")
    reader = ClockPageReader(page)
    wait_for(lambda: reader.now().status == ClockStatus.SYNCHRONIZED, 3, "the new page has fleet time")
    reader.close()
    assert "clock page was deleted; recreated" in synchronized.log("h3")
