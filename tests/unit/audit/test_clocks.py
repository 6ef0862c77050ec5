"""Clocks of hosts by the times of their answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.audit.compare.clocks import MOST_OFF_S, ClockOffset, clock_findings, offset_of
from fabricpulse.audit.model import HostReport

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
