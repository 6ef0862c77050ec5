"""Where the floors of both directions are, packet by packet: a better measurement than their fastest packets alone.

Theory of operation. A packet's delay is the floor of its path plus what queues and cold caches add. Few packets in a
hundred come near the floor, but those that do lie within some 20 ns of it, closer than the fastest of a second that
had none. So each packet is asked how likely its delay is, for every offset of the clocks that is in question: the
density of delays has a narrow peak at the floor, hardly anything below it (stamps that are late), and a long tail
above. The fastest packets of a second without one near the floor then say little, instead of something wrong, and each
direction speaks for itself: how far the floor is from the offset is remembered as half of the round trip, so one
direction's good packet does not wait for one of the other's.

Two unknowns are weighed together on a grid: the offset, whose prior comes from the edge's filter, and half of the round
trip of the floors, which moves slowly. A floor is common to both directions by definition: what differs between them is
the offset. Were it learned for each, nothing would hold the offset. The density has one shape, of which only the width
is learned, because a shape learned from the residuals of its own offsets can settle on two peaks, on either side of the
truth (tried: worse than no memory at all).

Pure: numbers in, numbers out.
"""

from dataclasses import dataclass
from math import erf, sqrt
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# The density of delays in widths of its peak, measured on kernel stamps (docs/decisions/0016): peak 1, a plateau that
# begins beyond it, a tail that falls by e in 60 widths, and a share of stamps that are plainly wrong.
_PLATEAU, _PLATEAU_AT, _PLATEAU_RISE = 0.5, 4.0, 1.8
_WRONG, _TAIL = 2e-3, 60.0
_BELOW, _ABOVE, _STEP = -48.0, 180.0, 0.1
# Grid of the floors of both directions, and how wide it may be per width of the peak before it steps over it.
_GRID, _WIDEST = 81, 40.0
# A clock that has changed: probability a step, and by how much the variance is then larger.
_SURPRISE, _SURPRISE_VARIANCE = 1e-3, 100.0
# How fast half of the round trip moves, ns per square root of a second; how well it is known at first, widths. A path
# keeps its length, but the hosts that take the stamps are for seconds some 100 ns slower, in both directions alike
# (docs/decisions/0016). A floor that cannot follow lets the offset go after single packets.
_FLOOR_WANDER_NS, _FLOOR_SIGMA = 10.0, 2.3
# Half a round trip that is so many widths from the usual gap belongs to the past.
_FLOOR_LOST = 10.0
# Widths that are believed, ns, and for how many packets below the floor one is remembered.
_NARROWEST_NS, _WIDEST_NS, _WIDTH_MEMORY = 10.0, 300.0, 60.0
# More packets of a direction than these fastest ones cost time and say nothing new.
_PACKETS = 128
# Weights of the grid that sum to less have lost their digits: the packets contradict everything that is known.
_NO_PLACE = 1e-200


def _log_density() -> Floats:
    z = np.arange(_BELOW, _ABOVE, _STEP)
    plateau = np.array([0.5 * (1 + erf((v - _PLATEAU_AT) / _PLATEAU_RISE / sqrt(2))) for v in z])
    result: Floats = np.log(_WRONG + np.exp(-0.5 * z * z) + _PLATEAU * plateau) - np.maximum(z, 0) / _TAIL
    return result


_TABLE = _log_density()
_UNIT = np.linspace(-1.0, 1.0, _GRID)
_HALVES = np.linspace(-1.0, 1.0, 2 * _GRID - 1)


def _by_sum(values: Floats) -> Floats:
    """values[i + j] of the half round trips, as a view: both floors move together with the round trip."""
    return sliding_window_view(values, _GRID)


def _by_difference(values: Floats) -> Floats:
    """values[i - j + _GRID - 1] of the offsets, as a view: the floors move apart with the offset."""
    return sliding_window_view(values, _GRID)[:, ::-1]


class Shift(NamedTuple):
    """What packets say of the offset: add mean_ns; variance is what is left of the prior's; inflation: by how much
    the prior's variance was too small.
    """

    mean_ns: float
    variance: float
    inflation: float


@dataclass
class FloorLikelihood:
    """half_gap_ns : half of the round trip of both floors, with its variance. width_ns : of the peak at the floor."""

    width_ns: float
    half_gap_ns: float | None = None
    variance: float = 0.0

    def clear(self) -> None:
        """Another route, or another clock: the floor is unknown, the stamps are as good as before."""
        self.half_gap_ns = None

    def shift(
        self,
        upper_ns: Floats,
        lower_ns: Floats,
        variance: float,
        usual_ns: float,
        scatter_ns: float,
        elapsed_s: float,
    ) -> Shift | None:
        """What packets say of an offset that is known to `variance`; None if that is too little to ask them.

        upper_ns, lower_ns : delays, ns, by the predicted offset; lower ones from the peer to us. usual_ns, scatter_ns :
        half of the round trip as the fastest packets tell it. elapsed_s : seconds since the last call.
        """
        width = self.width_ns
        lost = _FLOOR_LOST * width + 3 * scatter_ns
        if self.half_gap_ns is None or abs(self.half_gap_ns - usual_ns) > lost:
            self.half_gap_ns = usual_ns
            self.variance = (_FLOOR_SIGMA * width) ** 2 + scatter_ns**2
        self.variance += _FLOOR_WANDER_NS**2 * elapsed_s
        span = 5.0 * sqrt(variance + self.variance) + 2.4 * width
        if span > _WIDEST * width or not len(upper_ns) or not len(lower_ns):
            return None
        grid = span * _UNIT
        halves = span * _HALVES
        usual = np.exp(-0.5 * halves * halves / variance)
        surprise = np.exp(-0.5 * halves * halves / (variance * _SURPRISE_VARIANCE))
        surprise *= _SURPRISE / sqrt(_SURPRISE_VARIANCE)
        prior = usual + surprise + 1e-300
        floor = _by_sum(np.exp(-0.5 * halves * halves / self.variance))
        known = _by_difference(prior) * floor
        upper, lower = self._log_likelihood(upper_ns, grid), self._log_likelihood(lower_ns, grid)
        upper, lower = np.exp(upper - upper.max()), np.exp(lower - lower.max())
        rows, columns = upper * (known @ lower), lower * (upper @ known)
        total = float(rows.sum())
        if total < _NO_PLACE:
            return None
        # Of the offset and the round trip only means and variances are wanted: the moments of both floors give them.
        up, down = float(rows @ grid) / total, float(columns @ grid) / total
        above, below = grid - up, grid - down
        square = float(rows @ (above * above) + columns @ (below * below)) / total
        both = 2 * float((upper * above) @ known @ (lower * below)) / total
        mean, rise = (up - down) / 2, (up + down) / 2
        self.half_gap_ns += rise
        self.variance = max((square + both) / 4, 1.0)
        surprised = float(upper @ (_by_difference(surprise) * floor) @ lower) / total
        self._learn_width(upper_ns - mean, lower_ns + mean)
        return Shift(
            mean,
            max((square - both) / 4, 1.0),
            1.0 + (_SURPRISE_VARIANCE - 1.0) * surprised,
        )

    def _log_likelihood(self, delay_ns: Floats, grid: Floats) -> Floats:
        """For each place of the floor in `grid`, relative to where it was thought."""
        if len(delay_ns) > _PACKETS:
            delay_ns = np.partition(delay_ns, _PACKETS - 1)[:_PACKETS]
        z = (delay_ns - (self.half_gap_ns or 0.0)) / self.width_ns
        index = ((z[:, None] - (grid / self.width_ns + _BELOW)) * (1 / _STEP)).astype(np.intp)
        result: Floats = _TABLE.take(index, mode="clip").sum(axis=0)
        return result

    def _learn_width(self, upper_ns: Floats, lower_ns: Floats) -> None:
        """The side of the peak below the floor, where no queue adds anything."""
        z = np.concatenate([upper_ns, lower_ns]) - (self.half_gap_ns or 0.0)
        below = z[(z < 0) & (z > -4.0 * self.width_ns)]
        if len(below):
            share = min(len(below) / _WIDTH_MEMORY, 0.5)
            square = (1 - share) * self.width_ns**2 + share * float(below @ below) / len(below)
            self.width_ns = min(max(sqrt(square), _NARROWEST_NS), _WIDEST_NS)
