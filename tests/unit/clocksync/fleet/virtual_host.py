"""A host of a VirtualFleet, and what its sidecar does when: rounds and their lengths, reports, whom it asks.

Its clocks, fits, messages and choices are those of the daemon.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClock, FleetClockParameters
from fabricpulse.clocksync.edge.estimator import EdgeFit, EstimatorParameters
from fabricpulse.clocksync.edge.ownership import is_ours
from fabricpulse.clocksync.edge.window import EdgeWindow
from fabricpulse.clocksync.sidecar.coordinator_selection import (
    CoordinatorHealth,
    NamedQuorum,
    left_out,
    select_coordinator,
)
from fabricpulse.clocksync.sidecar.neighbour_doubt import NeighbourDoubt
from fabricpulse.clocksync.sidecar.neighbours import consensus
from fabricpulse.clocksync.sidecar.sidecar import correction_of
from fabricpulse.clocksync.wire.messages import (
    PROTOCOL,
    EdgeName,
    EdgeReport,
    HostInfo,
    Line,
    LineReply,
    RoundReply,
    RoundReport,
    pack_edges,
)
from fabricpulse.core.shm.clock_page import ClockPage, ClockStatus

if TYPE_CHECKING:
    from tests.unit.clocksync.fleet.virtual_fleet import VirtualFleet

NS = 10**9
# Of the sidecar and of the coordinator.
_TICK_S, ROUND_S, _START_ROUND_S, _WINDOW_S, _START_WINDOW_S, _ALONE_S = 0.25, 1.0, 0.25, 4.0, 0.5, 2.0
# Of the sidecar's heartbeat: how long no samples may come, and after how much longer all is to be measured anew.
_SILENT_S, _WATCHED_S, _MEASURED_S = 0.2, 1.0, 1.25
_HEARTBEAT_NS = 40_000_000
# What a contradicted sidecar still forgets: trains on their way, and here what the last round has not read yet.
_LATE_TRAINS_S = 0.4
UTC_NS = 1_800_000_000 * NS


class Oscillator:
    """What CLOCK_MONOTONIC_RAW of a host has gained on the truth, ns, and its rate now, ppb."""

    def __init__(self, rate_ppb: float) -> None:
        self._since_s, self._gained_ns, self._rate_ppb = [0.0], [0.0], [rate_ppb]

    def turn(self, t_s: float, by_ppb: float) -> None:
        """It runs faster by `by_ppb` from `t_s` on; in the order of time."""
        self._gained_ns.append(float(self(t_s)))
        self._since_s.append(t_s)
        self._rate_ppb.append(self._rate_ppb[-1] + by_ppb)

    def pause(self, t_s: float, lost_s: float) -> None:
        """The machine is paused, and it loses `lost_s`; in the order of time."""
        self._gained_ns.append(float(self(t_s)) - lost_s * NS)
        self._since_s.append(t_s)
        self._rate_ppb.append(self._rate_ppb[-1])

    def __call__(self, t_s: NDArray[np.float64] | float) -> NDArray[np.float64]:
        since = np.array(self._since_s)
        k = np.maximum(np.searchsorted(since, t_s, side="right") - 1, 0)
        gained: NDArray[np.float64] = (
            np.array(self._gained_ns)[k] + (t_s - since[k]) * np.array(self._rate_ppb)[k]
        )
        return gained


class Host:
    """One host and its sidecar. anchor : what it says of UTC's bound at true time t, None while it is no anchor;
    utc_off_ns : how far its CLOCK_REALTIME is from UTC then. shown : the page that readers see.
    """

    def __init__(self, fleet: "VirtualFleet", name: str, oscillator: Oscillator, epoch_ns: int) -> None:
        self.fleet, self.name, self.oscillator, self.epoch_ns = fleet, name, oscillator, epoch_ns
        self.anchor: Callable[[float], int | None] = lambda _: None
        self.utc_off_ns: Callable[[float], float] | None = None
        self.clock: FleetClock | None = None
        self.shown: ClockPage | None = None
        self._engine_silent_s = math.inf, math.inf
        self.frozen_until_s = self._forgotten_until_s = -math.inf
        self.run = 0  # of sidecars; what an earlier one has begun does not count

    def raw_ns(self, t_s: float) -> int:
        return 10 * NS + round(t_s * 1e9 + float(self.oscillator(t_s)))

    def stamps(self, t_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """Of packets at these moments."""
        return 10 * NS + self.epoch_ns + np.rint(t_s * 1e9 + self.oscillator(t_s)).astype(np.int64)

    def instant(self, t_s: float) -> CrossTimestamp:
        """Both its clocks."""
        raw = self.raw_ns(t_s)
        if self.utc_off_ns is None:
            return CrossTimestamp(raw + self.epoch_ns, raw)
        return CrossTimestamp(UTC_NS + round(t_s * 1e9 + self.utc_off_ns(t_s)), raw)

    # The sidecar

    def start(self, t_s: float) -> None:
        """A sidecar starts, and goes on with the page that is there."""
        fleet = self.fleet
        self.run += 1
        self.clock = FleetClock.start(FleetClockParameters(), self.instant(t_s), self.shown)
        self.clock.epoch_ns = self.epoch_ns
        self.shown = self.clock.page
        self.peers = [CoordinatorHealth() for _ in fleet.coordinators]
        self.busy, self.info_sent = [False] * len(self.peers), [False] * len(self.peers)
        self.named = NamedQuorum()
        self.doubt: NeighbourDoubt | None = None
        self.placed, self.root, self.suspect = False, "", ""
        self.started_s, self.synchronized_s = t_s, math.inf
        self.windows = {peer: EdgeWindow(EstimatorParameters()) for peer in fleet.hosts if peer != self.name}
        self.fits: dict[str, EdgeFit] = {}
        self.round_s, self.pending = t_s, 0
        self._later(t_s + fleet.random.uniform(0, 0.25), self._tick_and_again)
        self._later(t_s + fleet.random.uniform(0, 0.25), self._round)

    def kill(self) -> None:
        """The sidecar is gone, and with it its heartbeat; its page stays."""
        self.run, self.clock = self.run + 1, None
        if self.shown is not None:
            until_ns = self.raw_ns(self.fleet.t_s) + _HEARTBEAT_NS
            until_ns = min(until_ns, self.shown.synchronized_until_raw_ns)
            self.shown = self.shown._replace(synchronized_until_raw_ns=until_ns)

    def freeze(self, t_s: float, lost_s: float) -> None:
        """The machine stands still for `lost_s`, and goes on with its clocks behind by that."""
        self.frozen_until_s = t_s + lost_s
        for other in self.windows:
            self.fleet.cut(self.name, other, self.frozen_until_s)
        self.fleet.at(self.frozen_until_s, lambda t: self.oscillator.pause(t, lost_s))

    def contradict(self, t_s: float) -> None:
        """Delays show a pause of the machine: what was measured before is of another clock."""
        if self.clock is None or not self.clock.known:
            return
        self.clock.suspect(self.instant(t_s))
        self._forgotten_until_s = t_s + _LATE_TRAINS_S
        for window in self.windows.values():
            window.clear()
        self._publish(t_s)

    def stop_engine(self, t_s: float, until_s: float) -> None:
        """Its probe engine measures nothing until then."""
        self.fleet.divide({self.name}, until_s)

    def measure_nothing(self, t_s: float, until_s: float) -> None:
        """No probes come until then."""
        begin_s, end_s = self._engine_silent_s
        self._engine_silent_s = min(t_s, begin_s) if end_s > t_s else t_s, until_s

    def _later(self, at_s: float, then: Callable[[float], None]) -> None:
        run = self.run

        def call(t_s: float) -> None:
            if self.run == run and t_s <= self.frozen_until_s:
                self.fleet.at(self.frozen_until_s + 1e-4, call)
            elif self.run == run:
                then(t_s)

        self.fleet.at(at_s, call)

    @property
    def _known_clock(self) -> FleetClock:
        assert self.clock is not None
        return self.clock

    def _tick_and_again(self, t_s: float) -> None:
        self._tick(t_s)
        self._later(t_s + _TICK_S + self.fleet.late_s(), self._tick_and_again)

    def _tick(self, t_s: float) -> None:
        begin_s, end_s = self._engine_silent_s
        if begin_s + _WATCHED_S < t_s < end_s + _MEASURED_S:
            self._known_clock.unwatched(self.instant(t_s))
        self._known_clock.tick(self.instant(t_s))
        self._publish(t_s)

    def _publish(self, t_s: float) -> None:
        self.shown = self._known_clock.published(self.instant(t_s))
        begin_s, end_s = self._engine_silent_s
        if begin_s + _SILENT_S < t_s < end_s + _MEASURED_S and self.shown.status == ClockStatus.SYNCHRONIZED:
            self.shown = self.shown._replace(status=ClockStatus.HOLDOVER)  # for its heartbeat is held back

    def _settled(self, t_s: float) -> bool:
        return t_s - self.synchronized_s > _WINDOW_S

    def _since(self, moments_s: list[float], t_s: float) -> float:
        return t_s - max([self.started_s, *moments_s])

    def _unplaced_s(self, t_s: float) -> float:
        return self._since([peer.placed_s for peer in self.peers], t_s)

    def _silent_s(self, t_s: float) -> float:
        return self._since([peer.answered_s for peer in self.peers], t_s)

    def _round(self, t_s: float) -> None:
        self.fleet.read(self, t_s)
        if t_s <= self._forgotten_until_s + ROUND_S:
            for window in self.windows.values():
                window.clear()
        everything = not self._settled(t_s) or self._unplaced_s(t_s) > _ALONE_S
        age_s = max(0.0, t_s - self.synchronized_s) if self.synchronized_s < math.inf else 0.0
        self.fits = {}
        for name, window in self.windows.items():
            window.window_ns = round(min(_WINDOW_S, _START_WINDOW_S + age_s) * NS)
            now_ns = self.raw_ns(t_s) + self.epoch_ns
            if not everything and not is_ours(self.name, EdgeName("rail0", name, "rail0")):
                window.idle(now_ns)
            elif (fit := window.advance(now_ns)) is not None:
                self.fits[name] = fit
        self.fleet.judge(self, t_s)
        sent_s, self.round_s, self.pending = t_s + 0.002 + self.fleet.late_s(), t_s, 0
        for number, peer in enumerate(self.peers):
            if self.busy[number]:
                continue
            if self.fleet.coordinators[number] is None or number not in self.fleet.reaches[self.name]:
                peer.up = self.info_sent[number] = False
                continue
            self.busy[number] = True
            self.pending += 1
            self._later(sent_s, lambda t, number=number: self.fleet.send(self, t, number))  # type: ignore[misc]
        wait_s = 0.8 * ROUND_S if self.pending else 0.001
        self._later(sent_s + wait_s, lambda t: self._finish(t, began_s=t_s))

    def line(self, t_s: float) -> Line | None:
        """What its last correction asked for."""
        clock = self._known_clock
        if not clock.known or clock.disrupted_raw_ns is not None:
            return None
        now = self.instant(t_s)
        asked = clock.requested(now)
        return Line(asked.from_ns, asked.to_ns - asked.from_ns, asked.rate_ppt, clock.kept_bound_ns(now))

    def report(self, t_s: float, rank: int) -> RoundReport:
        """Its report to the coordinator of that rank."""
        names = list(self.windows)
        edges = [
            EdgeReport(
                fit.t_ns, fit.offset_ns, round(fit.rate_ppb * 1000), (fit.t_last_ns - fit.t_ns) // 1000,
                round(fit.sigma_ns), round(fit.rate_sigma_ppb * 1000), math.ceil(fit.bound_ns), names.index(peer),
                int(fit.quality),
            )
            for peer, fit in self.fits.items()
        ]  # fmt: skip
        info = None
        if not self.info_sent[rank]:
            kind = "none" if self.utc_off_ns is None else "system"
            info = HostInfo(1, "", (), tuple(EdgeName("rail0", peer, "rail0") for peer in names), kind)
            self.info_sent[rank] = True
        now, bound_ns = self.instant(t_s), self.anchor(t_s)
        anchor = None if bound_ns is None else (now.host_ns - now.raw_ns - self.epoch_ns, bound_ns)
        return RoundReport(
            PROTOCOL, self.name, self.run, 1, now.raw_ns + self.epoch_ns, pack_edges(edges), self.line(t_s), anchor,
            self.root, self._known_clock.page.disruptions, info, rank, self.named.quorum, self._known_clock.no_quorum,
            unverified=self.unverified,
        )  # fmt: skip

    @property
    def unverified(self) -> bool:
        """As its reports say."""
        return self._known_clock.unverified_raw_ns is not None

    def take(self, t_s: float, number: int, reply: RoundReply | None) -> None:
        """The answer of a coordinator, or that there is none."""
        if t_s <= self.frozen_until_s:
            return self._later(self.frozen_until_s, lambda t: self.take(t, number, reply))
        self.busy[number] = False
        peer = self.peers[number]
        if reply is None:
            peer.up = self.info_sent[number] = False
        else:
            peer.answered(reply, t_s)
            self.info_sent[number] &= not reply.resend_info
            self.named.take(self.peers, t_s)
            leader = select_coordinator(
                self.peers, t_s, _ALONE_S, placed=self.placed, named=self.named.quorum
            )
            follow = leader is None or leader is peer
            self.placed |= follow and reply.line is not None
            if follow:
                self.root, self.suspect = reply.root, reply.suspect
                if reply.line is not None:
                    self._apply(t_s, correction_of(reply, reply.line))
        self.pending -= 1
        if self.pending == 0:
            self._finish(t_s, began_s=self.round_s)
        return None

    def _apply(self, t_s: float, correction: Correction) -> None:
        self._tick(t_s)
        if self._known_clock.contradicted_by(now := self.instant(t_s), correction):
            self._known_clock.suspect(now)
            for window in self.windows.values():
                window.clear()
        self._known_clock.correct(now, correction)
        self._publish(t_s)

    def _finish(self, t_s: float, began_s: float) -> None:
        if began_s != self.round_s:
            return
        self.round_s = math.nan  # once a round
        alone = self._unplaced_s(t_s) > _ALONE_S
        if alone and (not self.suspect or self._silent_s(t_s) > _ALONE_S):
            self._ask_neighbours(t_s)
        clock = self._known_clock
        if clock.page.status == ClockStatus.SYNCHRONIZED:
            self.synchronized_s = min(self.synchronized_s, t_s)
        elif not clock.no_quorum:
            self.synchronized_s = math.inf
        step_s = ROUND_S if self._settled(t_s) else _START_ROUND_S
        now = self.instant(t_s)
        fleet_ns = clock.page.at(now.raw_ns).fleet_ns if clock.known else now.host_ns
        self._later(t_s + step_s - fleet_ns / NS % step_s + self.fleet.late_s(), self._round)

    def _ask_neighbours(self, t_s: float) -> None:
        lines = {
            peer: LineReply(peer, other.raw_ns(t_s) + other.epoch_ns, other.line(t_s), True, other.unverified)
            for peer, other in self.fleet.hosts.items()
            if peer != self.name and other.clock is not None and self.fleet.near(self.name, peer)
        }
        begin = self._silent_s(t_s) > _ALONE_S and not any(peer.up for peer in self.peers)
        own = self.line(t_s)
        if not begin and own is None and not any(reply.line for reply in lines.values()):
            return
        now_ns = self.raw_ns(t_s) + self.epoch_ns
        correction, self.doubt = consensus(
            self.name, own, list(self.fits.items()), lines, now_ns, 250.0, self.doubt,
            verified=not self.unverified,
        )  # fmt: skip
        if correction is not None:
            known_ppb = self._known_clock.unsure_ppb if self.named.quorum is not None else 0
            no_quorum = left_out(self.peers, t_s, _ALONE_S)
            drift_ppb = max(correction.drift_ppb, known_ppb)
            self._apply(t_s, replace(correction, free=True, no_quorum=no_quorum, drift_ppb=drift_ppb))
