"""ClockBound's clients map the segment once and keep it: a restart of the sidecar must not leave them behind."""

import mmap
from itertools import pairwise
from pathlib import Path
from typing import Any

from fabricpulse.clocksync.clock.fleet_clock import FleetClock, FleetClockParameters
from fabricpulse.clocksync.outputs.clockbound import (
    GENERATION_OFFSET,
    MAGIC,
    SEGMENT,
    VERSION,
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


def test_a_writer_that_died_in_the_middle_is_repaired(tmp_path: Path) -> None:
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
    assert Client(path).generation == 4


class RecordingMap(bytearray):
    """Stands in for the mapping, and records what each assignment left for readers to see."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.states = [bytes(content)]

    def __setitem__(self, where: Any, what: Any) -> None:
        super().__setitem__(where, what)
        self.states.append(bytes(self))


def test_a_client_may_open_the_segment_in_the_middle_of_an_update(tmp_path: Path) -> None:
    """After each write to memory: the head is whole and no generation 0; the body changes while it is odd only."""
    path = tmp_path / "shm0"
    writer = ClockBoundWriter(path)
    content = path.read_bytes()
    memory = RecordingMap(content)
    writer._map = memory  # type: ignore[assignment]
    for bound_ns in (100, 200, 300):
        writer.write(data(bound_ns))
    head, body = slice(0, GENERATION_OFFSET), slice(GENERATION_OFFSET + 2, None)
    # All that changed was written by assignments, which are recorded: not by pack_into, which clears first.
    assert memory.states[-1] == bytes(memory) != content
    for before, state in pairwise(memory.states):
        generation = int.from_bytes(state[GENERATION_OFFSET : GENERATION_OFFSET + 2], "little")
        assert state[head] == content[head] == SEGMENT.pack(*MAGIC, SEGMENT.size, VERSION, *[0] * 10)[head]
        assert generation != 0
        assert state[body] == before[body] or generation % 2 == 1


def test_a_segment_has_its_head_before_it_has_its_name(tmp_path: Path) -> None:
    """A client that opens the new file before the first update reads "unknown", and is not refused."""
    path = tmp_path / "shm0"
    ClockBoundWriter(path)
    fields = SEGMENT.unpack(path.read_bytes())
    assert fields[:5] == (*MAGIC, SEGMENT.size, VERSION, 2)
    assert fields[12] == 0
