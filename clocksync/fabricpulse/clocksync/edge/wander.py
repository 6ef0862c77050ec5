"""How much the rate between two clocks wanders, learned from how an edge's filter is corrected.

Theory of operation. A filter that takes the rate for steadier than it is lags behind, and is corrected to the same side
step after step; one that takes it for more restless runs after noise, and is corrected to and fro. Only where it is
right are its corrections independent of each other (Mehra, "On the identification of variances and adaptive Kalman
filtering", IEEE Transactions on Automatic Control, 1970). So the product of two corrections in a row tells which way
the wander is wrong, and it does so whatever the noise is. The size of corrections does not: noise that is larger than
the filter believes looks like wander (docs/decisions/0016).

Pure: numbers in, numbers out.
"""

from dataclasses import dataclass, field
from math import exp

# By how much one pair of corrections of usual size changes the wander, as a logarithm; half a minute for a factor of 3.
_GAIN = 0.1
# A clock that was steered corrects by many times the usual: one pair says no more than this.
_LOUDEST = 3.0
# The wander stays within these multiples of what it was taken for.
_LEAST, _MOST = 0.3, 4.0
# The usual size of corrections is a mean over so many steps.
_MEMORY = 10.0


@dataclass
class Wander:
    """ppb : standard deviation of the change of rate over 1 s, as learned so far; `usual_ppb` before."""

    usual_ppb: float
    ppb: float = field(init=False)
    _last: float = 0.0
    _square: float = 0.0

    def __post_init__(self) -> None:
        self.ppb = self.usual_ppb

    def clear(self) -> None:
        """Other clocks."""
        self.ppb, self._last, self._square = self.usual_ppb, 0.0, 0.0

    def corrected(self, by_sigmas: float) -> None:
        """Takes a step's correction of the offset, in standard deviations of what was expected of the offset.

        Divided so, the steps in which the packets said little count little.
        """
        share = 1 / _MEMORY if self._square else 1.0
        self._square += (by_sigmas * by_sigmas - self._square) * share
        if self._square:
            product = self._last * by_sigmas / self._square
            ppb = self.ppb * exp(_GAIN * min(max(product, -_LOUDEST), _LOUDEST))
            self.ppb = min(max(ppb, _LEAST * self.usual_ppb), _MOST * self.usual_ppb)
        self._last = by_sigmas
