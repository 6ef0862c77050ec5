"""From one window's fit to the next: a Kalman filter of offset and rate, per edge.

A crystal keeps its rate to some parts per billion over seconds, better than one loaded window can measure it. So what
the earlier windows said about the rate still counts, and a window in which hardly any packet met empty queues counts
little. The bound owes nothing to this: it is causality around whatever line comes out.
"""

from dataclasses import dataclass, replace

import numpy as np

from fabricpulse.clocksync.edge_estimator import EdgeFit, EstimatorParameters, RatePrior

# A window that contradicts the filter by so many standard deviations, and ns, means that a clock has changed.
_GATE_SIGMAS, _GATE_NS = 8.0, 500.0
# A rate that is known no better than drift_ppb makes the bound wider for as long as it takes to the next fit, s.
_NEXT_FIT_S = 1.5
_RATE_SIGMAS = 6.0


@dataclass
class EdgeFilter:
    """State at host time t_ns: offset (int64 base plus float rest), rate, their covariance.

    rate_low_ppb, rate_high_ppb : limits of the rate by causality. resets : windows that contradicted the past.
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

    def clear(self) -> None:
        """Forgets everything but the counter."""
        self.windows = 0

    def prior(self, t_ns: int) -> RatePrior | None:
        """What is known of the rate at host time `t_ns`; None before the first window."""
        if self.windows == 0:
            return None
        dt = max(0.0, (t_ns - self.t_ns) * 1e-9)
        sigma = float(np.sqrt(self.p_rr + self.parameters.wander_ppb**2 * dt))
        return RatePrior(self.rate_ppb, sigma, self.rate_low_ppb, self.rate_high_ppb)

    def update(self, fit: EdgeFit, step_s: float) -> EdgeFit:
        """Takes a window and returns the fit that takes the past into account, valid at the window's end."""
        # Windows overlap: the same trains come back in the next, and must not count as new each time.
        overlap = max(1.0, fit.window_s / max(step_s, 0.05))
        r_o = fit.sigma_ns**2 * overlap
        r_r = fit.rate_sigma_ppb**2 * overlap
        behind = (fit.t_last_ns - fit.t_ns) * 1e-9
        if self.windows:
            self._predict(fit.t_last_ns)
            expected = self.offset_ns - self.rate_ppb * behind
            innovation = (fit.offset_ns - self.base_ns) - expected
            spread = np.sqrt(self.p_oo + behind * behind * self.p_rr + r_o)
            if abs(innovation) > _GATE_SIGMAS * spread + _GATE_NS:
                self.resets += 1
                self.clear()
        if not self.windows:
            self.t_ns, self.base_ns = fit.t_last_ns, fit.offset_ns
            self.offset_ns, self.rate_ppb = fit.rate_ppb * behind, fit.rate_ppb
            self.p_rr = fit.rate_sigma_ppb**2
            self.p_oo = fit.sigma_ns**2 + behind * behind * self.p_rr
            self.p_or = behind * self.p_rr
        else:
            self._measure(1.0, -behind, float(fit.offset_ns - self.base_ns), r_o)
            if fit.rate_sigma_ppb < np.inf:
                self._measure(0.0, 1.0, fit.rate_ppb, r_r)
        self.windows += 1
        self.rate_low_ppb, self.rate_high_ppb = fit.rate_low_ppb, fit.rate_high_ppb
        return self._result(fit, behind)

    def _predict(self, t_ns: int) -> None:
        dt = (t_ns - self.t_ns) * 1e-9
        q = self.parameters.wander_ppb**2 * abs(dt)
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
        )
