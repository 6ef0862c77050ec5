"""Fleet time of this host as others see it: kept up, published in the clock page and to other daemons, and taken back
when something contradicts it.

The arithmetic is `clock.fleet_clock`; here are the clocks, the page and the outputs that it needs.
"""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClock, FleetClockParameters
from fabricpulse.clocksync.outputs.config import OutputsConfig
from fabricpulse.clocksync.outputs.outputs import Outputs
from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.clocksync.sidecar.page_file import PageFile
from fabricpulse.clocksync.sidecar.pause import pause_watch
from fabricpulse.clocksync.wire.messages import Line
from fabricpulse.core.log import get_logger
from fabricpulse.core.run_dir import clock_page_path
from fabricpulse.core.shm.clock_page import ClockPage, ClockStatus

log = get_logger(__name__)

_NS = 1_000_000_000
# Stamps of a train are together so long after it was sent, at the lowest rates.
_LATE_TRAINS_S = 0.4
# From one tick to the next while nothing is slewed: two between usual rounds. In twice that a clock that chronyd
# corrects by 40 ppm would leave its line by more than a step (STEP_NS).
_TICK_S = 0.46
# A page that holds for seconds is renewed at least so often; and when the host clock is so far from where it says.
_RENEWED_NS = 950_000_000
_HOST_LINE_NS = 200
# Who watches nothing for so long does not notice a pause; edges begin to show what happened meanwhile within so long
# (FleetClockParameters.measured_ns : and corrections after that).
_WATCHED_S, _MEASURED_S = 1.0, 1.25
# Epochs of stamp clocks are multiples of it (exporters/probe_engine/clocks/tick_clock.cc).
_EPOCH_NS = 1 << 20


def no_op() -> None:
    """Where nobody wants to know."""


def _never() -> bool:
    return False


class PublishedClock:
    """host : the clocks of this host. fleet : fleet time, for reading. contradictions : how often each source has
    contradicted it. due_s : of the next tick, on time.monotonic. planned : called when it has been set.
    watched : at the last tick, or correction, a pause of the machine would have been noticed.

    delays_contradict : called before a page may go on; whether delays have contradicted it since the last call.
    forget_samples : called while samples come in that were measured by a clock that has been contradicted.
    """

    def __init__(
        self, parameters: FleetClockParameters, outputs: OutputsConfig, forget_samples: Callable[[], None]
    ) -> None:
        self.host = HostClock()
        # Before the page is taken over, which was set before any pause that is seen later.
        self._pauses = pause_watch()
        # First the page, which is what the sidecar is for: where both it and outputs are refused, it is named.
        self._page_file = PageFile(clock_page_path())
        self.fleet = FleetClock.start(parameters, self.host.cross_timestamp(), self._page_file.shown)
        # Until the engine says: the same as it would choose.
        self.fleet.epoch_ns &= -_EPOCH_NS
        self._sign()
        self._page_file.begin(self.fleet.page)
        self.outputs = Outputs(outputs)
        self.contradictions = dict.fromkeys(("causality", "edges", "epoch", "suspend", "vmclock"), 0)
        self._forget_samples = forget_samples
        self._contradicted_s: float | None = None
        self.due_s = self._sampled_s = self._unmeasured_until_s = 0.0
        self.planned: Callable[[], None] = no_op
        self.delays_contradict: Callable[[], bool] = _never
        self._followed = False
        self.watched = True
        self._steps = 0
        self._shown_state = self._state()

    def stamp_now_ns(self) -> int:
        """The stamp clock now."""
        return self.host.raw_now_ns() + self.fleet.epoch_ns

    @property
    def shown(self) -> ClockPage:
        """The page as readers see it: in holdover while the heartbeat is held back."""
        page = self.fleet.shown
        unwatched = page.status == ClockStatus.SYNCHRONIZED and not self.watched
        return page._replace(status=ClockStatus.HOLDOVER) if unwatched else page

    def tick(self) -> None:
        """Samples the clocks and keeps the page alive."""
        now = self._sample()
        self.fleet.tick(now)
        self._plan()
        if self._outdated(now):
            self._show(now)

    def _sample(self) -> CrossTimestamp:
        """What the clocks show, after a check for pauses of the machine."""
        if source := self._pauses.poll():
            self._sign()
            self.contradict(source)
            self._steps = self.fleet.host.steps  # a suspend steps the host clock, too
        # The notice of it may wait behind this in the loop, and the heartbeat has acted on it.
        contradictions = self._page_file.contradictions
        if self.delays_contradict():
            self.contradict("causality")
        # Trains that were on their way come in a little later, with stamps of both clocks.
        if self.contradicted_within(_LATE_TRAINS_S):
            self._forget_samples()
        now, before_s, self._sampled_s = self.host.cross_timestamp(), self._sampled_s, time.monotonic()
        # The heartbeat sees for itself that the engine measures, and what it says: a loop that was late missed nothing.
        late_s = self._sampled_s - before_s if before_s and not self._followed else 0.0
        if max(late_s, self._page_file.longest_silence_ns() / _NS) > _WATCHED_S:
            self._unmeasured_until_s = self._sampled_s + _MEASURED_S
        shown_ns = self.host.raw_now_ns()
        if self._sampled_s < self._unmeasured_until_s:
            self.fleet.unwatched(now)
        else:
            self._page_file.watch_until(now.raw_ns + round(_WATCHED_S * _NS), contradictions)
        # The heartbeat is ahead just after that, unless the engine measures nothing.
        self.watched = self._page_file.watched(shown_ns)
        return now

    def _plan(self) -> None:
        """A line that is laid as a slew ends takes over just then. One that is slewed for longer overshoots."""
        slewed_s = self.fleet.parameters.slew_time_ns / _NS
        self.due_s = self._sampled_s + (slewed_s if self.fleet.slewing else _TICK_S)
        self.planned()

    def _outdated(self, now: CrossTimestamp) -> bool:
        """Whether readers need another page: the line or the bound has changed, the host clock has left its line, or
        the page would end soon.
        """
        shown = self._page_file.shown
        if not self.fleet.known or self._state() != self._shown_state:
            return True
        aged_ns = now.raw_ns + self.fleet.parameters.validity_ns - shown.valid_until_raw_ns
        return aged_ns > _RENEWED_NS or abs(shown.raw_ns(now.host_ns) - now.raw_ns) > _HOST_LINE_NS

    def _state(self) -> tuple[object, ...]:
        page, unseen_ns = self.fleet.page, self.fleet.unseen_ns
        return (
            *(page.status, page.current, page.bound_ref_raw_ns, page.bound_ns, page.drift_ppb),
            *(unseen_ns, self.watched, self.fleet.unverified_raw_ns is None),
        )

    def _show(self, now: CrossTimestamp) -> None:
        if self.fleet.host.steps != self._steps:
            self._steps = self.fleet.host.steps
            log.warning("the system clock was stepped; fleet time goes on", steps=self._steps)
        self._publish(now)
        self._publish_outputs()

    def leave(self) -> None:
        """What the page says once it is written no more: holdover, for as long as a page holds."""
        self.fleet.hold(now := self.host.cross_timestamp())
        self._publish(now)
        self._publish_outputs()
        self._page_file.leave()

    def correct(self, correction: Correction) -> int:
        """Takes a correction. Returns what was published minus what the correction asks for, ns; 0 at the first."""
        now = self._sample()
        if self.fleet.contradicted_by(now, correction):
            self.contradict("edges")
        known = self.fleet.known
        shown = self.fleet.page.at(now.raw_ns).fleet_ns
        self.fleet.correct(now, correction)
        self._plan()
        self._show(now)
        return shown - self.fleet.target.at(now.raw_ns) if known else 0

    def feed_outputs(self) -> None:
        """Gives daemons of this host a sample of fleet time, which is synchronized."""
        if not self.outputs.refclocks:
            return
        kernel_ns = time.time_ns()
        self.outputs.feed(self.shown, kernel_ns, self.host.from_kernel(kernel_ns))

    def requested_line(self) -> Line | None:
        """The line that the last correction asked for, with what it is good for now."""
        if not self.fleet.known or self.fleet.disrupted_raw_ns is not None:
            return None
        now = self.host.cross_timestamp()
        asked = self.fleet.requested(now)
        return Line(asked.from_ns, asked.to_ns - asked.from_ns, asked.rate_ppt, self.fleet.kept_bound_ns(now))

    def contradict(self, source: str) -> None:
        """The machine was paused, or something else contradicts fleet time as this host has it."""
        self.contradictions[source] += 1
        known = self.fleet.known
        now = self.host.cross_timestamp()
        self.fleet.suspect(now)
        # Until the next tick readers would take it as valid for half a second more.
        self._publish(now)
        # What was measured before is of another clock.
        self._contradicted_s = time.monotonic()
        self._forget_samples()
        if known:
            log.warning(
                "fleet time of this host contradicts the fleet's: was the machine paused or migrated? It is set anew",
                source=source,
            )

    def doubt(self, hidden_jump_ns: int) -> None:
        """By so much the raw clock may have jumped unseen: the bound is wider by as much, at once."""
        grown = hidden_jump_ns > self.fleet.hidden_jump_ns
        self.fleet.hidden_jump_ns = hidden_jump_ns
        if grown and self.fleet.known:
            self._publish(self.host.cross_timestamp())

    def contradicted_within(self, seconds: float) -> bool:
        """Whether the last contradiction is no older."""
        return self._contradicted_s is not None and time.monotonic() - self._contradicted_s < seconds

    def follow(self, counts: NDArray[np.uint64], interval_ns: int) -> None:
        """The probe engine counts samples there, of trains that are `interval_ns` apart, and contradictions: while it
        does not measure, nothing would show a pause of the machine, and the page is not synchronized.
        """
        if self._followed:
            # Another engine, whose edges begin anew.
            self._unmeasured_until_s = time.monotonic() + _MEASURED_S
        self._followed = True
        self._page_file.follow(counts, interval_ns)

    def follow_epoch(self, epoch_ns: int | None, *, reported: bool) -> None:
        """Takes up the epoch of the probe ring. Another one than before belongs to an engine that has forgotten the old
        one: corrections that are on their way are of another stamp clock. reported : there may be such corrections.
        """
        if epoch_ns is None or epoch_ns == self.fleet.epoch_ns:
            return
        self.fleet.epoch_ns = epoch_ns
        if self.fleet.known and reported:
            self.contradict("epoch")

    def _publish(self, now: CrossTimestamp) -> None:
        while not self._page_file.write(self.fleet.published(now)):
            # This process had no core for longer than the lead of the new line.
            now = self.host.cross_timestamp()
            self.fleet.postpone(now, self._page_file.shown)
        self._shown_state = self._state()

    def _sign(self) -> None:
        """Enters the pauses that are known of in the page: a later one contradicts it, as readers see themselves."""
        self.fleet.page = self.fleet.page._replace(
            suspended_ns=self._pauses.suspended_ns,
            vmclock_marker=self._pauses.vmclock_marker,
        )

    def _publish_outputs(self) -> None:
        self.outputs.publish(self.shown, self.host.cross_timestamp(), self.fleet.holdover_ppb)
