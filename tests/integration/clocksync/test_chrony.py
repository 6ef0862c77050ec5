"""A real chronyd that is given fleet time follows it."""

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations_with_replacement
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.bench.clocksync.peers import ChronyTracking, build_preload
from tests.fixtures.debian_tool import debian_tool
from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.daemons import Daemons, all_have, read
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.clocksync.outputs.chrony_refclock import SHM_KEY, NtpShm, ShmTime
from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.core.shm.clock_page import ClockStatus

TraceFunction = Any  # what sys.settrace takes, and returns for each frame

pytestmark = pytest.mark.root

HOSTS = ["h0", "h1"]


@pytest.fixture
def shm_unit() -> Iterator[int]:
    """A unit of NTP's shared memory that nobody has; removed at the end."""
    libc = ctypes.CDLL(None)
    unit = next(unit for unit in range(255, 2, -1) if libc.shmget(SHM_KEY + unit, 0, 0) < 0)
    yield unit
    segment = libc.shmget(SHM_KEY + unit, 0, 0)
    if segment >= 0:
        libc.shmctl(segment, 0, None)  # IPC_RMID


@pytest.fixture
def near_fleet(tmp_path: Path) -> Iterator[SyntheticFleet]:
    """Two hosts whose clocks are 1 ms apart at most: chronyd -x takes long for seconds."""
    made = SyntheticFleet(tmp_path, HOSTS, apart_ns=1_000_000)
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize("output", ["chrony_sock", "ntp_shm_unit"])
def test_chronyd_selects_fleet_time_and_agrees(
    near_fleet: SyntheticFleet, tmp_path: Path, shm_unit: int, output: str
) -> None:
    """It is chronyd's source within seconds, and what chronyd takes for the time is the page's."""
    place = tmp_path / "chrony"
    place.mkdir(mode=0o700)
    refclock = f"SOCK {place}/feed" if output == "chrony_sock" else f"SHM {shm_unit}"
    value = f"{place}/feed" if output == "chrony_sock" else shm_unit
    (place / "chrony.conf").write_text(
        f"refclock {refclock} poll 0 filter 1 precision 1e-7 refid FLT\n"
        f"port 0\ncmdport 0\nbindcmdaddress {place}/command\npidfile {place}/pid\nuser root\n"
    )
    daemons = Daemons(tmp_path, near_fleet)
    daemons.coordinator()
    daemons.sidecar("h0", settings=[f"outputs: {{{output}: {value}}}"])
    daemons.sidecar("h1")
    # On the virtual clock of h0, as the sidecar.
    environment = {**near_fleet.environment("h0"), "LD_PRELOAD": str(build_preload(tmp_path))}
    program = debian_tool("chrony", "chronyd")
    if program is None:
        pytest.skip("chronyd is not there and its package cannot be had")
    with (tmp_path / "chronyd.log").open("wb") as log:
        chronyd = subprocess.Popen(
            [program, "-x", "-d", "-f", str(place / "chrony.conf")],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(lambda: all_have(near_fleet, HOSTS, ClockStatus.SYNCHRONIZED), 15, "synchronized")
        wait_for((place / "command").exists, 5, "chronyd is up")
        tracking = ChronyTracking(place / "command")

        def apart_ns() -> float:
            """chronyd's time minus fleet time on h0; infinite while chronyd follows nothing."""
            now = HostClock().cross_timestamp()
            believed, page = tracking.offset_ns(), read(near_fleet, "h0", now.raw_ns)
            assert page is not None
            if believed is None:
                return float("inf")
            return abs(believed - (page.fleet_ns - near_fleet.clocks["h0"].from_kernel(now.host_ns)))

        wait_for(lambda: apart_ns() < 2_000, 30, "chronyd agrees within 2 us")
        chronyc = debian_tool("chrony", "chronyc")
        assert chronyc is not None, "chronyd and chronyc are of one package"
        said = subprocess.run(
            [chronyc, "-h", str(place / "command"), "-c", "tracking"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert said.split(",")[1] == "FLT", said
        tracking.close()
    finally:
        chronyd.terminate()
        daemons.stop()
        assert chronyd.wait(60) == 0, (tmp_path / "chronyd.log").read_text()


def test_a_reader_of_shared_memory_never_takes_parts_of_two_samples(shm_unit: int) -> None:
    """Every state of the segment while two samples are written, read as chronyd does: copied from one state up to some
    byte and from a later one after it, and counted in a third. What is taken always is one of the samples.
    """
    shm = NtpShm(shm_unit)
    states = [ctypes.string_at(shm._address, ctypes.sizeof(ShmTime))]

    def watch(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        if frame.f_code is not NtpShm.feed.__code__:
            return None
        frame.f_trace_opcodes = True
        if (state := ctypes.string_at(shm._address, ctypes.sizeof(ShmTime))) != states[-1]:
            states.append(state)
        return watch

    samples = [(1_700_000_000_123_456_789, 987_654_321), (1_800_000_000_999_999_999, -3)]
    for kernel_ns, offset_ns in samples:
        before = sys.gettrace()
        sys.settrace(watch)
        shm.feed(kernel_ns, offset_ns, 0)
        sys.settrace(before)
    shm.close()
    parsed = [ShmTime.from_buffer_copy(state) for state in states]
    assert len(states) >= 20, "each store is seen"
    taken = 0
    for (i, first), (j, second) in combinations_with_replacement(enumerate(states), 2):
        for split in range(0, len(first), 4) if i < j else [0]:
            t = ShmTime.from_buffer_copy(first[:split] + second[split:])
            if not t.valid or all(t.count != later.count for later in parsed[j:]):
                continue
            taken += 1
            receive_ns = t.receive_sec * 10**9 + t.receive_ns
            assert (receive_ns, t.clock_sec * 10**9 + t.clock_ns - receive_ns) in samples
            assert (t.clock_us, t.receive_us) == (t.clock_ns // 1000, t.receive_ns // 1000)
    assert taken > 0


def test_a_segment_that_is_not_ours_says_why(shm_unit: int) -> None:
    """Another size: what the kernel says is in the error."""
    libc = ctypes.CDLL(None)
    assert libc.shmget(SHM_KEY + shm_unit, 16, 0o1600) >= 0
    with pytest.raises(OSError, match="Invalid argument"):
        NtpShm(shm_unit)
