"""From one window's fit to the next: a Kalman filter of offset, rate and drift of the rate, per edge.

Theory of operation. A crystal keeps its rate to some parts per billion over seconds, better than one loaded window can
measure it, so what earlier windows said still counts. What is measured at each round is the middle between fast packets
of both directions that have come since the last round. The fastest ones are right where stamps are: queues only add to
a delay. Where stamps are late by chance (a busy machine), the fastest packet is the one whose stamp is worst, and the
more packets, the worse; then the one that a thirty-second or an eighth of them are faster than says more. Which of them
does shows in the gap, half of the round trip of both: no clock enters it, and what moves it moves the middle as much.
So of all ranks that one is taken whose gap has changed least from round to round, and is not wider than usual now. Not
those whose usual gap is wider than the fastest packets' by more than late stamps can make it: there all packets but a
few wait in queues, one direction more than the other.

How far to trust it shows in the gap, too. If it is wider than usual by 2 e, packets of either direction, or of both,
were slow by 2 e together, and the middle is wrong by up to e. The same holds the other way round: a gap narrower than
usual shows late transmit stamps. What was tried beside this is in docs/decisions/0016. The error bound does not
depend on the filter; it follows from causality alone.

A rate that drifts (a temperature ramp) is a third state. Without signs of a ramp it is taken for small and
steady, so that it adds no noise; measurements that leave to one side open it.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from operator import itemgetter

from fabricpulse.clocksync._edge_fit import WIDEST_RATE_PPB, gap_change, usual_gap
from fabricpulse.clocksync.edge.estimator import (
    RANKS,
    RATE_SIGMAS,
    EdgeFit,
    EstimatorParameters,
    Extremes,
    Floor,
    Prior,
    Quality,
)
from fabricpulse.clocksync.edge.line_state import LineState, Measured

# A measurement that contradicts the filter by so many standard deviations, and ns, means that a clock has changed.
_GATE_SIGMAS, _GATE_NS = 8.0, 20_000.0
# A measurement off by so many standard deviations, the filter's error taken as at least so many ns, counts as one off
# by that much only; so many in a row on one side show that the rate has changed. One that is off by twice as much
# counts for two, and no more: what load does to a single one has no limit.
_ASIDE_SIGMAS, _ASIDE_NS, _ASIDE, _MOST_ASIDE = 3.0, 20.0, 3, 2
# How much less offset, rate and drift are then known, in squares of what the measurement is off by. A rate, or drift,
# that changed so many seconds ago has moved the offset, or both, since: they are off together. Were they taken for
# independent, a measurement before the end of the round would turn the rate the wrong way.
_OPEN = (0.1, 0.25, 0.25)
_CHANGED_S = 2.0
# A gap that is wider than usual by 2 e means an error from -e to e: of its variance, this share of e squared, and
# a little more, as slow packets are more often those of one direction.
_GAP_SHARE = 0.5
# Stamps are late by so many ns at most; gaps that are narrower by more mean a wrong rate, not of a bad measurement.
_LATE_NS = 60.0
# Stamps that are late by chance make the usual gap of a rank wider than the fastest packets' by so many ns at most.
_STAMPS_APART_NS = 400.0
# A rate that is known no better than drift_ppb makes the bound wider for as long as it takes to the next fit, s.
_NEXT_FIT_S = 1.5
# So long after its beginning the error of the rate is known to the filter.
_SETTLED_NS = 4_000_000_000
# The usual gap: where this share of the gaps of so many rounds is densest.
_USUAL, _GAPS = 0.25, 60
# Of them, those that stay after a silence: with more, another path there is taken for queues, for as many rounds.
_KEPT_GAPS = 3
# Standard deviation of the drift while nothing shows one, ppb/s, and of its change over 1 s.
_DRIFT_PPB_S, _DRIFT_CHANGE = 0.2, 0.1
# The same after a clock has changed.
_CHANGED_PPB_S = 300.0
# The limits of the rate come from the fastest packets of so many seconds.
_MEMORY_NS = 16_000_000_000


@dataclass
class EdgeFilter:
    """State at host time t_ns, the offset from base_ns. resets : measurements that contradicted the past."""

    parameters: EstimatorParameters
    t_ns: int = 0
    base_ns: int = 0
    state: LineState = field(default_factory=LineState)
    windows: int = 0
    resets: int = 0
    # Of each rank, oldest first.
    _gaps: list[list[float]] = field(default_factory=lambda: [[] for _ in RANKS])
    _extremes: deque[Extremes] = field(default_factory=deque)
    _aside: int = 0
    _begun_ns: int = 0
    _drift_ppb_s: float = _DRIFT_PPB_S

    def clear(self, *, changed: bool) -> None:
        """Forgets everything but the counter. changed : a clock's rate has, and may go on to; else there was nothing to
        measure for a while, and the last gaps are most likely still the usual ones.
        """
        self.windows = self._aside = 0
        self._drift_ppb_s = _CHANGED_PPB_S if changed else _DRIFT_PPB_S
        for gaps in self._gaps:
            del gaps[: None if changed else -_KEPT_GAPS]
        self._extremes.clear()

    def prior(self, t_ns: int) -> Prior | None:
        """What is known of the rate at host time `t_ns`; None before the first window."""
        if self.windows == 0:
            return None
        state = self._at(max(self.t_ns, t_ns))
        most = abs(state.drift_ppb_s) + 3 * math.sqrt(state.covariance[5])
        return Prior(state.rate_ppb, state.drift_ppb_s, most, self.t_ns, tuple(self._extremes))

    def update(self, fit: EdgeFit) -> EdgeFit:
        """Takes a window and returns the fit that takes the past into account, valid at the window's end."""
        behind = (fit.t_last_ns - fit.t_ns) * 1e-9
        if self.windows:
            self.state, self.t_ns = self._at(fit.t_last_ns), fit.t_last_ns
            self.base_ns += (whole := round(self.state.offset_ns))
            self.state = self.state._replace(offset_ns=self.state.offset_ns - whole)
            self._take(fit)
        if not self.windows:
            self.t_ns, self.base_ns = fit.t_last_ns, fit.offset_ns
            rate_variance = min(fit.rate_sigma_ppb, WIDEST_RATE_PPB) ** 2
            # The line may be wrong by its whole gap: it is tested by the gaps that follow.
            variance = fit.sigma_ns**2 + max(fit.half_gap_ns / 4, 0.0) ** 2 + behind * behind * rate_variance
            covariance = (variance, behind * rate_variance, 0.0, rate_variance, 0.0, self._drift_ppb_s**2)
            self.state = LineState(fit.rate_ppb * behind, fit.rate_ppb, 0.0, covariance)
            self._begun_ns = fit.t_last_ns - round(fit.window_s * 1e9)
        self.windows += 1
        self._extremes.append(fit.extremes)
        while len(self._extremes) > 1 and self._extremes[0].upper_t_ns < fit.t_last_ns - _MEMORY_NS:
            self._extremes.popleft()
        return self._result(fit, behind)

    def _take(self, fit: EdgeFit) -> None:
        """Weighs what a window says against what is known; clears the filter if both cannot be true."""
        # A window by itself: what was known fits no packets any more.
        contradicted = fit.quality == Quality.WINDOW
        if fit.floors:
            at, variance = self._best(fit.floors)
            seen = Measured(
                (at.upper_ns + at.lower_ns) / 2 + float(fit.base_ns - self.base_ns),
                (at.upper_s + at.lower_s) / 2,
                (at.upper_s**2 + at.lower_s**2) / 4,
                variance,
            )
            contradicted = self._contradicts(seen)
            if not contradicted:
                _, spread = self.state.surprise(seen)
                self.state = self.state.measured(seen, _ASIDE_SIGMAS * math.sqrt(spread + _ASIDE_NS**2))
        if contradicted:
            self.resets += 1
            self.clear(changed=True)

    def _best(self, floors: tuple[Floor, ...]) -> tuple[Floor, float]:
        """The one that is expected to be wrong by least, and the variance of what it says."""
        ways: list[tuple[float, float, Floor]] = []
        fastest = math.inf
        for at, gaps in zip(floors, self._gaps, strict=True):
            if len(gaps) == _GAPS:
                gaps.pop(0)
            gaps.append(gap := self._gap(at))
            usual, scatter = usual_gap(gaps, _USUAL)
            fastest = min(fastest, usual)
            if usual > fastest + _STAMPS_APART_NS:
                continue
            wrong = _GAP_SHARE * max(gap - usual, -_LATE_NS) ** 2
            ways.append((wrong + gap_change(gaps) ** 2, wrong + scatter**2, at))
        _, variance, at = min(ways, key=itemgetter(0))
        wander = self.parameters.wander_ppb**2 / 12 * (abs(at.upper_s) ** 3 + abs(at.lower_s) ** 3)
        return at, self.parameters.stamp_noise_ns**2 + variance + wander

    def _gap(self, at: Floor) -> float:
        """Half of the round trip of both packets, along the line that is known, ns."""
        rate, drift = self.state.rate_ppb, self.state.drift_ppb_s / 2
        fall = (rate + drift * at.upper_s) * at.upper_s - (rate + drift * at.lower_s) * at.lower_s
        return (at.upper_ns - at.lower_ns - fall) / 2

    def _contradicts(self, seen: Measured) -> bool:
        """Whether a measurement contradicts all that was known. A rate that changes is noticed, and let change."""
        innovation, variance = self.state.surprise(seen)
        spread = math.sqrt(variance)
        if abs(innovation) > _GATE_SIGMAS * spread + _GATE_NS:
            return True
        by = min(int(abs(innovation) / (_ASIDE_SIGMAS * math.hypot(spread, _ASIDE_NS))), _MOST_ASIDE)
        side = by if innovation > 0 else -by
        self._aside = side if self._aside * side <= 0 else self._aside + side
        if abs(self._aside) >= _ASIDE:
            oo, ro, do, rr, dr, dd = self.state.covariance
            o, r, d = (share * innovation**2 for share in _OPEN)
            ago, moved = _CHANGED_S, _CHANGED_S**2 / 2
            covariance = (
                *(oo + o + r * ago**2 + d * moved**2, ro + r * ago + d * moved * ago, do + d * moved),
                *(rr + r + d * ago**2, dr + d * ago, dd + d),
            )
            self.state = self.state._replace(covariance=covariance)
        return False

    def _at(self, t_ns: int) -> LineState:
        return self.state.after((t_ns - self.t_ns) * 1e-9, self.parameters.wander_ppb, _DRIFT_CHANGE)

    def _result(self, fit: EdgeFit, behind: float) -> EdgeFit:
        raw_end = float(fit.offset_ns - self.base_ns) + fit.rate_ppb * behind
        # The filter may not leave what causality allows.
        change = min(max(self.state.offset_ns - raw_end, -max(fit.below_ns, 0.0)), max(fit.above_ns, 0.0))
        self.state = state = self.state._replace(offset_ns=raw_end + change)
        above, below = fit.above_ns - change, fit.below_ns + change
        # What is in the bound besides: stamps, and a rate that is seen to change.
        more = fit.bound_ns - max(fit.above_ns, fit.below_ns, 0.0)
        rate_sigma = math.sqrt(max(state.covariance[3], 1e-4))
        if fit.t_last_ns - self._begun_ns < _SETTLED_NS:
            # Where all packets of the first windows waited, they constrain the rate less than they scatter. What
            # causality leaves is reported only: to weigh by it makes the line worse.
            rate = state.rate_ppb
            rate_sigma = max(rate_sigma, max(fit.rate_high_ppb - rate, rate - fit.rate_low_ppb) / RATE_SIGMAS)
        unsure = max(0.0, RATE_SIGMAS * rate_sigma - self.parameters.drift_ppb) * _NEXT_FIT_S
        return fit._replace(
            t_ns=fit.t_last_ns,
            offset_ns=self.base_ns + round(state.offset_ns),
            raw_offset_ns=fit.offset_ns + round(fit.rate_ppb * behind),
            # Until the next fit, which is when it is used.
            rate_ppb=state.rate_ppb + state.drift_ppb_s * _NEXT_FIT_S / 3,
            above_ns=above,
            below_ns=below,
            bound_ns=max(above, below, 0.0) + more + unsure,
            sigma_ns=math.sqrt(max(state.covariance[0], 1.0)),
            rate_sigma_ppb=rate_sigma,
            floors=(),
        )
