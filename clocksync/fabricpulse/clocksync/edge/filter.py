"""From one window's fit to the next: a Kalman filter of offset and rate, per edge.

Theory of operation. A crystal keeps its rate to some parts per billion over seconds, better than one loaded window can
measure it, so what the earlier windows said still counts. What is measured at each step is a level: the mean of the
fastest packets of both directions since the last step. How far to trust it is told by its gap. Were both floors those
of empty queues and warm caches, the gap would be the usual one of this edge; if it is wider by 2 e, then packets of
either direction, or of both, were slow by 2 e together, and the level is wrong by up to e. The same holds the other way
round: a gap narrower than usual tells of late transmit stamps. So a quiet second counts much and a bad one hardly. The
level only finds the place and notices a clock that has changed; once the offset is known to some widths of a floor, the
packets themselves are asked (floor_likelihood.py), which say more, and how restless the clocks are is learned from what
they say (wander.py). The error bound does not
depend on the filter; it follows from causality alone.
"""

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from fabricpulse.clocksync.edge.estimator import EdgeFit, EstimatorParameters, Extremes, Fresh, Prior
from fabricpulse.clocksync.edge.floor_likelihood import FloorLikelihood
from fabricpulse.clocksync.edge.separating_line import WIDEST_RATE_PPB
from fabricpulse.clocksync.edge.wander import Wander

# A level that contradicts the filter by so many standard deviations, and ns, means that a clock has changed.
_GATE_SIGMAS, _GATE_NS = 8.0, 500.0
# Levels in a row on one side, each by so many standard deviations: the rate has changed.
_TURN_SIGMAS, _TURN_LEVELS = 3.0, 2
# What levels err by when the load changes, ns, which is no turn: the filter may know the offset much better than they.
_TURN_NS = 50.0
# A rate that is known no better than drift_ppb makes the bound wider for as long as it takes to the next fit, s.
_NEXT_FIT_S = 1.5
_RATE_SIGMAS = 6.0
# The usual gap: this quantile of the gaps of so many levels.
_USUAL, _GAPS = 0.25, 60
# Where a quarter of the levels are so much wider than their windows, few packets meet empty queues: then the line
# through the whole window, with its few fast packets, says more.
_BUSY, _BUSY_NS = 0.75, 120.0
# The peak of delays at a floor is so much wider than the best stamps are good, until it is learned.
_FLOOR_WIDTH = 2.0
# The limits of the rate look at the fastest packets of so many seconds.
_MEMORY_NS = 16_000_000_000


@dataclass
class EdgeFilter:
    """State at host time t_ns: offset (int64 base plus float rest), rate, their covariance.

    rate_low_ppb, rate_high_ppb : limits of the rate by causality. resets : levels that contradicted the past.
    """

    parameters: EstimatorParameters
    t_ns: int = 0
    base_ns: int = 0
    offset_ns: float = 0.0
    rate_ppb: float = 0.0
    p_oo: float = 0.0
    p_or: float = 0.0
    p_rr: float = 0.0
    rate_low_ppb: float = -np.inf
    rate_high_ppb: float = np.inf
    windows: int = 0
    resets: int = 0
    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS))
    _wider: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS))
    _extremes: deque[Extremes] = field(default_factory=deque)
    _turns: int = 0
    _floors: FloorLikelihood = field(init=False)
    _wander: Wander = field(init=False)

    def __post_init__(self) -> None:
        self._floors = FloorLikelihood(_FLOOR_WIDTH * self.parameters.stamp_noise_ns)
        self._wander = Wander(self.parameters.wander_ppb)

    def clear(self) -> None:
        """Forgets everything but the counter."""
        self.windows = self._turns = 0
        self._gaps.clear()
        self._wider.clear()
        self._extremes.clear()
        self._floors.clear()
        self._wander.clear()

    def prior(self, t_ns: int) -> Prior | None:
        """What is known of the rate at host time `t_ns`; None before the first window."""
        if self.windows == 0:
            return None
        dt = max(0.0, (t_ns - self.t_ns) * 1e-9)
        sigma = float(np.sqrt(self.p_rr + self._wander.ppb**2 * dt))
        extremes = tuple(self._extremes)
        return Prior(self.rate_ppb, sigma, self.rate_low_ppb, self.rate_high_ppb, self.t_ns, extremes)

    def update(self, fit: EdgeFit) -> EdgeFit:
        """Takes a window and returns the fit that takes the past into account, valid at the window's end."""
        behind = (fit.t_last_ns - fit.t_ns) * 1e-9
        if self.windows:
            elapsed_s = (fit.t_last_ns - self.t_ns) * 1e-9
            self._predict(fit.t_last_ns)
            self._take(fit, elapsed_s)
        if not self.windows:
            self.t_ns, self.base_ns = fit.t_last_ns, fit.offset_ns
            self.offset_ns, self.rate_ppb = fit.rate_ppb * behind, fit.rate_ppb
            self.p_rr = min(fit.rate_sigma_ppb, WIDEST_RATE_PPB) ** 2
            self.p_oo = fit.sigma_ns**2 + behind * behind * self.p_rr
            self.p_or = behind * self.p_rr
        self.windows += 1
        self.rate_low_ppb, self.rate_high_ppb = fit.rate_low_ppb, fit.rate_high_ppb
        self._extremes.append(fit.extremes)
        while len(self._extremes) > 1 and self._extremes[0].upper_t_ns < fit.t_last_ns - _MEMORY_NS:
            self._extremes.popleft()
        return self._result(fit, behind)

    def _take(self, fit: EdgeFit, elapsed_s: float) -> None:
        """Weighs what a window says against what is known; clears the filter if both cannot be true."""
        # Windows overlap: the same trains come back in the next, and must not count as new each time.
        overlap = max(1.0, fit.window_s / max(elapsed_s, 0.05))
        at_ns, offset_ns, variance = fit.t_ns, fit.offset_ns, fit.sigma_ns**2 * overlap
        level, usual, scatter = fit.level, np.nan, np.inf
        if level is not None:
            self._gaps.append(level.half_gap_ns)
            self._wider.append(level.half_gap_ns - fit.half_gap_ns)
            usual, scatter = self._usual()
            if sorted(self._wider)[round((len(self._wider) - 1) * _BUSY)] > _BUSY_NS:
                level = None
            else:
                at_ns, offset_ns = level.t_ns, level.offset_ns
                variance = self.parameters.stamp_noise_ns**2 + (level.half_gap_ns - usual) ** 2 + scatter**2
        if self._contradicts(at_ns, offset_ns, variance):
            self.resets += 1
            self.clear()
            return
        if scatter < np.inf and fit.fresh is not None and self._ask(fit.fresh, usual, scatter, elapsed_s):
            return
        ahead = (at_ns - self.t_ns) * 1e-9
        self._measure(1.0, ahead, float(offset_ns - self.base_ns), variance)
        if level is None and fit.rate_sigma_ppb < np.inf:
            self._measure(0.0, 1.0, fit.rate_ppb, fit.rate_sigma_ppb**2 * overlap)

    def _ask(self, fresh: Fresh, usual: float, scatter: float, elapsed_s: float) -> bool:
        """Takes what the packets themselves say; False if the offset is not yet known well enough to ask them."""
        if not len(fresh.upper) or not len(fresh.lower):
            return False
        shift_s = (fresh.t_ns - self.t_ns) * 1e-9
        ahead = shift_s + float(fresh.upper_t.mean() + fresh.lower_t.mean()) / 2
        g_o, g_r = self.p_oo + self.p_or * ahead, self.p_or + self.p_rr * ahead
        before = g_o + ahead * g_r
        here = float(fresh.base_ns - self.base_ns) - self.offset_ns
        upper = fresh.upper + here - self.rate_ppb * (fresh.upper_t + shift_s)
        lower = self.rate_ppb * (fresh.lower_t + shift_s) - here - fresh.lower
        shift = self._floors.shift(upper, lower, before, usual, scatter, elapsed_s)
        if shift is None:
            return False
        self._wander.corrected(shift.mean_ns / float(np.sqrt(before)))
        k_o, k_r = g_o / before, g_r / before
        self.offset_ns += k_o * shift.mean_ns
        self.rate_ppb += k_r * shift.mean_ns
        # What is left is the part of the prior that these packets cannot see, and along it what they left.
        seen = shift.variance - shift.inflation * before
        self.p_oo = shift.inflation * self.p_oo + k_o * k_o * seen
        self.p_or = shift.inflation * self.p_or + k_o * k_r * seen
        self.p_rr = shift.inflation * self.p_rr + k_r * k_r * seen
        return True

    def _usual(self) -> tuple[float, float]:
        """The usual half gap of levels, where they are densest, and how far it scatters there."""
        # Sixty numbers: numpy's quantiles would cost more than the fit of a window.
        gaps = sorted(self._gaps)
        few = min(len(gaps), max(3, round(len(gaps) * _USUAL)))
        width, first = min((gaps[k + few - 1] - gaps[k], k) for k in range(len(gaps) - few + 1))
        return gaps[first] + width / 2, width / 2

    def _contradicts(self, t_ns: int, offset_ns: int, variance: float) -> bool:
        """True after an offset measured at t_ns has contradicted all that was known; a rate that turned is noticed."""
        ahead = (t_ns - self.t_ns) * 1e-9
        measured = float(offset_ns - self.base_ns)
        innovation = measured - (self.offset_ns + self.rate_ppb * ahead)
        spread = float(np.sqrt(self.p_oo + 2 * ahead * self.p_or + ahead * ahead * self.p_rr + variance))
        if abs(innovation) > _GATE_SIGMAS * spread + _GATE_NS:
            return True
        turned = abs(innovation) > _TURN_SIGMAS * float(np.hypot(spread, _TURN_NS))
        side = int(np.sign(innovation)) if turned else 0
        self._turns = 0 if side == 0 else side if self._turns * side <= 0 else self._turns + side
        if abs(self._turns) >= _TURN_LEVELS:
            self.p_rr += innovation * innovation
            self.p_oo += innovation * innovation
        return False

    def _predict(self, t_ns: int) -> None:
        dt = (t_ns - self.t_ns) * 1e-9
        q = self._wander.ppb**2 * abs(dt)
        self.offset_ns += self.rate_ppb * dt
        self.p_oo += 2 * dt * self.p_or + dt * dt * self.p_rr + q * dt * dt / 3
        self.p_or += dt * self.p_rr + q * dt / 2
        self.p_rr += q
        self.t_ns = t_ns
        whole = round(self.offset_ns)
        self.base_ns += whole
        self.offset_ns -= whole

    def _measure(self, h_o: float, h_r: float, z: float, variance: float) -> None:
        """One scalar measurement z = h_o * offset + h_r * rate + noise."""
        g_o = self.p_oo * h_o + self.p_or * h_r
        g_r = self.p_or * h_o + self.p_rr * h_r
        s = h_o * g_o + h_r * g_r + variance
        k_o, k_r = g_o / s, g_r / s
        error = z - (h_o * self.offset_ns + h_r * self.rate_ppb)
        self.offset_ns += k_o * error
        self.rate_ppb += k_r * error
        self.p_oo -= k_o * g_o
        self.p_or -= k_o * g_r
        self.p_rr -= k_r * g_r

    def _result(self, fit: EdgeFit, behind: float) -> EdgeFit:
        raw_end = float(fit.offset_ns - self.base_ns) + fit.rate_ppb * behind
        # The filter may not leave what causality allows.
        change = float(np.clip(self.offset_ns - raw_end, -max(fit.below_ns, 0.0), max(fit.above_ns, 0.0)))
        self.offset_ns = raw_end + change
        above, below = fit.above_ns - change, fit.below_ns + change
        rate_sigma = float(np.sqrt(max(self.p_rr, 1e-4)))
        unsure = max(0.0, _RATE_SIGMAS * rate_sigma - self.parameters.drift_ppb) * _NEXT_FIT_S
        return replace(
            fit,
            t_ns=fit.t_last_ns,
            offset_ns=self.base_ns + round(self.offset_ns),
            raw_offset_ns=fit.offset_ns + round(fit.rate_ppb * behind),
            rate_ppb=self.rate_ppb,
            above_ns=above,
            below_ns=below,
            bound_ns=max(above, below, 0.0) + self.parameters.asymmetry_ns + unsure,
            sigma_ns=float(np.sqrt(max(self.p_oo, 1.0))),
            rate_sigma_ppb=rate_sigma,
            fresh=None,
        )
