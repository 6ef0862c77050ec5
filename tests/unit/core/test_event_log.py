"""The event log: what stands in it, and what it survives."""

import errno
import json
import os
from pathlib import Path

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.core.event_log import EventLog
from fabricpulse.core.rfc3339 import rfc3339

T = 1_767_225_600_000_000_001  # 2026-01-01T00:00:00.000000001Z


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "1970-01-01T00:00:00.000000000Z"),
        (T, "2026-01-01T00:00:00.000000001Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
    ],
)
def test_time(time_ns: int, text: str) -> None:
    """UTC to the nanosecond; no float on the way. Fewer digits are the first of them."""
    assert rfc3339(time_ns) == text
    assert rfc3339(time_ns, 3) == f"{text[:23]}Z"
    assert rfc3339(time_ns, 0) == f"{text[:19]}Z"


def test_one_object_a_line(tmp_path: Path) -> None:
    """`time` and `event` come first; a text with line ends stays one line; the file goes on after a restart."""
    path = tmp_path / "events"
    for _ in range(2):
        log = EventLog(path, 10_000)
        log.append(T, "nic_down", device="eth1", message="a\nµ")
        log.close()

    assert lines(path) == [{"time": rfc3339(T), "event": "nic_down", "device": "eth1", "message": "a\nµ"}] * 2
    assert path.read_text().startswith('{"time":"2026-01-01T00:00:00.000000001Z","event":"nic_down","device"')
    with pytest.raises(ValueError, match="own time"):
        log.append(T, "nic_down", time=1)


def test_memory(tmp_path: Path) -> None:
    """The newest events are kept, oldest first, with a file or without."""
    log = EventLog(None, 0, keep=3)
    for n in range(5):
        log.append(T, "e", n=n)

    assert [event["n"] for event in log.recent()] == [2, 3, 4]
    assert [event["n"] for event in log.recent(2)] == [3, 4]
    assert log.recent(0) == []


def test_rotation(tmp_path: Path) -> None:
    """Two files hold the newest events, never more than twice the limit together, and no event is cut."""
    path, old = tmp_path / "events", tmp_path / "events.1"
    log = EventLog(path, 1_000)
    for n in range(100):
        log.append(T, "e", n=n)
        assert path.stat().st_size <= 1_000
    assert old.stat().st_size <= 1_000
    kept = [event["n"] for event in lines(old) + lines(path)]
    assert kept == list(range(100 - len(kept), 100))


def test_moved_away(tmp_path: Path) -> None:
    """logrotate moves the file: the next event makes a new one."""
    path = tmp_path / "events"
    log = EventLog(path, 10_000)
    log.append(T, "first")
    path.rename(tmp_path / "old")
    log.append(T, "second")

    assert [event["event"] for event in lines(path)] == ["second"]


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Lines are lost, counted and logged once; no partial line stays; writing resumes when there is room again."""
    path = tmp_path / "events"
    log = EventLog(path, 10_000)
    log.append(T, "before")
    write = os.write
    answers: list[int | OSError] = [5, 0, OSError(errno.ENOSPC, "No space left on device")]

    def full(descriptor: int, data: bytes) -> int:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return write(descriptor, data[:answer])

    monkeypatch.setattr(os, "write", full)
    for _ in range(3):
        log.append(T, "lost")
    monkeypatch.undo()
    with caplog.at_level("INFO"):
        log.append(T, "after")

    assert [event["event"] for event in lines(path)] == ["before", "after"]
    assert log.lost == 3
    assert [record.message for record in caplog.records] == [
        "event log cannot be written",
        "event log is written again",
    ]
    assert vars(caplog.records[1])["fields"]["lost"] == 3


@pytest.mark.parametrize("trap", ["link", "fifo", "directory", "no folder"])
def test_traps(tmp_path: Path, trap: str) -> None:
    """What is no regular file is refused at the start, and does not stop the daemon later."""
    path = tmp_path / "events"
    victim = tmp_path / "victim"
    victim.write_text("")
    if trap == "link":
        path.symlink_to(victim)
    elif trap == "fifo":
        os.mkfifo(path)
    elif trap == "directory":
        path.mkdir()
    else:
        path = tmp_path / "no" / "events"
    log = EventLog(path, 10_000, keep=1)
    with pytest.raises(UserError, match=r"set event_log\.path to a regular file"):
        log.check("event_log.path")
    log.append(T, "kept")

    assert log.lost == 1
    assert log.recent()[0]["event"] == "kept"
    assert victim.read_text() == ""
