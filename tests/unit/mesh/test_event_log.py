"""The event log: bounded in memory and on disk."""

import json
from pathlib import Path

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.mesh.event_log import EventLogWriter


def test_file_is_bounded(tmp_path):
    """Ten thousand events never take more than twice max_bytes, every line is whole, and the newest are there."""
    path = tmp_path / "events.jsonl"
    log = EventLogWriter(path, 4096, 100)
    for number in range(10_000):
        log.append({"time_ns": number, "event": "edge_down"})
    log.close()
    files = list(tmp_path.iterdir())
    assert sorted(f.name for f in files) == ["events.jsonl", "events.jsonl.1"]
    assert sum(f.stat().st_size for f in files) <= 2 * 4096
    lines = (tmp_path / "events.jsonl.1").read_text().splitlines() + path.read_text().splitlines()
    numbers = [json.loads(line)["time_ns"] for line in lines]
    assert numbers == list(range(numbers[0], 10_000))
    assert [e["time_ns"] for e in log.recent()] == list(range(9_900, 10_000))
    assert [e["time_ns"] for e in log.recent(2)] == [9_998, 9_999]


def test_it_goes_on_after_a_restart(tmp_path):
    path = tmp_path / "events.jsonl"
    for number in range(2):
        log = EventLogWriter(path, 4096, 10)
        log.append({"n": number})
        log.close()
    assert path.read_text() == '{"n":0}\n{"n":1}\n'


def test_no_place_to_write(tmp_path):
    with pytest.raises(UserError, match="cannot write the event log"):
        EventLogWriter(tmp_path / "missing" / "events", 4096, 10)


def test_a_file_that_cannot_be_rotated_costs_lines_and_nothing_else(tmp_path):
    """The name for the old file is taken; every event is kept in memory, and the file goes on once it is free."""
    path = tmp_path / "events.jsonl"
    taken = tmp_path / "events.jsonl.1"
    taken.mkdir()
    log = EventLogWriter(path, 4096, 1000)
    for number in range(200):
        log.append({"event": "stall", "number": number, "fill": "x" * 100})
    assert [event["number"] for event in log.recent()] == list(range(200))
    assert path.stat().st_size <= 4096
    taken.rmdir()
    log.append({"event": "stall", "number": 200, "fill": "x" * 100})
    log.close()
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [200]
    assert taken.is_file()


def test_a_full_disk_ends_nothing():
    log = EventLogWriter(Path("/dev/full"), 1 << 20, 10)
    log.append({"event": "stall"})
    log.append({"event": "stall"})
    log.close()
    assert len(log.recent()) == 2
