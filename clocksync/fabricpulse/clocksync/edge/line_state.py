"""Offset, rate and drift of an edge, and how well they are known together: the linear algebra of its Kalman filter.

In plain floats: for matrices of three by three numpy takes ten times longer. Pure.
"""

from typing import NamedTuple


class Measured(NamedTuple):
    """A measurement of offset + rate_s · rate + drift_s2 · drift, with the variance of its noise, ns²."""

    value_ns: float
    rate_s: float
    drift_s2: float
    variance: float


class LineState(NamedTuple):
    """offset_ns, rate_ppb, drift_ppb_s : the line, and how its rate changes. covariance : of the three, its upper
    triangle row by row.
    """

    offset_ns: float = 0.0
    rate_ppb: float = 0.0
    drift_ppb_s: float = 0.0
    covariance: tuple[float, float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def after(self, dt: float, wander_ppb: float, change_ppb_s: float) -> "LineState":
        """`dt` seconds later. wander_ppb, change_ppb_s : standard deviation of the change of rate, and of drift, over
        1 s.
        """
        half = dt * dt / 2
        oo, ro, do, rr, dr, dd = self.covariance
        # The rows of the matrix that moves the state, times the covariance.
        o, r, d = oo + dt * ro + half * do, ro + dt * rr + half * dr, do + dt * dr + half * dd
        r_r, d_r = rr + dt * dr, dr + dt * dd
        q = wander_ppb**2 * abs(dt)
        covariance = (
            *(o + dt * r + half * d + q * dt * dt / 3, r + dt * d + q * dt / 2, d),
            *(r_r + dt * d_r + q, d_r, dd + change_ppb_s**2 * abs(dt)),
        )
        offset = self.offset_ns + dt * self.rate_ppb + half * self.drift_ppb_s
        return LineState(offset, self.rate_ppb + dt * self.drift_ppb_s, self.drift_ppb_s, covariance)

    def surprise(self, seen: Measured) -> tuple[float, float]:
        """By how much a measurement is off, ns, and the variance of that."""
        _, h, k, variance = seen
        a, b, c = self._gain(seen)
        expected = self.offset_ns + h * self.rate_ppb + k * self.drift_ppb_s
        return seen.value_ns - expected, a + h * b + k * c + variance

    def measured(self, seen: Measured, most_ns: float) -> "LineState":
        """With a measurement, which counts as off by at most `most_ns`."""
        innovation, spread = self.surprise(seen)
        a, b, c = self._gain(seen)
        by = min(max(innovation, -most_ns), most_ns) / spread
        oo, ro, do, rr, dr, dd = self.covariance
        covariance = (
            *(oo - a * a / spread, ro - a * b / spread, do - a * c / spread),
            *(rr - b * b / spread, dr - b * c / spread, dd - c * c / spread),
        )
        return LineState(
            self.offset_ns + a * by, self.rate_ppb + b * by, self.drift_ppb_s + c * by, covariance
        )

    def _gain(self, seen: Measured) -> tuple[float, float, float]:
        oo, ro, do, rr, dr, dd = self.covariance
        h, k = seen.rate_s, seen.drift_s2
        return oo + h * ro + k * do, ro + h * rr + k * dr, do + h * dr + k * dd
