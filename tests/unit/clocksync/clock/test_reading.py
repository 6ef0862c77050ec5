"""Fleet time for shells: `fabricpulse clocksync now`, `convert` and `wait`."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from fabricpulse.clocksync._cross_timestamp import cross_timestamp
from fabricpulse.clocksync.command import command
from fabricpulse.clocksync.reading import stamp_ns, wait_past
from fabricpulse.core.errors import UserError
from fabricpulse.core.run_dir import RUN_DIR_ENV
from fabricpulse.core.shm.clock_page import (
    ClockLine,
    ClockPage,
    ClockPageWriter,
    ClockStatus,
    FleetTime,
)

S = 10**9


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClockPageWriter:
    """Fleet time is the host's clock and a second, within 2 us."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    writer = ClockPageWriter(tmp_path / "clock")
    write(writer, ClockStatus.SYNCHRONIZED)
    return writer


def write(writer: ClockPageWriter, status: ClockStatus) -> None:
    host, raw, _ = cross_timestamp(40)
    line, stamps = ClockLine(raw, host + S, 0), ClockLine(host, raw, 0)
    writer.write(
        ClockPage(status, line, line, raw, 2_000, 0, raw + 600 * S, stamps, stamps, host, 0, disruptions=0)
    )


def run(*arguments: str) -> str:
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_now_and_convert(page: ClockPageWriter) -> None:
    """The time, the bound, the status; a stamp as ns and as `date` prints it is the same moment."""
    before = time.time_ns()
    shown = json.loads(run("now", "--output", "json"))
    assert before + S - 100_000 < shown["fleet_ns"] < time.time_ns() + S + 100_000
    assert shown["latest_ns"] - shown["earliest_ns"] == 2 * shown["bound_ns"] == 4_000
    assert shown["status"] == "synchronized"
    seconds, ns = divmod(before, S)
    first, second = (
        json.loads(line)
        for line in run("convert", "--output=json", str(before), f"{seconds}.{ns:09d}").splitlines()
    )
    assert first["fleet_ns"] == second["fleet_ns"]
    assert abs(first["fleet_ns"] - before - S) <= first["bound_ns"]
    assert run("now").endswith(" synchronized\n")


@pytest.mark.parametrize("stamp", ["1", "-5", "1700000000"])
def test_a_stamp_of_another_time_is_not_known(page: ClockPageWriter, stamp: str) -> None:
    """The clock may have been set since, and the bound would say nothing of that."""
    with pytest.raises(
        UserError, match=f"fleet time of {stamp} is not known: the stamp is not of the last 10 s"
    ):
        run("convert", "--", stamp)


def test_another_file_than_a_list_of_leap_seconds(page: ClockPageWriter, tmp_path: Path) -> None:
    """Says so, and nothing of what stands in it."""
    other = tmp_path / "passwd"
    other.write_text("root:x:0:0\n")
    with pytest.raises(UserError, match=f"{other} is no leap-seconds.list: a line of it is not two numbers"):
        run("now", "--leap-smear", str(other))
    with pytest.raises(UserError, match=f"cannot read {tmp_path}/none: No such file or directory$"):
        run("now", "--leap-smear", f"{tmp_path}/none")


def test_wait_ends_when_everybody_is_past(page: ClockPageWriter) -> None:
    """What it prints is certainly later than what was the latest at its begin."""
    begin = json.loads(run("now", "--output", "json"))
    assert json.loads(run("wait", "--output=json"))["earliest_ns"] > begin["latest_ns"]
    assert (
        json.loads(run("wait", "--until", str(begin["latest_ns"]), "--output=json"))["earliest_ns"]
        > begin["latest_ns"]
    )


def test_wait_sleeps_until_the_moment_and_not_a_look_longer() -> None:
    """2 ms ahead with a bound of 1 us: one sleep, and it has not woken too early."""
    clock = [0.0]
    slept: list[float] = []

    def now() -> FleetTime:
        return FleetTime(round(clock[0]), 1_000, ClockStatus.HOLDOVER)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds * S + 1

    shown = wait_past(2_000_000, now, sleep)
    assert shown.earliest_ns > 2_000_000
    assert len(slept) <= 2
    assert sum(slept) == pytest.approx(0.002_001, rel=0.01)


@pytest.mark.parametrize("arguments", [["now"], ["convert", "1700000000"], ["wait"]])
@pytest.mark.parametrize("status", [ClockStatus.UNKNOWN, ClockStatus.DISRUPTED])
def test_what_is_not_known_is_an_error(
    page: ClockPageWriter, status: ClockStatus, arguments: list[str]
) -> None:
    """Nothing is printed that a script could take for a time."""
    write(page, status)
    with pytest.raises(UserError, match=f"{status.name.lower()} on this host"):
        run(*arguments)


def test_without_a_sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Says what to start."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    with pytest.raises(UserError, match="does fabricpulse clocksync sidecar run"):
        run("now")


def test_stamps_are_exact() -> None:
    """To the nanosecond, which a float is not."""
    assert stamp_ns("1790000000.123456789") == stamp_ns("1790000000123456789") == 1790000000123456789
    for wrong in ("noon", "nan", "inf", "1e30", ""):
        with pytest.raises(UserError, match="is no stamp"):
            stamp_ns(wrong)
