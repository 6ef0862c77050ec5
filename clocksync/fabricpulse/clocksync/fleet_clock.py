"""Fleet time on one host: from corrections that arrive now and then to a clock that a program can rely on.

Guarantees, in this order: fleet time never runs backward and never jumps once it has been set; its rate
differs from the rate that the corrections ask for by at most `max_slew_ppm`; and the true fleet time lies
within the bound, which grows while no correction comes. The host clock may be stepped under it:
CLOCK_MONOTONIC_RAW tells, and the line is laid anew so that fleet time goes on as if nothing had happened,
with status DISRUPTED until the next correction.

Pure: readings of the clocks are passed in, the page to publish comes out.
"""

from dataclasses import dataclass, replace

from fabricpulse.core.shm.clock_page import ClockLine, ClockPage, ClockStatus

_NS = 1_000_000_000


@dataclass(frozen=True)
class Instant:
    """One moment on both clocks of the host: CLOCK_REALTIME (or the lab's virtual clock) and
    CLOCK_MONOTONIC_RAW.
    """

    host_ns: int
    raw_ns: int


@dataclass(frozen=True)
class Correction:
    """fleet = host + correction_ns at host time ref_host_ns, with the rate rate_ppb; true within bound_ns
    there. free : of hosts that follow only each other, or an anchor, so that all may turn away from the fleet, or from
    UTC, together. adrift : and they know that they are not the fleet.
    """

    ref_host_ns: int
    correction_ns: int
    rate_ppb: float
    bound_ns: int
    free: bool = False
    adrift: bool = False


@dataclass(frozen=True)
class FleetClockParameters:
    """drift_ppb : error of the rate while synchronised. holdover_drift_ppb : without corrections.
    holdover_after_ns : a correction older than this is no synchronisation. validity_ns : how long the page
    holds when we die.
    """

    slew_time_ns: int = _NS // 4
    lead_ns: int = 50_000_000
    max_slew_ppm: float = 500.0
    drift_ppb: int = 250
    holdover_drift_ppb: int = 1_000
    holdover_after_ns: int = 4 * _NS
    validity_ns: int = 10 * _NS
    step_ns: int = 20_000
    wobble_ns: int = 400


@dataclass
class FleetClock:
    """The state. `page` is what to publish; `target` the line that the last correction asked for."""

    parameters: FleetClockParameters
    page: ClockPage
    target: ClockLine
    last: Instant
    corrected_host_ns: int = 0
    adrift: bool = False  # the last correction was
    host_per_raw: float | None = None  # rate of the host clock minus that of the raw clock, as a ratio
    _anchor: Instant | None = None  # where the measurement of host_per_raw began

    @classmethod
    def start(
        cls, parameters: FleetClockParameters, now: Instant, old: ClockPage | None = None
    ) -> "FleetClock":
        """A clock that knows nothing, or that goes on with the page of a sidecar that was here before.

        `old` is taken over only if it is still valid and the host clock has not been stepped since.
        """
        zero = ClockLine(now.host_ns, now.host_ns, 0)
        page = ClockPage(ClockStatus.UNKNOWN, zero, zero, now.host_ns, 0, 0, 0, now.raw_ns, 0)
        if old is None or old.status == ClockStatus.UNKNOWN or now.host_ns > old.valid_until_host_ns:
            return cls(parameters, page, zero, now)
        host_age = now.host_ns - old.current.ref_host_ns
        raw_age = now.raw_ns - old.ref_mono_raw_ns
        # 500 ppm is as fast as the kernel slews; more is a step, and a negative age another boot.
        unexplained = abs(host_age - raw_age)
        if raw_age < -parameters.lead_ns or unexplained > 500e-6 * abs(raw_age) + parameters.step_ns:
            return cls(parameters, page, zero, now)
        time = old.convert(now.host_ns)
        line = ClockLine(now.host_ns, time.fleet_ns, old.current.rate_ppt)
        page = replace(
            old,
            status=ClockStatus.HOLDOVER,
            current=line,
            previous=old.current,
            bound_ref_host_ns=now.host_ns,
            # A slew, or a small step, while nobody looked: it cannot be told from the usual rate of the host clock.
            bound_ns=time.bound_ns + unexplained,
            drift_ppb=parameters.holdover_drift_ppb,
            valid_until_host_ns=now.host_ns + parameters.validity_ns,
            ref_mono_raw_ns=now.raw_ns,
        )
        return cls(parameters, page, line, now)

    @property
    def known(self) -> bool:
        """True once fleet time has been set."""
        return self.page.status != ClockStatus.UNKNOWN

    def correct(self, now: Instant, correction: Correction) -> ClockPage:
        """Takes a correction. The first one sets the clock, later ones slew it."""
        self.tick(now)
        rate_ppt = round(correction.rate_ppb * 1000)
        target = ClockLine(
            correction.ref_host_ns, correction.ref_host_ns + correction.correction_ns, rate_ppt
        )
        drift_ppb = self.parameters.drift_ppb
        self.adrift = correction.adrift
        if correction.free or correction.adrift:
            drift_ppb = max(drift_ppb, self.parameters.holdover_drift_ppb)
        age_ns = abs(now.host_ns - correction.ref_host_ns)
        bound = correction.bound_ns + age_ns * drift_ppb // _NS
        if not (self.adrift and self.known):
            self.corrected_host_ns = now.host_ns
        held = now.host_ns - self.corrected_host_ns <= self.parameters.holdover_after_ns
        self.target = target
        if not self.known:
            line = ClockLine(now.host_ns, target.at(now.host_ns), rate_ppt)
            self.page = replace(self.page, current=line, previous=line, ref_mono_raw_ns=now.raw_ns)
        else:
            self._slew(now)
        ahead = abs(target.at(now.host_ns) - self.page.convert(now.host_ns).fleet_ns)
        # The last slew goes on until the new line begins.
        ahead += self._turn_ppb(self.page.previous) * self.parameters.lead_ns // _NS + 1
        self.page = replace(
            self.page,
            status=ClockStatus.SYNCHRONIZED if held else ClockStatus.HOLDOVER,
            bound_ref_host_ns=now.host_ns,
            bound_ns=bound + ahead + 1,
            drift_ppb=drift_ppb + self._turn_ppb(self.page.current),
            valid_until_host_ns=now.host_ns + self.parameters.validity_ns,
        )
        return self.page

    def tick(self, now: Instant) -> ClockPage:
        """Notices the passage of time: steps of the host clock, the end of a slew, the want of
        corrections.
        """
        self._watch_host_clock(now)
        self.last = now
        if not self.known:
            return self.page
        self._slew(now)
        page = self.page
        synchronized = page.status == ClockStatus.SYNCHRONIZED
        drift_ppb = self.parameters.drift_ppb if synchronized else self.parameters.holdover_drift_ppb
        drift_ppb += self._turn_ppb(page.current)
        if drift_ppb > page.drift_ppb:  # after a late tick a slew has overshot, and turns back
            page = self._rebound(now, page.status, 0, drift_ppb)
        if (
            page.status != ClockStatus.HOLDOVER
            and now.host_ns - self.corrected_host_ns > self.parameters.holdover_after_ns
        ):
            page = self._rebound(
                now, ClockStatus.HOLDOVER, 0, max(drift_ppb, self.parameters.holdover_drift_ppb)
            )
        self.page = replace(page, valid_until_host_ns=now.host_ns + self.parameters.validity_ns)
        return self.page

    def hold(self, now: Instant) -> ClockPage:
        """From now on nobody corrects: the page says holdover, and its bound grows as fast as that needs."""
        page = self.tick(now)
        if page.status in (ClockStatus.SYNCHRONIZED, ClockStatus.DISRUPTED):
            drift_ppb = self.parameters.holdover_drift_ppb + self._turn_ppb(page.current)
            self.page = self._rebound(now, ClockStatus.HOLDOVER, 0, drift_ppb)
        return self.page

    def _rebound(self, now: Instant, status: ClockStatus, extra_ns: int, drift_ppb: int) -> ClockPage:
        """The page with its bound restated at `now`, `extra_ns` wider."""
        time = self.page.convert(now.host_ns)
        return replace(
            self.page,
            status=status,
            bound_ref_host_ns=now.host_ns,
            bound_ns=time.bound_ns + extra_ns,
            drift_ppb=max(drift_ppb, self.page.drift_ppb) if status == self.page.status else drift_ppb,
        )

    def _turn_ppb(self, line: ClockLine) -> int:
        """How much faster or slower than asked for a line runs, to get to its place, rounded up. It runs on like that,
        past its place, when no tick of ours ends it: the bound has to grow as fast.
        """
        return -(-abs(line.rate_ppt - self.target.rate_ppt) // 1000)

    def _slew(self, now: Instant) -> None:
        """Lays a line from where fleet time will be to where it should be, `slew_time_ns` later.

        It begins `lead_ns` ahead: a program that has just read the old page must not be ahead of one that reads the
        new page a little later.
        """
        begin = now.host_ns + self.parameters.lead_ns
        old = self.page.current
        if old.ref_host_ns > now.host_ns:
            # The last line has not begun, and a page holds no third: the next tick replaces it.
            return
        here = old.at(begin)
        ahead = self.target.at(begin) - here
        limit = round(self.parameters.max_slew_ppm * 1e6)
        turn = max(-limit, min(limit, ahead * 10**12 // self.parameters.slew_time_ns))
        line = ClockLine(begin, here, self.target.rate_ppt + turn)
        if line.rate_ppt != old.rate_ppt:
            raw_ns = now.raw_ns + self.parameters.lead_ns
            self.page = replace(self.page, current=line, previous=old, ref_mono_raw_ns=raw_ns)

    def _watch_host_clock(self, now: Instant) -> None:
        raw = now.raw_ns - self.last.raw_ns
        host = now.host_ns - self.last.host_ns
        if raw <= 0:
            return
        ratio = self.host_per_raw
        jump = host - raw - (ratio * raw if ratio is not None else 0.0)
        limit = self.parameters.step_ns + 500e-6 * raw if ratio is None else self.parameters.step_ns
        if abs(jump) > limit:
            self._stepped(now, round(raw * (1.0 + (ratio or 0.0))))
            self._anchor = None
            return
        if ratio is not None and abs(jump) > self.parameters.wobble_ns and self.known:
            # Somebody slews the host clock. What that does to fleet time until the next correction is in the
            # bound.
            self.page = self._rebound(now, self.page.status, round(abs(jump)), self.page.drift_ppb)
        if self._anchor is None:
            self._anchor = self.last
        span = now.raw_ns - self._anchor.raw_ns
        if span >= _NS // 2:
            self.host_per_raw = (now.host_ns - self._anchor.host_ns - span) / span
            self._anchor = now

    def _stepped(self, now: Instant, elapsed_ns: int) -> None:
        """The host clock jumped: fleet time goes on by the raw clock, the line starts anew at the new host
        time.
        """
        disruptions = self.page.disruptions + 1
        if not self.known:
            self.page = replace(self.page, disruptions=disruptions)
            return
        expected = self.last.host_ns + elapsed_ns  # what the host clock would show without the step
        time = self.page.convert(expected)
        shift = now.host_ns - expected
        line = ClockLine(now.host_ns, time.fleet_ns, self.target.rate_ppt)
        self.target = ClockLine(
            self.target.ref_host_ns + shift, self.target.ref_fleet_ns, self.target.rate_ppt
        )
        self.corrected_host_ns += shift
        self.page = replace(
            self.page,
            status=ClockStatus.DISRUPTED,
            current=line,
            previous=self.page.current,
            bound_ref_host_ns=now.host_ns,
            # How well the two readings of an instant belong together, and a tick of unknown rate.
            bound_ns=time.bound_ns + 2_000 + abs(elapsed_ns) // 1_000_000,
            drift_ppb=self.parameters.holdover_drift_ppb,
            valid_until_host_ns=now.host_ns + self.parameters.validity_ns,
            ref_mono_raw_ns=now.raw_ns,
            disruptions=disruptions,
        )
