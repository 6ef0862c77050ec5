"""Since when a fault is known, over restarts: the true beginning, or a later one; never one that was of another."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fabricpulse.diagnosis.daemon import fault_times_file
from fabricpulse.diagnosis.daemon.fault_times import LEAF_PAUSE_S, MOST_BYTES, SUSPECT_PAUSE_S, FaultTimes
from fabricpulse.diagnosis.daemon.fault_times_file import FaultTimesFile, read_own
from fabricpulse.diagnosis.daemon.service import DiagnosisService
from fabricpulse.diagnosis.daemon.worker_messages import Answer, Declared
from fabricpulse.diagnosis.leaf_paths.found import FewerPaths, LeafPaths
from fabricpulse.diagnosis.search.suspect import Suspect

BOOT = "6f0c"
UTC_S = 1.8e9  # of the monotonic 0
LINK = Suspect("loss", "link", "leaf0", "spine1", 0.05, 0.99, 12, 1000.0, (), "")
LEAF = FewerPaths("leaf0", "rail0", 3, 4, 5, ("spine3",), 800.0, 100.0)


def leaves(*fewer: FewerPaths) -> LeafPaths:
    """Nine leaves, some of them with fewer paths."""
    return LeafPaths(9 - len(fewer), len(fewer), 0, fewer)


def kept(now_s: float, *, utc_s: float | None = None, leaf: FewerPaths = LEAF) -> bytes:
    """What a coordinator leaves that reports a link and a leaf until this moment."""
    times = FaultTimes(BOOT)
    times.follow(1)
    moment = now_s, UTC_S + now_s if utc_s is None else utc_s
    times.suspects([LINK], *moment)
    times.leaf_paths(leaves(leaf), *moment)
    return times.dump(*moment)


def started(data: bytes, now_s: float, *, boot: str = BOOT, utc_s: float | None = None) -> FaultTimes:
    """The next one."""
    times = FaultTimes(boot)
    times.load(data, now_s, UTC_S + now_s if utc_s is None else utc_s)
    times.follow(1)
    return times


def since(times: FaultTimes, now_s: float, found_s: float, utc_s: float | None = None) -> float:
    """Of the link, as it is reported, which a worker has first found at found_s."""
    found = times.suspects([replace(LINK, since_s=found_s)], now_s, UTC_S + now_s if utc_s is None else utc_s)
    return found[0].since_s


def leaf_times(times: FaultTimes, now_s: float, seen: FewerPaths) -> tuple[float | None, float]:
    """Of the leaf, as it is reported."""
    (one,) = times.leaf_paths(leaves(seen), now_s, UTC_S + now_s).leaves
    return one.since_s, one.watched_s


def new_leaf(watched_s: float, since_s: float | None = None) -> FewerPaths:
    """As a worker sees it that watches it since then."""
    return FewerPaths("leaf0", "rail0", 3, 4, 5, ("spine3",), since_s, watched_s)


def test_a_fault_that_goes_on_keeps_its_beginning() -> None:
    """Also when it is reported again and again, and kept once more."""
    times = started(kept(2000.0), 2010.0)
    assert since(times, 2030.0, 2015.0) == since(times, 2031.0, 2015.0) == 1000.0
    again = started(times.dump(2031.0, UTC_S + 2031.0), 2040.0)
    assert since(again, 2050.0, 2045.0) == 1000.0


def test_what_is_seen_again_later_is_another_fault() -> None:
    """After a pause, or after it was reported as over: between the two it may have ended."""
    times = started(kept(2000.0), 2010.0)
    found_s = 2000.0 + SUSPECT_PAUSE_S + 1.0
    assert since(times, found_s + 2.0, found_s) == found_s
    times = started(kept(2000.0), 2010.0)
    since(times, 2020.0, 2015.0)
    times.suspects([], 2021.0, UTC_S + 2021.0)
    assert since(times, 2030.0, 2029.0) == 2029.0


def test_only_the_same_component_is_the_same_fault() -> None:
    """The way back of the cable is another one."""
    times = started(kept(2000.0), 2010.0)
    other = replace(LINK, component="spine1", peer="leaf0", since_s=2012.0)
    assert times.suspects([other], 2020.0, UTC_S + 2020.0) == (other,)


def test_a_worker_that_dies_costs_no_beginning() -> None:
    """Nor a second one that dies before it has found anything."""
    times = FaultTimes(BOOT)
    times.follow(1)
    times.suspects([LINK], 2000.0, UTC_S + 2000.0)
    for worker in (2, 3):
        times.follow(worker)
        times.suspects([], 2003.0, UTC_S + 2003.0)
    assert since(times, 2030.0, 2020.0) == 1000.0


def test_a_leaf_keeps_since_when_it_has_fewer_paths() -> None:
    """Where the next worker has not seen it whole. What it has seen itself, is so."""
    times = started(kept(2000.0), 2010.0)
    assert leaf_times(times, 2100.0, new_leaf(2050.0)) == (800.0, 100.0)
    assert leaf_times(times, 2200.0, new_leaf(2050.0)) == (800.0, 100.0)
    assert leaf_times(times, 2300.0, new_leaf(2050.0, 2250.0)) == (2250.0, 2050.0)
    assert leaf_times(times, 2400.0, new_leaf(2050.0, 2250.0)) == (2250.0, 2050.0)
    never_whole = started(kept(2000.0, leaf=replace_since(None)), 2010.0)
    assert leaf_times(never_whole, 2100.0, new_leaf(2050.0)) == (None, 100.0)


def replace_since(since_s: float | None) -> FewerPaths:
    """LEAF with another time."""
    return FewerPaths("leaf0", "rail0", 3, 4, 5, ("spine3",), since_s, 100.0)


def test_of_a_leaf_that_nobody_watched_it_is_not_known() -> None:
    """For long before it was seen again, or as the worker forgot it."""
    times = started(kept(2000.0), 2010.0)
    late = new_leaf(2000.0 + LEAF_PAUSE_S + 1.0)
    assert leaf_times(times, 5000.0, late) == (None, late.watched_s)
    times = started(kept(2000.0), 2010.0)
    leaf_times(times, 2100.0, new_leaf(2050.0))
    assert leaf_times(times, 99_000.0, new_leaf(98_900.0)) == (None, 98_900.0)


def test_a_reboot_keeps_times_by_utc() -> None:
    """The monotonic clock has begun anew; a clock that is set afterwards does not move the beginning."""
    utc_s = UTC_S + 2060.0
    times = started(kept(2000.0), 30.0, boot="other", utc_s=utc_s)
    for set_s in (0.0, 60.0, -7200.0, 7200.0):
        assert since(times, 40.0, 35.0, utc_s + 10.0 + set_s) == pytest.approx(40.0 - 1070.0)


@pytest.mark.parametrize("pause_s", [60.0, 600.0, 10_000.0])
@pytest.mark.parametrize("back_s", [0.0, 300.0, 3_600.0])
def test_a_clock_that_is_set_back_after_a_reboot_joins_no_two_faults(back_s: float, pause_s: float) -> None:
    """What was seen long ago would have been seen just now."""
    utc_s = UTC_S + 2040.0
    times = started(kept(2000.0), 30.0, boot="other", utc_s=utc_s)
    again_s = 30.0 + pause_s
    times.suspects([], again_s - 1.0, utc_s + pause_s - 1.0 - back_s)
    found = since(times, again_s, again_s, utc_s + pause_s - back_s)
    assert found == pytest.approx(30.0 - 1040.0 if pause_s < SUSPECT_PAUSE_S - 40.0 else again_s)


@pytest.mark.parametrize("set_s", [0.0, -3_600.0, 3_600.0])
def test_what_began_before_the_boot_outlives_a_further_start(set_s: float) -> None:
    """Of the same boot, also after the clock was set; and a further reboot."""
    utc_s = UTC_S + 2040.0
    times = started(kept(2000.0), 30.0, boot="other", utc_s=utc_s)
    assert since(times, 40.0, 35.0, utc_s + 10.0 + set_s) == pytest.approx(-1010.0)
    data = times.dump(41.0, utc_s + 11.0 + set_s)
    again = started(data, 50.0, boot="other", utc_s=utc_s + 20.0 + set_s)
    assert since(again, 60.0, 55.0, utc_s + 30.0 + set_s) == pytest.approx(-1010.0)
    third = started(data, 20.0, boot="third", utc_s=utc_s + 40.0 + set_s)
    assert since(third, 25.0, 22.0, utc_s + 45.0 + set_s) == pytest.approx(20.0 - 1080.0)


@pytest.mark.parametrize(
    ("now_s", "boot", "utc_s"),
    [
        (1990.0, BOOT, UTC_S + 1990.0),
        (30.0, "other", UTC_S + 1900.0),
        (30.0, "", UTC_S + 1900.0),
        # A container whose monotonic clock is another one, or a clock that was set: nobody knows how long it was away.
        (2010.0, BOOT, UTC_S + 9000.0),
    ],
)
def test_clocks_that_cannot_be_right_are_refused(now_s: float, boot: str, utc_s: float) -> None:
    """What was seen last would lie ahead."""
    with pytest.raises(ValueError, match="seen"):
        started(kept(2000.0), now_s, boot=boot, utc_s=utc_s)


def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
    """A good file with a change."""
    document = json.loads(kept(2000.0))
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 512,
        kept(2000.0)[:-1],
        kept(2000.0)[: len(kept(2000.0)) // 2],
        b"[]",
        changed(lambda d: d.update(version=2)),
        changed(lambda d: d["suspects"][0]["since"].update(monotonic_s=2001.0)),
        changed(lambda d: d["suspects"][0]["since"].update(monotonic_s=-1.0)),
        changed(lambda d: d["suspects"][0]["since"].update(utc_s="yesterday")),
        changed(lambda d: d["leaves"][0]["watched"].update(monotonic_s=1e300)),
        changed(lambda d: d["leaves"][0].update(leaf="x" * 300)),
        changed(lambda d: d.update(suspects=300 * d["suspects"])),
    ],
)
def test_a_bad_file_is_refused(data: bytes) -> None:
    """As a whole: half of it would be as little worth."""
    with pytest.raises(ValueError, match=r"."):
        started(data, 2010.0)


def test_what_is_kept_is_bounded() -> None:
    """In number and in the length of names, and what is over for long is dropped."""
    times = FaultTimes(BOOT)
    times.follow(1)
    moment = 2000.0, UTC_S + 2000.0
    many = [replace(LINK, component=f"leaf{n:0200}") for n in range(1000)]
    times.suspects([*many, replace(LINK, component="x" * 300)], *moment)
    data = times.dump(*moment)
    assert len(json.loads(data)["suspects"]) == 256
    assert len(data) < MOST_BYTES / 4
    assert json.loads(times.dump(2200.0, UTC_S + 2200.0))["suspects"] == []


def service(path: Path) -> DiagnosisService:
    """Of a coordinator that keeps its times there."""
    made = DiagnosisService(Declared({}, {}), lambda _: True, fault_times=str(path))
    made.process.starts = 1
    return made


def test_a_coordinator_tells_the_next_one(tmp_path, monkeypatch) -> None:
    """Through its file, which only it can read and write."""
    now = [2000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.time", lambda: UTC_S + now[0])
    monkeypatch.setattr("time.time_ns", lambda: round((UTC_S + now[0]) * 1e9))
    path = tmp_path / "times.json"
    first = service(path)
    assert first._times_file is not None
    assert first._times_file.open()
    first._answered(Answer(suspects=(LINK,), leaf_paths=leaves(LEAF)))
    # A worker that dies has published nothing at last.
    first._answered(Answer(suspects=None, failed=True))
    first._times_file.close()
    assert path.stat().st_mode & 0o777 == 0o600
    now[0] = 2020.0
    second = service(path)
    assert second._times_file is not None
    assert second._times_file.open()
    second._answered(Answer(suspects=(replace(LINK, since_s=2015.0),), leaf_paths=leaves(new_leaf(2018.0))))
    document = second._document()
    assert document["suspects"][0]["age_s"] == 1020.0
    assert document["leaf_paths"]["leaves"][0]["since"] == "2027-01-15T08:13:20Z"
    second._times_file.close()


def test_two_coordinators_do_not_share_a_file(tmp_path, monkeypatch) -> None:
    """The second one goes without, and says which setting helps: the run directory is not where the file is."""
    path = tmp_path / "times.json"
    said: list[str] = []
    log = SimpleNamespace(warning=lambda *_, error, **__: said.append(error))
    monkeypatch.setattr(fault_times_file, "log", log)
    first, second = (FaultTimesFile(FaultTimes(BOOT), str(path)) for _ in range(2))
    assert first.open()
    assert not second.open()
    assert said[0].endswith("a file of its own with fault_times")
    second.close()
    assert not path.exists()
    # Only the file is taken, not all of its folder.
    beside = FaultTimesFile(FaultTimes(BOOT), str(tmp_path / "others.json"))
    assert beside.open()
    for file in (beside, first):
        file.close()
    assert {p.name for p in tmp_path.iterdir()} == {
        *("times.json", "times.json.lock", "others.json", "others.json.lock")
    }


def test_a_file_that_cannot_be_used_ends_nothing(tmp_path, monkeypatch) -> None:
    """It has garbage in it, or its folder is gone: the next content is written, or said not to be. What was there may
    be somebody's, and is kept.
    """
    path = tmp_path / "times.json"
    path.write_bytes(b"garbage")
    file = FaultTimesFile(FaultTimes(BOOT), str(path))
    assert file.open()
    file.close()
    assert json.loads(path.read_bytes())["version"] == 1
    assert (tmp_path / "times.json.old").read_bytes() == b"garbage"
    # Once: what was kept is not replaced by what comes next.
    path.write_bytes(b"somebody's")
    file = FaultTimesFile(FaultTimes(BOOT), str(path))
    assert not file.open()
    file.close()
    assert (path.read_bytes(), (tmp_path / "times.json.old").read_bytes()) == (b"somebody's", b"garbage")
    path.unlink()
    assert not FaultTimesFile(FaultTimes(BOOT), str(tmp_path / "none" / "times.json")).open()
    (tmp_path / "folder").mkdir()
    assert not FaultTimesFile(FaultTimes(BOOT), str(tmp_path / "folder")).open()
    assert not (tmp_path / "folder.lock").exists()

    def full(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fault_times_file, "atomic_write", full)
    file = FaultTimesFile(FaultTimes(BOOT), str(path))
    assert file.open()
    file.close()


def test_a_file_of_somebody_else_is_not_believed(tmp_path) -> None:
    """Whoever can write it could invent beginnings; a pipe would be waited for."""
    path = tmp_path / "times.json"
    path.write_bytes(kept(2000.0))
    assert read_own(path)
    path.chmod(0o666)
    with pytest.raises(PermissionError):
        read_own(path)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    with pytest.raises(OSError, match=r"."):
        read_own(link)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        read_own(tmp_path / "fifo")
    path.chmod(0o600)
    path.write_bytes(bytes(MOST_BYTES + 1))
    with pytest.raises(OSError, match="larger"):
        read_own(path)


def test_a_file_that_cannot_be_read_for_want_of_descriptors_is_left_alone(tmp_path, monkeypatch) -> None:
    """It is good, and nothing of it is set aside or replaced: the next start has it."""
    path = tmp_path / "times.json"
    first = FaultTimesFile(FaultTimes(BOOT), str(path))
    assert first.open()
    first.close()
    content = path.read_bytes()

    def full(*_: object) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(fault_times_file, "read_own", full)
        file = FaultTimesFile(FaultTimes(BOOT), str(path))
        assert not file.open()
        file.close()
    assert {found.name for found in tmp_path.iterdir()} == {"times.json", "times.json.lock"}
    assert path.read_bytes() == content
    assert FaultTimesFile(FaultTimes(BOOT), str(path)).open()
