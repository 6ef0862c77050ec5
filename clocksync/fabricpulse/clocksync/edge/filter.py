"""From one window's fit to the next: a Kalman filter of offset, rate and drift of the rate, per edge.

Theory of operation. A crystal keeps its rate to some parts per billion over seconds, better than one loaded window can
measure it, so what earlier windows said still counts. What is measured at each round is the middle between the fastest
packets of both directions. How far to trust it is told by their gap. Were both packets those of empty queues and warm
caches, the gap would be the usual one of this edge; if it is wider by 2 e, packets of either direction, or of both,
were slow by 2 e together, and the middle is wrong by up to e. The same holds the other way round: a gap narrower than
usual tells of late transmit stamps. What has come since the last round is measured in parts: a queue or a late stamp
spoils one of them. Under load it may spoil all; of them together and of the last quarter, half and whole of the window
that is taken which is expected to be wrong by least, and no pair of packets counts twice. What was tried beside this
is in docs/decisions/0016. The error bound does not depend on the filter; it follows from causality alone.

A rate that drifts (a temperature ramp) is a third state. While nothing tells of a ramp it is taken for small and
steady, so that it adds no noise; measurements that leave to one side open it.
"""

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.edge.estimator import EdgeFit, EstimatorParameters, Extremes, Floor, Prior
from fabricpulse.clocksync.edge.separating_line import WIDEST_RATE_PPB

Floats = NDArray[np.float64]

# A measurement that contradicts the filter by so many standard deviations, and ns, means that a clock has changed.
_GATE_SIGMAS, _GATE_NS = 8.0, 20_000.0
# A measurement off by so many standard deviations, the filter's error taken as at least so many ns, counts as one off
# by that much only; several in a row on one side tell that the rate has changed.
_ASIDE_SIGMAS, _ASIDE_NS, _ASIDE = 3.0, 50.0, 2
# How much less offset, rate and drift are then known, in squares of what the measurement is off by.
_OPEN = (1.0, 1.0, 0.25)
# A gap that is wider than usual by 2 e tells of an error from -e to e: of its variance, this share of e squared, and
# a little more, as slow packets are more often those of one direction.
_GAP_SHARE = 0.5
# Where all parts are slower than usual by more than so many ns, it is queues, and all are wrong to the same side.
_QUEUE_NS = 30.0
# Of so many packets it is kept which have been counted: more than a window's.
_COUNTED = 256
# Stamps are late by so many ns at most; gaps that are narrower by more tell of a wrong rate, not of a bad measurement.
_LATE_NS = 60.0
# A rate that is known no better than drift_ppb makes the bound wider for as long as it takes to the next fit, s.
_NEXT_FIT_S = 1.5
_RATE_SIGMAS = 6.0
# The usual gap: where this share of the gaps of so many rounds is densest.
_USUAL, _GAPS = 0.25, 60
# Standard deviation of the drift while nothing tells of one, ppb/s, and of its change over 1 s.
_DRIFT_PPB_S, _DRIFT_CHANGE = 0.2, 0.1
# The same after a clock has changed.
_CHANGED_PPB_S = 300.0
# The limits of the rate come from the fastest packets of so many seconds.
_MEMORY_NS = 16_000_000_000


@dataclass
class EdgeFilter:
    """State at host time t_ns: base_ns plus state (offset ns, rate ppb, drift ppb/s), and its covariance.

    rate_low_ppb, rate_high_ppb : limits of the rate by causality. resets : measurements that contradicted the past.
    """

    parameters: EstimatorParameters
    t_ns: int = 0
    base_ns: int = 0
    state: Floats = field(default_factory=lambda: np.zeros(3))
    covariance: Floats = field(default_factory=lambda: np.zeros((3, 3)))
    rate_low_ppb: float = -np.inf
    rate_high_ppb: float = np.inf
    windows: int = 0
    resets: int = 0
    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS))
    _extremes: deque[Extremes] = field(default_factory=deque)
    _aside: int = 0
    _drift_ppb_s: float = _DRIFT_PPB_S
    # The packets of the last measurements, by our host time.
    _counted: deque[int] = field(default_factory=lambda: deque(maxlen=_COUNTED))

    def clear(self) -> None:
        """Forgets everything but the counter. What comes then may be another clock, or one whose rate drifts."""
        self.windows = self._aside = 0
        self._drift_ppb_s = _CHANGED_PPB_S
        self._gaps.clear()
        self._extremes.clear()
        self._counted.clear()

    def prior(self, t_ns: int) -> Prior | None:
        """What is known of the rate at host time `t_ns`; None before the first window."""
        if self.windows == 0:
            return None
        dt = max(0.0, (t_ns - self.t_ns) * 1e-9)
        state, covariance = self._predicted(dt)
        low, high = self.rate_low_ppb, self.rate_high_ppb
        most = abs(float(state[2])) + 3 * float(np.sqrt(covariance[2, 2]))
        extremes = tuple(self._extremes)
        return Prior(float(state[1]), float(state[2]), most, low, high, self.t_ns, extremes)

    def update(self, fit: EdgeFit) -> EdgeFit:
        """Takes a window and returns the fit that takes the past into account, valid at the window's end."""
        behind = (fit.t_last_ns - fit.t_ns) * 1e-9
        if self.windows:
            self._predict(fit.t_last_ns)
            self._take(fit)
        if not self.windows:
            self.t_ns, self.base_ns = fit.t_last_ns, fit.offset_ns
            self.state = np.array([fit.rate_ppb * behind, fit.rate_ppb, 0.0])
            rate_variance = min(fit.rate_sigma_ppb, WIDEST_RATE_PPB) ** 2
            # The line may be wrong by its whole gap: what it says is judged by the gaps that follow.
            variance = fit.sigma_ns**2 + max(fit.half_gap_ns / 4, 0.0) ** 2 + behind * behind * rate_variance
            self.covariance = np.diag([variance, rate_variance, self._drift_ppb_s**2])
            self.covariance[0, 1] = self.covariance[1, 0] = behind * rate_variance
        self.windows += 1
        self.rate_low_ppb, self.rate_high_ppb = fit.rate_low_ppb, fit.rate_high_ppb
        self._extremes.append(fit.extremes)
        while len(self._extremes) > 1 and self._extremes[0].upper_t_ns < fit.t_last_ns - _MEMORY_NS:
            self._extremes.popleft()
        return self._result(fit, behind)

    def _take(self, fit: EdgeFit) -> None:
        """Weighs what a window says against what is known; clears the filter if both cannot be true."""
        if not fit.floors:
            # What was known fits no packets any more.
            self.resets += 1
            self.clear()
            return
        for z, h, variance in self._best(fit):
            if self._contradicts(z, h, variance):
                self.resets += 1
                self.clear()
                return
            self._measure(z, h, variance)

    def _best(self, fit: EdgeFit) -> list[tuple[float, Floats, float]]:
        """What is expected to be wrong by least, all parts or one floor: of each its offset, what that is of the state,
        its variance. Nothing, if the packets of all floors have been counted.
        """
        parts, floors = ([(self._gap(at), at) for at in of] for of in (fit.parts, fit.floors))
        # Of the second shortest share: the shortest one is often without a packet that met no queue.
        self._gaps.append(floors[min(1, len(floors) - 1)][0])
        usual, scatter = self._usual()

        def variance(gap: float, at: Floor) -> float:
            wrong = _GAP_SHARE * max(gap - usual, -_LATE_NS) ** 2
            wander = self.parameters.wander_ppb**2 / 12 * (abs(at.upper_s) ** 3 + abs(at.lower_s) ** 3)
            return self.parameters.stamp_noise_ns**2 + wrong + wander

        best = [(variance(gap, at), at) for gap, at in parts]
        least = np.inf
        if best:
            weight = sum(1 / one for one, _ in best)
            slow = sum(max(gap - usual, 0.0) / one for (gap, _), (one, _) in zip(parts, best, strict=True))
            # What all parts have in common: a usual gap that is not the true one, queues of one direction.
            least = 1 / weight + scatter**2 + max(slow / weight - _QUEUE_NS, 0.0) ** 2
            best = [(one * least * weight, at) for one, at in best]
        counted = set(self._counted)
        for gap, at in floors:
            again = sum(packet in counted for packet in _packets(fit, at))
            one = variance(gap, at) + scatter**2
            if again < 2 and one * (1 + again) < least:
                # Half of what it says has been counted.
                least = one * (1 + again)
                best = [(least, at)]
        self._counted += [packet for _, at in best for packet in _packets(fit, at)]
        behind = float(fit.base_ns - self.base_ns)
        return [
            (
                (at.upper_ns + at.lower_ns) / 2 + behind,
                np.array([1.0, (at.upper_s + at.lower_s) / 2, (at.upper_s**2 + at.lower_s**2) / 4]),
                one,
            )
            for one, at in best
        ]

    def _gap(self, at: Floor) -> float:
        """Half of the round trip of both packets, along the line that is known, ns."""
        rate, drift = float(self.state[1]), float(self.state[2]) / 2
        fall = (rate + drift * at.upper_s) * at.upper_s - (rate + drift * at.lower_s) * at.lower_s
        return (at.upper_ns - at.lower_ns - fall) / 2

    def _usual(self) -> tuple[float, float]:
        """The usual gap, where gaps are densest, and how far they scatter there."""
        # Sixty numbers: numpy's quantiles would cost more than the rest of a fit.
        gaps = sorted(self._gaps)
        if len(gaps) < 3:
            return gaps[0], abs(gaps[0])
        few = max(3, round(len(gaps) * _USUAL))
        width, first = min((gaps[k + few - 1] - gaps[k], k) for k in range(len(gaps) - few + 1))
        return gaps[first] + width / 2, width / 2

    def _contradicts(self, z: float, h: Floats, variance: float) -> bool:
        """Whether a measurement contradicts all that was known. A rate that changes is noticed, and let change."""
        innovation = z - float(h @ self.state)
        spread = float(np.sqrt(h @ self.covariance @ h + variance))
        if abs(innovation) > _GATE_SIGMAS * spread + _GATE_NS:
            return True
        # A measurement that is off by twice as much counts for two.
        by = int(abs(innovation) / (_ASIDE_SIGMAS * float(np.hypot(spread, _ASIDE_NS))))
        side = by if innovation > 0 else -by
        self._aside = side if self._aside * side <= 0 else self._aside + side
        if abs(self._aside) >= _ASIDE:
            self.covariance += np.diag(_OPEN) * innovation**2
        return False

    def _predicted(self, dt: float) -> tuple[Floats, Floats]:
        """State and covariance `dt` seconds later."""
        move = np.array([[1.0, dt, dt * dt / 2], [0.0, 1.0, dt], [0.0, 0.0, 1.0]])
        q = self.parameters.wander_ppb**2 * abs(dt)
        change = _DRIFT_CHANGE**2 * abs(dt)
        noise = np.array([[q * dt * dt / 3, q * dt / 2, 0.0], [q * dt / 2, q, 0.0], [0.0, 0.0, change]])
        return move @ self.state, move @ self.covariance @ move.T + noise

    def _predict(self, t_ns: int) -> None:
        self.state, self.covariance = self._predicted((t_ns - self.t_ns) * 1e-9)
        self.t_ns = t_ns
        whole = round(float(self.state[0]))
        self.base_ns += whole
        self.state[0] -= whole

    def _measure(self, z: float, h: Floats, variance: float) -> None:
        """One scalar measurement z = h @ state + noise."""
        gain = self.covariance @ h
        spread = float(h @ gain) + variance
        most = _ASIDE_SIGMAS * float(np.sqrt(spread + _ASIDE_NS**2))
        self.state = self.state + gain / spread * float(np.clip(z - float(h @ self.state), -most, most))
        self.covariance = self.covariance - np.outer(gain / spread, gain)

    def _result(self, fit: EdgeFit, behind: float) -> EdgeFit:
        raw_end = float(fit.offset_ns - self.base_ns) + fit.rate_ppb * behind
        # The filter may not leave what causality allows.
        change = float(np.clip(self.state[0] - raw_end, -max(fit.below_ns, 0.0), max(fit.above_ns, 0.0)))
        self.state[0] = raw_end + change
        above, below = fit.above_ns - change, fit.below_ns + change
        # What is in the bound besides: stamps, and a rate that is seen to change.
        more = fit.bound_ns - max(fit.above_ns, fit.below_ns, 0.0)
        rate_sigma = float(np.sqrt(max(self.covariance[1, 1], 1e-4)))
        unsure = max(0.0, _RATE_SIGMAS * rate_sigma - self.parameters.drift_ppb) * _NEXT_FIT_S
        return replace(
            fit,
            t_ns=fit.t_last_ns,
            offset_ns=self.base_ns + round(float(self.state[0])),
            raw_offset_ns=fit.offset_ns + round(fit.rate_ppb * behind),
            # Until the next fit, which is when it is used.
            rate_ppb=float(self.state[1] + self.state[2] * _NEXT_FIT_S / 3),
            above_ns=above,
            below_ns=below,
            bound_ns=max(above, below, 0.0) + more + unsure,
            sigma_ns=float(np.sqrt(max(self.covariance[0, 0], 1.0))),
            rate_sigma_ppb=rate_sigma,
            floors=(),
            parts=(),
        )


def _packets(fit: EdgeFit, at: Floor) -> tuple[int, int]:
    """Both packets of a floor, by our host time."""
    return fit.t_last_ns + round(at.upper_s * 1e9), fit.t_last_ns + round(at.lower_s * 1e9)
