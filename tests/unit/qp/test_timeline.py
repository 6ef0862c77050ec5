"""What single processes did lately: whole entries only, oldest first, on fleet time where there was any."""

from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.plugin.telemetry_file import CAPACITY, TelemetryFile

from fabricpulse.core.shm.mapping import LayoutError
from fabricpulse.plugin_ipc.telemetry import PluginTelemetryReader, Table
from fabricpulse.plugin_ipc.telemetry_folder import TelemetryFolder, monotonic_s
from fabricpulse.plugin_ipc.timeline import Change, HostTimeline, Operation
from fabricpulse.qp import timeline
from fabricpulse.qp.timeline import host_timeline

T0 = 1_700_000_000_000_000_000


def timeline_of(folder: Path, since_ns: int = 0) -> HostTimeline:
    files = TelemetryFolder(folder, 60)
    files.poll(monotonic_s())
    return host_timeline("h0", files.rings("train-7"), since_ns)


def ended(file: TelemetryFile, index: int, **fields) -> None:
    defaults = {"communicator": 171, "number": index, "function": b"AllReduce", "rank": 3, "bytes": 64}
    defaults |= {"end_host_ns": T0 + index, "took_ns": 10}
    file.enter(Table.OPERATIONS, index, **(defaults | fields))


def test_entries_of_a_process(tmp_path: Path) -> None:
    """Collectives and changes with their names; fleet time where the plugin had it, else the host's clock, marked."""
    file = TelemetryFile(tmp_path, rank=3)
    TelemetryFile(tmp_path, 1, "another job").enter(Table.OPERATIONS, 0, end_host_ns=T0)
    ended(file, 0)
    ended(file, 1, end_fleet_ns=T0 + 500, fleet_bound_ns=40)
    file.enter(
        *(Table.EVENTS, 0),
        kind=2,
        reason=1,
        device=1,
        host_ns=T0,
        fleet_ns=T0 + 7,
        fleet_bound_ns=9,
        peer=b"h1",
        peer_device=b"rail0",
        value=5,
    )
    file.enter(Table.EVENTS, 1, kind=99, reason=98, device=2**32 - 1, host_ns=T0 + 1)
    (process,) = timeline_of(tmp_path).processes
    assert (process.workload, process.rank, process.pid) == ("train-7", 3, file.pid)
    assert process.operations == [
        Operation("ab", 0, "AllReduce", 3, T0, -1, 10, 64),
        Operation("ab", 1, "AllReduce", 3, T0 + 500, 40, 10, 64),
    ]
    assert process.changes == [
        Change("lane_down", "stall", T0 + 7, 9, "rail1", "h1", "rail0", 5),
        Change("99", "98", T0 + 1, -1, "", "", "", 0),
    ]


def test_a_ring_that_has_gone_round(tmp_path: Path) -> None:
    """The newest entries, oldest first; one that is being written is left out; older ones than asked for as well."""
    file = TelemetryFile(tmp_path)
    capacity = CAPACITY[Table.OPERATIONS]
    for index in range(capacity + 2):
        ended(file, index)
    numbers = [o.number for o in timeline_of(tmp_path).processes[0].operations]
    assert numbers == list(range(2, capacity + 2))
    file.tables[Table.OPERATIONS]["commit"][3] += 1
    assert [o.number for o in timeline_of(tmp_path).processes[0].operations] == [2, *range(4, capacity + 2)]
    assert [o.number for o in timeline_of(tmp_path, T0 + 5).processes[0].operations] == [5]


def test_an_answer_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many entries the newest, and the answer says that it is cut."""
    monkeypatch.setattr(timeline, "MOST_ENTRIES", 3)
    file = TelemetryFile(tmp_path)
    for index in range(4):
        ended(file, index)
        file.enter(Table.EVENTS, index, kind=1, host_ns=T0)
    found = timeline_of(tmp_path)
    assert found.cut
    assert [o.number for o in found.processes[0].operations] == [1, 2, 3]
    assert found.processes[0].changes == []


@pytest.mark.parametrize(
    ("field", "value"), [("capacity", 8193), ("capacity", 2**31), ("record_size", 8), ("offset", 2**62)]
)
def test_a_hostile_ring(tmp_path: Path, field: str, value: int) -> None:
    """A table that leaves the file or is absurdly long costs this process its timeline, and no other anything."""
    file = TelemetryFile(tmp_path)
    ended(file, 0)
    good = TelemetryFile(tmp_path, 4_000_000)
    ended(good, 0)
    file.header["tables"][field][0][Table.OPERATIONS] = value
    with pytest.raises(LayoutError, match="OPERATIONS does not fit"):
        PluginTelemetryReader(file.path).ring(Table.OPERATIONS)
    assert [p.pid for p in timeline_of(tmp_path).processes] == [4_000_000]


def test_a_ring_of_garbage(tmp_path: Path) -> None:
    """Any bytes at all become entries or nothing; never an error."""
    file = TelemetryFile(tmp_path)
    rng = np.random.default_rng(5)
    for _ in range(20):
        for table in (Table.EVENTS, Table.OPERATIONS):
            records = file.tables[table]
            records[:] = np.frombuffer(rng.bytes(records.nbytes), records.dtype)
            records["commit"] &= ~np.uint64(1)
        assert len(timeline_of(tmp_path).processes) == 1


def test_an_older_plugin(tmp_path: Path) -> None:
    """Without these tables there is nothing to tell, and nothing is wrong."""
    file = TelemetryFile(tmp_path)
    for table in (Table.EVENTS, Table.OPERATIONS):
        file.header["tables"][0][table] = (0, 0, 0)
    (process,) = timeline_of(tmp_path).processes
    assert (process.operations, process.changes) == ([], [])
