"""How far ranks have come, from telemetry."""

import dataclasses
from pathlib import Path

from tests.fixtures.plugin.telemetry_file import TelemetryFile

from fabricpulse.plugin_ipc.telemetry import PluginTelemetryReader, Table, TelemetrySnapshot
from fabricpulse.qp.progress import MOST_PER_OWNER, heartbeats, rank_progress


def snapshot(file: TelemetryFile) -> TelemetrySnapshot:
    reader = PluginTelemetryReader(file.path)
    try:
        return reader.read()
    finally:
        reader.close()


def collective(file: TelemetryFile, slot: int, function: str, **fields: int) -> None:
    fields = {"state": 1, "communicator": 0xC1, "rank": 3, "ranks": 8} | fields
    file.put(Table.COLLECTIVES, slot, function=function.encode(), **fields)


def test_one_sequence_a_communicator(tmp_path: Path) -> None:
    """Collectives of a communicator are summed over kinds, algorithms and protocols; sends and receives are not."""
    file = TelemetryFile(tmp_path)
    collective(file, 0, "AllReduce", operations=10, busy_ns=500, in_progress=1)
    collective(file, 1, "AllGather", operations=5, busy_ns=50)
    collective(file, 2, "Send", operations=99, busy_ns=99)
    collective(file, 3, "AllReduce", communicator=0xC2, rank=0, operations=7)
    found = rank_progress([snapshot(file)])
    assert [dataclasses.astuple(r)[1:6] for r in found] == [("c1", 3, 15, 550, 1), ("c2", 0, 7, 0, 0)]


def test_series_of_one_user_are_bounded(tmp_path: Path) -> None:
    """Whatever files say, a user gets no more ranks than that, and costs another user none."""
    file = TelemetryFile(tmp_path)
    collective(file, 0, "AllReduce", operations=1)
    one = snapshot(file)
    flood = []
    for rank in range(MOST_PER_OWNER + 50):
        collective(file, 0, "AllReduce", rank=rank, operations=rank + 2)
        flood.append(dataclasses.replace(snapshot(file), owner=1000))
    found = rank_progress([*flood, one])
    assert len(found) == MOST_PER_OWNER + 1
    assert [(r.rank, r.owner) for r in found if r.operations == 1] == [(3, one.owner)]
    assert {r.owner for r in found if r.operations > 1} == {1000}


def test_heartbeat(tmp_path: Path) -> None:
    """The age of the last sign of life; one that is ahead of now has age 0."""
    file = TelemetryFile(tmp_path, rank=4)
    read = dataclasses.replace(snapshot(file), owner=1000)
    beat_s = read.heartbeat_mono_ns * 1e-9
    (old,) = heartbeats([read], beat_s + 7.5)
    assert (old.workload, old.rank, round(old.age_s, 3), old.owner) == ("train-7", "4", 7.5, 1000)
    assert heartbeats([read], beat_s - 1)[0].age_s == 0
