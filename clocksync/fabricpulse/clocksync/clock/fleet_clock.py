"""Fleet time on one host: from corrections that arrive now and then to a clock that a program can rely on.

Guarantees, in this order: fleet time never runs backward and never jumps once it has been set; its rate
differs from the rate that the corrections ask for by at most `max_slew_ppm`; and the true fleet time lies
within the bound, which grows while no correction comes.

Fleet time is laid over CLOCK_MONOTONIC_RAW, which is neither stepped nor slewed; corrections are of the stamp clock,
which is that clock plus a constant. What is done to the host clock matters only to stamps of it in logs
(host_clock_model.py).

Pure: readings of the clocks are passed in, the page to publish comes out.
"""

from dataclasses import dataclass

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.host_clock_model import HostClockModel
from fabricpulse.core.shm.clock_page import ClockLine, ClockPage, ClockStatus

_NS = 1_000_000_000
# What the page has room for.
_MOST_ERROR_NS = 2**32 - 1


@dataclass(frozen=True)
class Correction:
    """fleet = stamp clock + correction_ns at stamp time ref_ns, with the rate rate_ppb; true within bound_ns
    there. free : of hosts that follow only each other, or an anchor, so that all may drift away from the fleet, or from
    UTC, together. anchored : of an anchor, which may have appeared after fleet time had begun, at any distance.
    no_quorum : they know that they are not the fleet. estimated_error_ns : what it is likely off by, 0 where unknown.
    drift_ppb : how far rate_ppb may be off, beside what clocks may drift.
    """

    ref_ns: int
    correction_ns: int
    rate_ppb: float
    bound_ns: int
    free: bool = False
    anchored: bool = False
    no_quorum: bool = False
    estimated_error_ns: int = 0
    drift_ppb: int = 0


@dataclass(frozen=True)
class FleetClockParameters:
    """drift_ppb : error of the rate while synchronised. holdover_drift_ppb : without corrections.
    holdover_after_ns : a correction older than this is no synchronisation. validity_ns : how long the page
    holds when we die. lookback_ns : age of the oldest sample that can influence a
    correction; measured_ns : of the newest that may have influenced one. widest_ns : a wider bound is no
    synchronisation, however fresh it is.
    """

    slew_time_ns: int = _NS // 4
    lead_ns: int = 50_000_000
    max_slew_ppm: float = 500.0
    drift_ppb: int = 250
    holdover_drift_ppb: int = 1_000
    holdover_after_ns: int = 4 * _NS
    validity_ns: int = 10 * _NS
    lookback_ns: int = 7 * _NS
    measured_ns: int = _NS * 5 // 4
    widest_ns: int = 10_000_000


@dataclass
class FleetClock:
    """The state. `page` is what to publish; `target` the line over the raw clock that the last correction asked for.

    epoch_ns : stamp clock minus raw clock. corrected_raw_ns : when the last correction came. no_quorum : it was.
    disrupted_raw_ns : since when something contradicts fleet time as this host has it, None while nothing does.
    hidden_jump_ns : by how much the raw clock may have jumped unseen, beyond the bound of `page`.
    unverified_raw_ns : since when no correction has confirmed that the machine was not paused while nobody would have
    noticed: the page of a previous sidecar was taken over, nothing was measured, or a correction was too far from what
    was kept; None: one has. undecided_ns : how far fleet time may be off while corrections are not taken for that.
    corrected_error_ns, unsure_ppb : what the last correction is likely off by, 0 = not known; how far its rate may be.
    """

    parameters: FleetClockParameters
    page: ClockPage
    target: ClockLine
    host: HostClockModel
    epoch_ns: int
    corrected_raw_ns: int = 0
    no_quorum: bool = False
    disrupted_raw_ns: int | None = None
    hidden_jump_ns: int = 0
    corrected_error_ns: int = 0
    unsure_ppb: int = 0
    unverified_raw_ns: int | None = None
    undecided_ns: int = 0

    @classmethod
    def start(
        cls, parameters: FleetClockParameters, now: CrossTimestamp, old: ClockPage | None = None
    ) -> "FleetClock":
        """A clock without fleet time, or one that goes on with the page of a sidecar that was here before.

        `old` is taken over only if it is still valid. The epoch of the stamp clock is what both clocks show now.
        """
        host = HostClockModel.start(now)
        epoch_ns = now.host_ns - now.raw_ns
        zero = ClockLine(now.raw_ns, now.host_ns, 0)
        page = ClockPage(
            *(ClockStatus.UNKNOWN, zero, zero, now.raw_ns, 0, 0, 0),
            *(host.line, host.previous, host.since_ns, 0, 0),
        )
        # Of another boot, whose raw clock was ahead of this one's; or something had contradicted it.
        doubtful = (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED)
        if old is None or now.raw_ns < old.bound_ref_raw_ns or old.at(now.raw_ns).status in doubtful:
            return cls(parameters, page, zero, host, epoch_ns)
        shown = old.at(now.raw_ns)
        line = ClockLine(now.raw_ns, shown.fleet_ns, old.current.rate_ppt)
        page = page._replace(
            status=ClockStatus.HOLDOVER,
            current=line,
            previous=old.current,
            bound_ref_raw_ns=now.raw_ns,
            bound_ns=shown.bound_ns,
            # With the slew that it goes on with, and whatever else the line is unsure of.
            drift_ppb=max(parameters.holdover_drift_ppb, old.drift_ppb),
            valid_until_raw_ns=now.raw_ns + parameters.validity_ns,
            disruptions=old.disruptions,
        )
        unsure_ppb = page.drift_ppb - parameters.holdover_drift_ppb
        return cls(
            parameters, page, line, host, epoch_ns, unsure_ppb=unsure_ppb, unverified_raw_ns=now.raw_ns
        )

    @property
    def holdover_ppb(self) -> int:
        """By which fleet time may drift away while it is not corrected."""
        return self.parameters.holdover_drift_ppb + self.unsure_ppb

    @property
    def known(self) -> bool:
        """True once fleet time has been set."""
        return self.page.status != ClockStatus.UNKNOWN

    @property
    def slewing(self) -> bool:
        """Whether fleet time, left alone, would be ten nanoseconds past its place in a second."""
        return self.known and self._slew_ppb(self.page.current) > 10

    @property
    def rate_ppt(self) -> int:
        """Rate of fleet time minus that of the host clock now, parts per 10^12."""
        return _chained(self.host.line.rate_ppt, self.page.current.rate_ppt)

    def requested(self, now: CrossTimestamp) -> ClockLine:
        """What the last correction asked for, as a line over the stamp clock that begins at `now`."""
        return ClockLine(now.raw_ns + self.epoch_ns, self.target.at(now.raw_ns), self.target.rate_ppt)

    def unwatched(self, now: CrossTimestamp) -> None:
        """Until `now` nobody would have noticed a pause of the machine. Void while fleet time is to be set anew."""
        if self.known and self.disrupted_raw_ns is None:
            self.unverified_raw_ns = now.raw_ns

    def contradicted_by(self, now: CrossTimestamp, correction: Correction) -> bool:
        """Whether the machine was paused while nobody watched it: the first correction after that excludes what this
        host has kept, or is still too far from it to be slewed to when what was measured before is forgotten. Of later
        ones peers and delays would have shown it, unless its bound had become wide enough to hide it before.
        """
        if not self.known or self.disrupted_raw_ns is not None:
            return False
        off_ns, kept_ns, corrected_ns = self._against(now, correction)
        if self.unverified_raw_ns is None:
            # Within what was kept, but it would be slewed to for longer than it takes to set the clock anew.
            slewed_ns = self.parameters.lookback_ns * self.parameters.max_slew_ppm * 1e-6
            return not correction.free and slewed_ns + corrected_ns < off_ns <= kept_ns
        waited_ns = now.raw_ns - self.unverified_raw_ns
        late = waited_ns > self.parameters.lookback_ns and self._undecided(now, correction)
        return off_ns > kept_ns + corrected_ns or late

    def _undecided(self, now: CrossTimestamp, correction: Correction) -> bool:
        """Whether this machine, or one that it follows, may have been paused while nobody noticed, by more than can be
        slewed in a short time: what was kept was true within its bound, unless an anchor has appeared.

        While edges rest on stamps of both sides of a pause they contradict each other, and corrections are too wide to
        exclude anything, or to confirm it.
        """
        if not self.known or (self.unverified_raw_ns is None and correction.anchored):
            return False
        off_ns, kept_ns, corrected_ns = self._against(now, correction)
        confirms_nothing = self.unverified_raw_ns is not None and not correction.anchored
        far_ns = max(off_ns, corrected_ns if confirms_nothing else 0)
        return far_ns > kept_ns + self.parameters.holdover_after_ns * self.parameters.max_slew_ppm * 1e-6

    def _against(self, now: CrossTimestamp, correction: Correction) -> tuple[int, int, int]:
        """How far the correction is from the page, and the bounds of both, ns."""
        shown = self.page.at(now.raw_ns)
        age_ns = abs(now.raw_ns + self.epoch_ns - correction.ref_ns)
        corrected_ns = correction.bound_ns + age_ns * (self.holdover_ppb + correction.drift_ppb) // _NS
        off_ns = abs(self._line(correction).at(now.raw_ns) - shown.fleet_ns)
        return off_ns, shown.bound_ns + 1, corrected_ns

    def _line(self, correction: Correction) -> ClockLine:
        rate_ppt = round(correction.rate_ppb * 1000)
        at_ns = correction.ref_ns + correction.correction_ns
        return ClockLine(correction.ref_ns - self.epoch_ns, at_ns, rate_ppt)

    def correct(self, now: CrossTimestamp, correction: Correction) -> ClockPage:
        """Takes a correction. The first one sets the clock, later ones slew it. One that cannot be slewed to in a short
        time is not taken before it is known whether anybody missed a pause (contradicted_by); the bound holds it.
        """
        self._watch_host_clock(now)
        if self.disrupted_raw_ns is not None:
            return self._tick_disrupted(now, self.disrupted_raw_ns)
        if self._undecided(now, correction):
            # Slewing to it would take an hour; left alone it is confirmed or contradicted soon.
            if self.unverified_raw_ns is None:
                self.unverified_raw_ns = now.raw_ns
            off_ns, _, corrected_ns = self._against(now, correction)
            self.undecided_ns = off_ns + corrected_ns
            return self.tick(now)
        self.undecided_ns = 0
        if (
            self.unverified_raw_ns is not None
            and now.raw_ns - self.unverified_raw_ns > self.parameters.measured_ns
        ):
            self.unverified_raw_ns = None
        target = self._line(correction)
        # A partition without a quorum has no better estimate of the rate of the fleet than before.
        least_ppb = self.unsure_ppb if correction.no_quorum else 0
        self.unsure_ppb = max(correction.drift_ppb, least_ppb)
        drift_ppb = self.parameters.drift_ppb + self.unsure_ppb
        if correction.free or correction.no_quorum:
            drift_ppb = max(drift_ppb, self.holdover_ppb)
        bound = correction.bound_ns + abs(now.raw_ns - target.from_ns) * drift_ppb // _NS
        self.no_quorum = correction.no_quorum
        self.corrected_error_ns = correction.estimated_error_ns
        if not (self.no_quorum and self.known):
            self.corrected_raw_ns = now.raw_ns
        held = now.raw_ns - self.corrected_raw_ns <= self.parameters.holdover_after_ns
        self.target = target
        if not self.known:
            line = ClockLine(now.raw_ns, target.at(now.raw_ns), target.rate_ppt)
            self.page = self.page._replace(current=line, previous=line)
        else:
            self._slew(now)
        ahead = abs(target.at(now.raw_ns) - self.page.at(now.raw_ns).fleet_ns)
        # The last slew goes on until the new line begins.
        ahead += self._slew_ppb(self.page.previous) * self.parameters.lead_ns // _NS + 1
        self.page = self.page._replace(
            status=ClockStatus.SYNCHRONIZED if held else ClockStatus.HOLDOVER,
            bound_ref_raw_ns=now.raw_ns,
            bound_ns=bound + ahead + 1,
            drift_ppb=drift_ppb + self._slew_ppb(self.page.current),
            valid_until_raw_ns=now.raw_ns + self.parameters.validity_ns,
        )
        return self.page

    def tick(self, now: CrossTimestamp) -> ClockPage:
        """Advances the state: end of a slew, holdover."""
        self._watch_host_clock(now)
        if not self.known:
            return self.page
        if self.disrupted_raw_ns is not None:
            return self._tick_disrupted(now, self.disrupted_raw_ns)
        self._slew(now)
        page = self.page
        synchronized = page.status == ClockStatus.SYNCHRONIZED
        drift_ppb = self.parameters.drift_ppb + self.unsure_ppb if synchronized else self.holdover_ppb
        drift_ppb += self._slew_ppb(page.current)
        if drift_ppb > page.drift_ppb:  # after a late tick a slew has overshot, and turns back
            page = self._rebound(now, page.status, drift_ppb)
        uncorrected_ns = now.raw_ns - self.corrected_raw_ns
        if uncorrected_ns > self.parameters.holdover_after_ns // 2:
            # A correction is missing. Perhaps only it is lost, perhaps nothing has been measured since the last one.
            drift_ppb = max(drift_ppb, self.holdover_ppb)
            if drift_ppb > page.drift_ppb:
                page = self.page = self._rebound(now, page.status, drift_ppb, self._uncorrected_ns(now))
        if page.status != ClockStatus.HOLDOVER and uncorrected_ns > self.parameters.holdover_after_ns:
            drift_ppb = max(drift_ppb, self.holdover_ppb)
            page = self._rebound(now, ClockStatus.HOLDOVER, drift_ppb, self._uncorrected_ns(now))
        self.page = page._replace(valid_until_raw_ns=now.raw_ns + self.parameters.validity_ns)
        return self.page

    def suspect(self, now: CrossTimestamp) -> ClockPage:
        """Something contradicts fleet time as this host has it: the machine was paused, its raw clock has lost time.

        The page says disrupted until whatever was measured before is too old to influence a correction, then unknown;
        the next correction sets the clock anew. It may then run backward once, or jump: it never slews for an hour
        while it says synchronized. Nothing to do while fleet time is unknown.
        """
        self.tick(now)
        if not self.known:
            return self.page
        if self.disrupted_raw_ns is None:
            self.page = self.page._replace(disruptions=self.page.disruptions + 1)
        self.disrupted_raw_ns, self.unverified_raw_ns, self.undecided_ns = now.raw_ns, None, 0
        self.page = self._rebound(now, ClockStatus.DISRUPTED, self.holdover_ppb)
        return self.page

    def _tick_disrupted(self, now: CrossTimestamp, since_raw_ns: int) -> ClockPage:
        self.page = self.page._replace(valid_until_raw_ns=now.raw_ns + self.parameters.validity_ns)
        if now.raw_ns - since_raw_ns > self.parameters.lookback_ns:
            self.disrupted_raw_ns = None
            self.page = self.page._replace(status=ClockStatus.UNKNOWN)
        return self.page

    def hold(self, now: CrossTimestamp) -> ClockPage:
        """No more corrections come: the page says holdover, and its bound grows as fast as that needs."""
        page = self.tick(now)
        if self.disrupted_raw_ns is not None:
            self.disrupted_raw_ns = None
            self.page = page = page._replace(status=ClockStatus.UNKNOWN)
        if page.status in (ClockStatus.SYNCHRONIZED, ClockStatus.DISRUPTED):
            drift_ppb = self.holdover_ppb + self._slew_ppb(page.current)
            self.page = self._rebound(now, ClockStatus.HOLDOVER, drift_ppb, self._uncorrected_ns(now))
        return self.page

    def published(self, now: CrossTimestamp) -> ClockPage:
        """The page for readers: from now on its bound grows as in holdover, as no later write may come to say that it
        must.
        """
        drift_ppb = self.holdover_ppb + self._slew_ppb(self.page.current)
        page = self.page
        if self.known and drift_ppb > page.drift_ppb:
            page = self._rebound(now, page.status, drift_ppb)
        # Nor that it is no longer synchronized.
        return self._widened(page)._replace(
            estimated_error_ns=self.estimated_error_ns(now),
            synchronized_until_raw_ns=self.corrected_raw_ns + self.parameters.holdover_after_ns,
        )

    def estimated_error_ns(self, now: CrossTimestamp) -> int:
        """What fleet time as published is likely off by, with what is still to be slewed; 0 = not known. Never above
        the bound: edges of the host that all follow are off by as much as others', its fleet time is not.
        """
        if not self.corrected_error_ns or self.unseen_ns or self.page.status != ClockStatus.SYNCHRONIZED:
            return 0
        left_ns = abs(self.page.at(now.raw_ns).fleet_ns - self.target.at(now.raw_ns))
        return min(self.corrected_error_ns + left_ns, self.page.bound_ns, _MOST_ERROR_NS)

    @property
    def shown(self) -> ClockPage:
        """`page` with the bound that it has for readers: nothing shows a jump of the raw clock while every
        packet waits in a queue. What is kept is `page`: the jump shows, or that there was none, once the queues drain.
        """
        return self._widened(self.page)

    @property
    def unseen_ns(self) -> int:
        """By how much the raw clock, or the fleet's, may have jumped beyond the bound of `page`."""
        return max(self.hidden_jump_ns, self.undecided_ns)

    def _widened(self, page: ClockPage) -> ClockPage:
        if not self.known:
            return page
        bound_ns = page.bound_ns + self.unseen_ns
        # What nobody has verified since nobody watched it is no synchronisation.
        doubtful = self.unverified_raw_ns is not None or bound_ns > self.parameters.widest_ns
        held = page.status == ClockStatus.SYNCHRONIZED and doubtful
        return page._replace(status=ClockStatus.HOLDOVER if held else page.status, bound_ns=bound_ns)

    def postpone(self, now: CrossTimestamp, shown: ClockPage) -> ClockPage:
        """The line of `page` has begun before readers could see it: they still follow `shown`. Another one is laid."""
        passed = self.page.current
        # For as long readers have followed the line before, and do until the new one begins, which may be later still.
        late_ns = max(0, now.raw_ns - passed.from_ns) + 2 * self.parameters.lead_ns
        extra_ns = self._slew_ppb(shown.current) * late_ns // _NS + 1
        drift_ppb = self.page.drift_ppb - self._slew_ppb(passed)
        self.page = self.page._replace(current=shown.current, previous=shown.previous)
        self._slew(now)
        drift_ppb += self._slew_ppb(self.page.current)
        self.page = self._rebound(now, self.page.status, drift_ppb, extra_ns)
        return self.page

    def kept_bound_ns(self, now: CrossTimestamp) -> int:
        """What this clock alone is good for, whatever others know: as of the last correction, aged as in holdover."""
        return self.page.at(now.raw_ns).bound_ns + self._uncorrected_ns(now)

    def _uncorrected_ns(self, now: CrossTimestamp) -> int:
        """What the bound still lacks when it turns out that nothing has been measured since the last correction."""
        more_ppb = max(0, self.holdover_ppb - self.page.drift_ppb)
        return max(0, now.raw_ns - self.corrected_raw_ns) * more_ppb // _NS

    def _rebound(
        self, now: CrossTimestamp, status: ClockStatus, drift_ppb: int, extra_ns: int = 0
    ) -> ClockPage:
        """The page with its bound restated at `now`, `extra_ns` wider."""
        return self.page._replace(
            status=status,
            bound_ref_raw_ns=now.raw_ns,
            bound_ns=self.page.at(now.raw_ns).bound_ns + extra_ns,
            drift_ppb=max(drift_ppb, self.page.drift_ppb) if status == self.page.status else drift_ppb,
        )

    def _slew_ppb(self, line: ClockLine) -> int:
        """How much faster or slower than asked for a line runs, to get to its place, rounded up. It runs on like that,
        past its place, when no tick of ours ends it: the bound has to grow as fast.
        """
        return -(-abs(line.rate_ppt - self.target.rate_ppt) // 1000)

    def _slew(self, now: CrossTimestamp) -> None:
        """Lays a line from where fleet time will be to where it should be, `slew_time_ns` later.

        It begins `lead_ns` ahead: a program that has just read the old page must not be ahead of one that reads the
        new page a little later.
        """
        begin = now.raw_ns + self.parameters.lead_ns
        old = self.page.current
        if old.from_ns > now.raw_ns:
            # The last line has not begun, and a page holds no third: the next tick replaces it.
            return
        here = old.at(begin)
        ahead = self.target.at(begin) - here
        limit = round(self.parameters.max_slew_ppm * 1e6)
        slew = max(-limit, min(limit, ahead * 10**12 // self.parameters.slew_time_ns))
        if abs(ahead) <= 1:
            # As whole nanoseconds are rounded: the line would be another one with each tick.
            slew = 0
        line = ClockLine(begin, here, self.target.rate_ppt + slew)
        if line.rate_ppt != old.rate_ppt:
            self.page = self.page._replace(current=line, previous=old)

    def _watch_host_clock(self, now: CrossTimestamp) -> None:
        host = self.host
        host.observe(now)
        self.page = self.page._replace(
            host=host.line,
            host_previous=host.previous,
            host_since_ns=host.since_ns,
            host_bound_ns=host.bound_ns,
        )


def _chained(first_ppt: int, second_ppt: int) -> int:
    """The rate of the third clock over the first."""
    return first_ppt + second_ppt + round(first_ppt * second_ppt / 10**12)
