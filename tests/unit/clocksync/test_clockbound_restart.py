"""ClockBound's clients map the segment once and keep it: a restart of the sidecar must not leave them behind."""

import mmap
from pathlib import Path

from fabricpulse.clocksync.clock.fleet_clock import FleetClock, FleetClockParameters
from fabricpulse.clocksync.outputs.clockbound import (
    GENERATION_OFFSET,
    SEGMENT,
    ClockBoundData,
    ClockBoundWriter,
)
from fabricpulse.clocksync.outputs.config import OutputsConfig
from fabricpulse.clocksync.outputs.outputs import Outputs
from fabricpulse.clocksync.sidecar.host_clock import HostClock

BOUND = 9  # of the fields of SEGMENT


def data(bound_ns: int) -> ClockBoundData:
    return ClockBoundData(1, 2, bound_ns, 0, 1, 1)


class Client:
    """As a client that has been running for long: its mapping is that of its start."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), SEGMENT.size, prot=mmap.PROT_READ)

    @property
    def generation(self) -> int:
        return int.from_bytes(self._map[GENERATION_OFFSET : GENERATION_OFFSET + 2], "little")

    @property
    def bound_ns(self) -> int:
        return int(SEGMENT.unpack(self._map[:])[BOUND])


def test_a_client_goes_on_with_the_segment_of_the_next_writer(tmp_path: Path) -> None:
    """It sees what the new writer says, and the generation goes on, so that it looks."""
    ClockBoundWriter(tmp_path / "shm0").write(data(100))
    client = Client(tmp_path / "shm0")
    before = client.generation
    ClockBoundWriter(tmp_path / "shm0").write(data(200))
    assert client.bound_ns == 200
    assert client.generation == before + 2


def test_a_writer_that_died_in_the_middle_is_mended(tmp_path: Path) -> None:
    """The odd generation that it left becomes even when the segment is whole again."""
    path = tmp_path / "shm0"
    ClockBoundWriter(path).write(data(100))
    with path.open("r+b") as file:
        file.seek(GENERATION_OFFSET)
        file.write((7).to_bytes(2, "little"))
    ClockBoundWriter(path).write(data(200))
    assert (Client(path).generation, Client(path).bound_ns) == (8, 200)


def test_what_is_no_segment_is_replaced(tmp_path: Path) -> None:
    """Another version, or a file of somebody else, is not written into."""
    path = tmp_path / "shm0"
    path.write_bytes(bytes(SEGMENT.size))
    other = Client(path)
    ClockBoundWriter(path).write(data(200))
    assert other.bound_ns == 0
    assert Client(path).bound_ns == 200


def test_a_segment_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    """At the next look, for clients that start then."""
    path = tmp_path / "shm0"
    outputs = Outputs(OutputsConfig(clockbound=str(path)))
    clock = HostClock()
    page = FleetClock.start(FleetClockParameters(), clock.cross_timestamp()).page
    outputs.publish(page, clock.cross_timestamp(), 1_000)
    path.unlink()
    outputs.publish(page, clock.cross_timestamp(), 1_000)
    assert Client(path).generation == 2
