"""What fleet time of a host is likely off by: from edges that are held out to the page."""

from pathlib import Path

import numpy as np
import pytest
from tests.unit.clocksync.coordinator.reporting_fleet import ReportingFleet

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClock, FleetClockParameters
from fabricpulse.clocksync.coordinator.estimated_error import CLASSES, remember
from fabricpulse.clocksync.sidecar.sidecar import correction_of
from fabricpulse.clocksync.wire.datagram import REPLY_DTYPE, unpack_reply
from fabricpulse.clocksync.wire.messages import Channel, Line, RoundReply
from fabricpulse.core._siphash import siphash24
from fabricpulse.core.shm.clock_page import ClockPageReader, ClockPageWriter, ClockStatus, raw_now_ns

S = 10**9


def test_the_estimate_is_the_quantile_of_what_was_seen_and_no_less() -> None:
    """Two hosts with edges of 30 and 300 ns: within 25 % above the true quantile, and it follows when that changes."""
    rng = np.random.default_rng(1)
    counts = np.zeros((3, CLASSES), np.float32)
    slots = np.repeat([0, 1], 10)
    sigma_ns = np.array([30.0, 300.0])
    for rounds, factor in ((400, 1.0), (600, 0.2), (600, 3.0)):
        for _ in range(rounds):
            found = remember(counts, rng.normal(0, factor * sigma_ns[slots]), slots)
        quantile = 2.576 * factor * sigma_ns
        assert (found[:2] >= 0.9 * quantile).all()
        assert (found[:2] <= 1.4 * quantile).all()
    assert found[2] == 0


def test_little_or_nothing_known_is_no_estimate() -> None:
    """Edges of which others say nothing; too few comparisons; sizes beyond the last class."""
    counts = np.zeros((1, CLASSES), np.float32)
    slots = np.zeros(10, np.intp)
    for _ in range(200):
        assert remember(counts, np.full(10, np.nan), slots) == 0
    found = [remember(counts, np.full(10, 40.0), slots)[0] for _ in range(8)]
    assert found[:4] == [0] * 4
    assert found[-1] == pytest.approx(40, rel=0.25)
    for _ in range(400):
        remember(counts, np.full(10, 1e9), slots)
    assert remember(counts, np.full(10, 1e9), slots) == 0


def test_a_host_that_is_not_placed_has_none() -> None:
    """Six hosts with exact stamps know of it after some rounds; one that is silent, or comes anew, does not."""
    fleet = ReportingFleet(count=6)
    fleet.run(30)
    members = fleet.fleet.roster.members
    assert all(1 <= members[host].estimated_error_ns <= 20 for host in fleet.hosts)
    fleet.silent.add("h02")
    fleet.run(7)
    assert members["h02"].estimated_error_ns == 0
    fleet.run(10)
    fleet.silent.remove("h02")
    fleet.run(2)
    assert members["h02"].estimated_error_ns == 0


def test_it_goes_with_the_line_by_datagram() -> None:
    """The last word of the head, which older coordinators leave 0."""
    channel = Channel(7, bytes(range(16)))
    for likely_ns in (0, 77, 2**32 - 1):
        head = np.zeros((), REPLY_DTYPE)
        head["magic"], head["channel"], head["sequence"], head["flags"] = _reply_magic(), 7, 3, 1
        head["estimated_error_ns"] = likely_ns
        body = head.tobytes()
        answer = unpack_reply(channel, 3, body + siphash24(channel.key, body).to_bytes(8, "little"), "h0")
        assert answer is not None
        assert answer[0].estimated_error_ns == likely_ns


def _reply_magic() -> int:
    from fabricpulse.clocksync._report_intake import REPLY_MAGIC

    return REPLY_MAGIC


def test_it_is_never_above_the_bound(tmp_path: Path) -> None:
    """Of the host that all follow, whose edges are off by as much as others'; nor where an older sidecar says so."""
    fleet = ReportingFleet(count=6)
    fleet.run(30)
    members = fleet.fleet.roster.members
    for host in fleet.hosts:
        line = members[host].line
        assert line is not None
        assert 1 <= members[host].estimated_error_ns <= max(line.bound_ns, 1)
    now = CrossTimestamp(0, raw_now_ns())
    clock = FleetClock.start(FleetClockParameters(), now)
    clock.epoch_ns = 0
    clock.correct(now, Correction(now.raw_ns, 0, 0.0, 14, estimated_error_ns=136))
    page = clock.published(now)
    assert 14 <= page.estimated_error_ns == page.bound_ns < 20
    writer = ClockPageWriter(tmp_path / "clock")
    writer.write(page._replace(estimated_error_ns=136))
    reader = ClockPageReader(tmp_path / "clock")
    assert reader.now().estimated_error_ns == page.bound_ns
    assert reader.read().at(now.raw_ns).estimated_error_ns == page.bound_ns


def test_the_page_says_it_while_it_is_synchronized(tmp_path: Path) -> None:
    """With what is still to be slewed on top; not in holdover, nor where a jump may hide, nor after a correction that
    does not know it.
    """
    now = CrossTimestamp(0, raw_now_ns())
    reply = RoundReply(1, None, "h0", False, b"", "", None, 1, estimated_error_ns=90)
    line = Line(now.raw_ns, 0, 0, 1_000)
    clock = FleetClock.start(FleetClockParameters(), now)
    clock.epoch_ns = 0
    clock.correct(now, correction_of(reply, line))
    page = clock.published(now)
    assert page.estimated_error_ns == 90
    writer = ClockPageWriter(tmp_path / "clock")
    writer.write(page)
    reader = ClockPageReader(tmp_path / "clock")
    assert (reader.now().status, reader.now().estimated_error_ns) == (ClockStatus.SYNCHRONIZED, 90)
    assert reader.read() == page._replace(time_namespace=reader.read().time_namespace)
    assert page.at(page.valid_until_raw_ns + 1).estimated_error_ns == 0

    clock.correct(now, Correction(now.raw_ns, 500, 0.0, 1_000, estimated_error_ns=90))
    assert clock.published(now).estimated_error_ns == 590
    clock.hidden_jump_ns = 1
    assert clock.published(now).estimated_error_ns == 0
    clock.hidden_jump_ns = 0
    late = CrossTimestamp(5 * S, now.raw_ns + 5 * S)
    clock.tick(late)
    held = clock.published(late)
    assert (held.status, held.estimated_error_ns) == (ClockStatus.HOLDOVER, 0)
    clock.correct(late, Correction(late.raw_ns, 0, 0.0, 1_000))
    unsaid = clock.published(late)
    assert (unsaid.status, unsaid.estimated_error_ns) == (ClockStatus.SYNCHRONIZED, 0)
