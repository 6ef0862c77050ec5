"""The clock of the only anchor is no longer steered, and its kernel does not say so for hours."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.clocksync.coordinator.reporting_fleet import ReportingFleet

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import FleetClock, FleetClockParameters
from fabricpulse.clocksync.coordinator.anchor_rates import AnchorRates, UtcRate
from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.sidecar.sidecar import correction_of
from fabricpulse.clocksync.solve.solve_input import RoundInput
from fabricpulse.clocksync.wire.messages import (
    PROTOCOL,
    EdgeName,
    EdgeReport,
    HostInfo,
    Line,
    RoundReply,
    RoundReport,
    pack_edges,
)

S = 10**9
HOSTS = ["h0", "h1", "h2"]
ANCHOR = "h0"
START_NS = 1_700_000_000 * S
# What the kernel adds to the error that chronyd has set, ns a second.
KERNEL_PPB = 500_000
_HEARD_S = 20


class Anchored:
    """Three hosts with perfect edges. Those without UTC are 30 us off and keep the true rate; the anchor's clock is
    right until 0 s, and turns away by `turn_ppb` from then on. holdover_ppb : the setting, of the coordinator
    and of the sidecars. slew_ppb : how much faster its CLOCK_REALTIME runs from then on than its oscillator; lost : it
    does so from the first report on, which it sends until 0 s. sure_ns : of UTC.
    """

    def __init__(
        self,
        turn_ppb: int,
        holdover_ppb: int = 1_000,
        slew_ppb: int = 0,
        sure_ns: int = 1_000,
        lost: bool = False,
    ) -> None:
        self.turn_ppb, self.slew_ppb, self.sure_ns, self.lost = turn_ppb, slew_ppb, sure_ns, lost
        self.fleet = Fleet(holdover_drift_ppb=holdover_ppb)
        parameters = FleetClockParameters(holdover_drift_ppb=holdover_ppb)
        self.clocks = {h: FleetClock.start(parameters, self.cross_timestamp(h, -_HEARD_S)) for h in HOSTS}

    def cross_timestamp(self, host: str, t_s: float) -> CrossTimestamp:
        true_ns = START_NS + round(t_s * S)
        late = round(max(t_s, 0.0) * self.turn_ppb) if host == ANCHOR else 30_000
        return CrossTimestamp(true_ns + late, true_ns + late - START_NS)

    def report(self, host: str, t_s: float) -> RoundReport:
        now, clock = self.cross_timestamp(host, t_s).host_ns, self.clocks[host]
        edges: list[EdgeReport] = []
        names: list[EdgeName] = []
        for peer in HOSTS:
            if peer == host:
                continue
            rate_ppb = self.turn_ppb * (t_s > 0) * ((peer == ANCHOR) - (host == ANCHOR))
            offset = self.cross_timestamp(peer, t_s).host_ns - now
            edges.append(EdgeReport(now, offset, rate_ppb * 1000, 0, 10, 1_000, 1_000, len(names), 0))
            names.append(EdgeName("rail0", peer, "rail0"))
        line = None
        if clock.known:
            instant = self.cross_timestamp(host, t_s)
            asked, bound_ns = clock.requested(instant), clock.kept_bound_ns(instant)
            line = Line(now, asked.to_ns - now, asked.rate_ppt, bound_ns)
        alone_s, anchor = max(t_s, 0.0), None
        if host == ANCHOR and not (self.lost and t_s >= 0):
            slewed_s = t_s + _HEARD_S if self.lost else alone_s
            anchor = (round(slewed_s * self.slew_ppb), self.sure_ns + round(alone_s * KERNEL_PPB))
        info = HostInfo(1, "", (), tuple(names), "system" if host == ANCHOR else "none")
        return RoundReport(PROTOCOL, host, 1, 1, now, pack_edges(edges), line, anchor, "", 0, info)

    def play_round(self, t_s: float, *, answered: bool = True) -> None:
        for host in HOSTS:
            self.fleet.report(self.report(host, t_s), t_s)
        self.fleet.solve_round(t_s + 0.2)
        for host in HOSTS if answered else ():
            line = self.fleet.roster.members[host].line
            assert line is not None
            reply = RoundReply(
                0, line, self.fleet.root, False, b"", "", None, 0, self.fleet.quorum, self.fleet.no_quorum
            )
            self.clocks[host].correct(self.cross_timestamp(host, t_s + 0.2), correction_of(reply, line))

    def outside(self, seconds: int) -> Iterator[tuple[float, str, int, int]]:
        """Moments, hosts, errors and bounds where the truth is not within the bound."""
        # How fast the anchor's stamp clock goes away from UTC is known the better the longer the anchor has reported.
        for second in range(-_HEARD_S, seconds):
            self.play_round(float(second))
            for quarter in range(1, 5):
                t_s = second + 0.2 + quarter / 4 - 0.05
                for host in HOSTS:
                    now = self.cross_timestamp(host, t_s)
                    self.clocks[host].tick(now)
                    shown = self.clocks[host].page.at(now.raw_ns)
                    error = shown.fleet_ns - START_NS - round(t_s * S)
                    if abs(error) > shown.bound_ns:
                        yield t_s, host, error, shown.bound_ns


@pytest.mark.parametrize("turn_ppb", [-900, 900])
def test_bounds_hold_as_in_holdover(turn_ppb: int) -> None:
    """All follow it, and none of their edges can tell: bounds grow by what a clock may drift that nobody steers."""
    fleet = Anchored(turn_ppb)
    assert list(fleet.outside(60)) == []
    shown = fleet.clocks["h1"].page.at(fleet.cross_timestamp("h1", 60.0).raw_ns)
    assert abs(shown.fleet_ns - START_NS - 60 * S) > 50_000, "it has followed"
    assert shown.bound_ns < 70_000, "and no more than that"


@pytest.mark.parametrize("slew_ppb", [-60_000, 60_000])
def test_the_daemon_of_the_anchor_died_amid_a_slew(slew_ppb: int) -> None:
    """The kernel goes on with the slew, and says that it may. How fast UTC runs follows from its reports, not from its
    clock.
    """
    assert list(Anchored(0, slew_ppb=slew_ppb).outside(40)) == []


@pytest.mark.parametrize("slew_ppb", [-10_000, 10_000])
def test_the_anchor_was_slewed_as_long_as_it_reported(slew_ppb: int) -> None:
    """It is gone then, and nobody knows that the fleet runs by 10 ppm too fast; but that it may."""
    assert list(Anchored(0, slew_ppb=slew_ppb, sure_ns=300_000, lost=True).outside(60)) == []


@pytest.mark.parametrize("turn_ppb", [-4_500, 4_500])
def test_a_fleet_of_worse_clocks_says_so_in_one_setting(turn_ppb: int) -> None:
    """holdover_drift_ppb: with 5,000 on both sides the bounds hold; a coordinator with less would break them."""
    assert list(Anchored(turn_ppb, 5_000).outside(30)) == []
    of_two_minds = Anchored(turn_ppb, 5_000)
    of_two_minds.fleet.holdover_drift_ppb = 1_000
    assert any(of_two_minds.outside(30))


def test_what_is_known_of_the_rate_is_of_the_last_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of what hosts run at, who may not have been answered: the rate may have come back to that since."""
    seen: list[float] = []
    take = UtcRate.take

    def spy(rate: UtcRate, last_ppb: NDArray[np.float64], *arguments: object, anchored: bool) -> float:
        seen.append(float(last_ppb[0]))
        return take(rate, last_ppb, *arguments, anchored=anchored)  # type: ignore[arg-type]

    monkeypatch.setattr(UtcRate, "take", spy)
    fleet = Anchored(0, slew_ppb=60_000, sure_ns=300_000)
    for second in range(-_HEARD_S, 4):
        fleet.play_round(float(second), answered=second < 2)
    line = fleet.fleet.roster.members[ANCHOR].line
    assert line is not None
    assert line.rate_ppt != fleet.report(ANCHOR, 4.0).line.rate_ppt  # type: ignore[union-attr]
    fleet.play_round(4.0, answered=False)
    assert seen[-1] * 1000 == pytest.approx(line.rate_ppt, abs=1)


def test_utc_of_an_old_report_is_as_unsure_as_its_rate() -> None:
    """The report of an anchor was three seconds on its way; its clock may have been slewed by 50 ppm all the time."""
    fleet = Fleet()
    anchored = Anchored(0)
    anchored.fleet = fleet
    for second in range(-_HEARD_S, 0):
        anchored.play_round(float(second))
    rows = fleet._table.rows
    utc = AnchorRates(*np.tile(np.array([[0.0], [-50_000.0], [50_000.0]]), len(rows)))
    reported = RoundInput.from_reports(rows, 2.0, 0.0, utc.rate_ppb, utc.off_ppb)
    hosts = reported.hosts(reported.host_ns + 3 * S, 250.0)
    assert hosts.anchor_bound_ns[0] == pytest.approx(1_000 + 150_000)


def test_a_report_that_is_used_again_takes_nothing_from_what_was_known() -> None:
    """Three anchors do not report for two rounds: UTC goes on at the rate of their former reports."""
    fleet = ReportingFleet(anchors=dict.fromkeys(("h02", "h03", "h04"), (0, 100)))
    fleet.run(8)
    before = fleet.bound_ns("h00")
    fleet.silent = set(fleet.anchors)
    for second in (1, 2):
        fleet.run()
        assert fleet.bound_ns("h00") <= before + 500 * second
