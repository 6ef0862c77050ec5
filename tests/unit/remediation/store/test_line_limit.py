"""Alerts that come and go for ever fill no disk, and never cost a line about what was decided."""

from fabricpulse.remediation.receiver.line_limit import (
    BOUNDED,
    BURST_BYTES,
    BYTES_PER_S,
    NOTIFY_BURST,
    NOTIFY_PER_S,
    LineLimit,
)
from fabricpulse.remediation.receiver.state.model import OUTCOMES
from fabricpulse.remediation.receiver.state.transaction import Transition

START = 1_700_000_000.0
FLAP = [Transition("h0/rail0", event, {}) for event in ("episode_firing", "blocked", "episode_resolved")]
DECIDED = [
    Transition("h0/rail0", event, {"op_id": "h0/rail0#1"}) for event in ("nic.avoid", "sent", *OUTCOMES)
]


def left_out(lines: list[Transition]) -> list[int]:
    return [line.detail["lines"] for line in lines if line.event == "lines_left_out"]


def test_a_storm_of_the_largest_fleet_is_written_whole():
    """200,000 alerts that begin, are blocked and end at once."""
    limit = LineLimit()
    assert sum(len(limit.limited(FLAP * 1_000, START)) for _ in range(200)) == 600_000
    assert limit.left_out == 0


def test_what_was_decided_is_written_when_there_is_no_room():
    """In the order in which it came; how many lines there was no room for is logged once a minute, all of them."""
    limit = LineLimit(burst_bytes=800, bytes_per_s=0)
    lines = limit.limited([*DECIDED, *FLAP, *DECIDED], START)
    assert [line.event for line in lines if line.event != "lines_left_out"] == [
        line.event for line in [*DECIDED, *FLAP[:2], *DECIDED]
    ]
    assert left_out(lines) == [1]
    assert left_out(limit.limited(FLAP, START + 30)) == []
    assert limit.limited(DECIDED, START + 59) == DECIDED
    assert left_out(limit.limited([], START + 61)) == [3]
    assert (limit.left_out, left_out(limit.limited([], START + 600))) == (4, [])


def test_what_alerts_fill_is_bounded():
    """After the burst 4 kB a second, 600 lines a minute: 570 of a fleet's own are all written, 900 are not."""
    for flaps, left_out in ((190, False), (300, True)):
        limit, written, now = LineLimit(burst_bytes=BURST_BYTES / 1_000), 0, START
        for _ in range(60):
            now += 60
            written += sum(400 for line in limit.limited(FLAP * flaps, now) if line.event in BOUNDED)
        assert written <= BURST_BYTES / 1_000 + 3_600 * BYTES_PER_S
        assert (limit.left_out > 0) == left_out


def test_long_labels_are_worth_many_lines():
    """A notification has the labels of an alert: 32 of them, as long as a label may be."""
    labels = {f"{i:02d}{'n' * 198}": "v" * 200 for i in range(32)}
    notify = Transition("fleet", "notify", {"alert": "A", "labels": labels})
    limit = LineLimit(burst_bytes=100_000, bytes_per_s=0)
    assert len(limit.limited([notify] * 100, START)) == 1 + 1


def test_so_many_alerts_are_notified():
    """Else what was decided waits behind two hundred thousand lines in the queue of each destination."""
    limit, line = LineLimit(), Transition("fleet", "notify", {"alert": "A", "labels": {}})
    assert len(limit.limited([line] * 3_000, START)) == NOTIFY_BURST + 1
    assert limit.left_out == 3_000 - NOTIFY_BURST
    assert len(limit.limited([line] * 3_000 + DECIDED, START + 30)) == 30 * NOTIFY_PER_S + len(DECIDED)
    assert len(limit.limited(FLAP, START + 31)) == len(FLAP), "the journal has room for others"
