"""Somebody steps and slews a host's clock under its sidecar, watched by a C reader that does nothing else."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.daemons import HOSTS, Daemons, Watch, all_have
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockPageReader, ClockPageWriter, ClockStatus
from fabricpulse.lab.demo.lateness import longest_wait_s, run_queue_waits

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
    source = ROOT / "tests" / "native" / "clocks" / "clock_watch.c"
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


@pytest.mark.parametrize("ppm", [450, pytest.param(-200, marks=pytest.mark.slow)])
def test_slews_and_steps_of_a_host_clock_do_not_touch_fleet_time(
    fleet: SyntheticFleet, synchronized: Daemons, reader: Path, ppm: int
) -> None:
    """Slewed for good, half a second back, and forth: no read runs backward, leaves the bounds or says anything but
    synchronized. While a sidecar waits for a core in the middle of putting a new line in force, nothing is known; while
    its heartbeat waits, it is as good as dead."""
    watch = Watch(fleet)
    pids = [synchronized.running[host].pid for host in ("h2", "h0")]
    waits = [run_queue_waits(pid) or {} for pid in pids]
    tight = TightReader(reader, fleet, "h2", "h0", seconds := 6)
    # Of reading a clock that nobody touches, so that all of it lies within the reader's time.
    time.sleep(0.5)
    fleet.steer_clock("h2", ppm * 1_000)
    watch.run(2, 1_000_000)
    for by_ns in (-500_000_000, 500_000_000):
        fleet.step_clock("h2", by_ns)
        watch.run(1.25, 1_000_000)
    statuses = tight.check()
    assert {status for status, reads in statuses.items() if reads} <= {
        ClockStatus.SYNCHRONIZED,
        ClockStatus.HOLDOVER,
        ClockStatus.UNKNOWN,
    }
    waited_s = sum(
        longest_wait_s(before, run_queue_waits(pid) or {}) for pid, before in zip(pids, waits, strict=True)
    )
    other = statuses[ClockStatus.UNKNOWN] + statuses[ClockStatus.HOLDOVER]
    assert seconds * other / sum(statuses.values()) <= waited_s
    # A slew of more than 20 us between two samples counts as one.
    assert synchronized.metrics("h2")["fabricpulse_clock_host_steps_total"] == 3


def test_a_reader_outlives_the_sidecar_and_the_file(fleet: SyntheticFleet, synchronized: Daemons) -> None:
    """A page that is open goes on with the next sidecar, without a jump; one that somebody removed is there again."""
    page = fleet.directory / "h3" / "clock"
    reader = ClockPageReader(page, fleet.clocks["h3"])
    watch = Watch(fleet)
    synchronized.kill("h3")
    # As if it had been killed the moment before the next one reads what it left, however long that takes to start.
    left = reader.read()
    ClockPageWriter(page).write(left._replace(valid_until_raw_ns=left.valid_until_raw_ns + 300 * 10**9))
    # Nobody answers: until then it has what the page says, and nothing else.
    (fleet.directory / "h3" / "clocksync-neighbours.json").unlink()
    relay = synchronized.relay()
    relay.cut()
    synchronized.sidecar("h3", relay)
    watch.until(lambda: reader.now().status == ClockStatus.HOLDOVER, 10, "the next sidecar goes on")
    relay.heal()
    watch.until(lambda: reader.now().status == ClockStatus.SYNCHRONIZED, 20, "and synchronizes")
    assert not reader.stale()
    reader.close()

    page.unlink()
    wait_for(page.exists, 3, "there is a page again")
    reader = ClockPageReader(page, fleet.clocks["h3"])
    wait_for(lambda: reader.now().status == ClockStatus.SYNCHRONIZED, 3, "the new page has fleet time")
    reader.close()
    assert "clock page was deleted; recreated" in synchronized.log("h3")
