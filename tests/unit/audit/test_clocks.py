"""Clocks of hosts by the times of their answers, and fleet time of a host by its page."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.hostinfo.host_tree import GpuHost

from fabricpulse.audit.checks import clock_synchronized
from fabricpulse.audit.compare.clocks import MOST_OFF_S, ClockOffset, clock_findings, offset_of
from fabricpulse.audit.model import HostReport, Status
from fabricpulse.core.shm.clock_page import ClockLine, ClockPage, ClockPageWriter, ClockStatus, raw_now_ns

SECONDS = st.floats(0, 8)


@given(
    st.lists(st.tuples(SECONDS, SECONDS, SECONDS, st.booleans()), min_size=3, max_size=9),
    st.floats(-1, 1),
    st.sampled_from([0.0, 3600.0, -90.0, 25.0]),
)
def test_the_one_that_is_off_is_named_and_nobody_else(
    hosts: list[tuple[float, float, float, bool]], scatter: float, off: float
) -> None:
    """Whatever requests and audits take, and whether an answer is that of the audit before; a second between clocks is
    no fault."""
    offsets = {}
    for number, (wait, lasted, late, again) in enumerate(hosts):
        wrong = off if number == 0 else scatter * number / len(hosts) / 2
        begun = 1000.0 + wait
        report = HostReport(f"h{number}", begun + wrong, lasted, (), ())
        ended = begun + lasted
        asked_at = ended + 0.9 if again else begun - wait
        offsets[report.host] = offset_of(report, asked_at, max(ended, asked_at) + late, 1.0)
    found, notes = clock_findings(offsets)
    assert {f.host for f in found} == ({"h0"} if off else set())
    assert notes == []


def intervals(*middles: float, half: float = 1.0) -> dict[str, ClockOffset]:
    return {f"h{n}": ClockOffset(middle - half, middle + half) for n, middle in enumerate(middles)}


@pytest.mark.parametrize(
    ("middles", "named", "note"),
    [
        ((0, 0, 0, 60), {"h3"}, False),
        # Who asks is a vote: of two hosts the one that agrees is right.
        ((0, 60), {"h1"}, False),
        ((60,), set(), True),
        ((60, -60), set(), True),
        ((60, 60, 60), set(), True),
        ((60, 60, 0, 0, 0), {"h0", "h1"}, False),
        ((60, 60, -60, -60), set(), True),
        ((2.5, 0, 0), set(), False),
        ((), set(), False),
    ],
)
def test_the_majority_is_right(middles: tuple[float, ...], named: set[str], note: bool) -> None:
    """And without one nobody is named, and that is said."""
    found, notes = clock_findings(intervals(*middles))
    assert ({f.host for f in found}, bool(notes)) == (named, note)


@pytest.mark.parametrize(
    ("middles", "named", "note"),
    [
        # Asked from the host that is off, h1: of two clocks nobody knows which is right.
        ((-60, 0), set(), True),
        ((0, 60), set(), True),
        ((-60, 0, -60), {"h1"}, True),
        ((0, 0, 60), {"h2"}, False),
        ((0, 0), set(), False),
    ],
)
def test_who_asks_from_one_of_the_hosts_has_no_second_vote(
    middles: tuple[float, ...], named: set[str], note: bool
) -> None:
    """It is one clock; that of a host that has not answered votes as that of who asks."""
    found, notes = clock_findings(intervals(*middles), "h1")
    assert ({f.host for f in found}, bool(notes)) == (named, note)
    found, _ = clock_findings(intervals(0, 60), "another")
    assert {f.host for f in found} == {"h1"}


def test_texts() -> None:
    """Which way, and by how much at least."""
    found, _ = clock_findings(intervals(0, 0, 0, 61, -601))
    assert [f.summary for f in found] == [
        "its clock is 59.5 s ahead of most others', at least",
        "its clock is 10.0 min behind most others', at least",
    ]
    _, [note] = clock_findings(intervals(60, 60))
    assert note == "clocks: the clock here is 58.5 s behind those of most hosts"
    assert MOST_OFF_S == 2.0


def clock_page(status: ClockStatus, valid_s: int = 60) -> ClockPage:
    """Fleet time is this kernel's time."""
    now, raw = time.clock_gettime_ns(time.CLOCK_REALTIME), raw_now_ns()
    line, stamps = ClockLine(raw, now, 0), ClockLine(now, raw, 0)
    return ClockPage(
        *(status, line, line, raw, 1_000, 0, raw + valid_s * 10**9),
        *(stamps, stamps, now, 0, 0),
    )


@pytest.mark.parametrize(
    ("page", "status", "summary"),
    [
        (None, Status.NOT_APPLICABLE, "no clocksync sidecar on this host"),
        (clock_page(ClockStatus.SYNCHRONIZED, 3600), Status.PASSED, "synchronized"),
        (clock_page(ClockStatus.HOLDOVER, 3600), Status.FAILED, "holdover"),
        (clock_page(ClockStatus.UNKNOWN, 3600), Status.FAILED, "unknown"),
        (b"no page", Status.FAILED, "unknown"),
    ],
)
def test_fleet_time_of_a_host(
    page: ClockPage | bytes | None, status: Status, summary: str, tmp_path: Path
) -> None:
    """By the sidecar's page; one that is none is as bad as none in force, and no page is no fault."""
    reader = GpuHost(tmp_path, nics=1).reader()
    reader.clock_page = tmp_path / "clock"
    if isinstance(page, bytes):
        reader.clock_page.write_bytes(page)
    elif page is not None:
        ClockPageWriter(reader.clock_page).write(page)
    [outcome] = clock_synchronized.run(reader)
    assert (outcome.status, outcome.summary) == (status, summary)
