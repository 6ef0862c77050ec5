"""Types of the native module built from clocksync/native/edge_fit. Times are ns of our host clock, rates ppb."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.edge.estimator import EdgeFit, EstimatorParameters, Prior

STEP_TRAINS: int
WIDEST_RATE_PPB: float

class Trains:
    """Trains of one direction. t_ns : (n,) our host clock. tx_ns, rx_ns : (n, 3). valid : (n, 3) both stamps are there;
    views, not copies. A sign is 1 to the peer, -1 from it.
    """

    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(
        self,
        t_ns: NDArray[np.int64],
        tx_ns: NDArray[np.int64],
        rx_ns: NDArray[np.int64],
        valid: NDArray[np.bool_],
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def t_ns(self) -> NDArray[np.int64]: ...
    @property
    def tx_ns(self) -> NDArray[np.int64]: ...
    @property
    def rx_ns(self) -> NDArray[np.int64]: ...
    @property
    def valid(self) -> NDArray[np.bool_]: ...
    @property
    def begin_ns(self) -> int:
        """The first t_ns. Raises ValueError where there is none."""
    # The following want trains in the order of time.
    def find(self, t_ns: int) -> int:
        """The place of the first train at `t_ns` or later."""
    def part(self, begin: int, end: int) -> Trains: ...
    def after(self, cut_ns: int) -> Trains: ...
    def without(self, t_ns: Sequence[int]) -> Trains: ...
    def without_fastest(self, count: int, sign: int, fit: EdgeFit) -> Trains: ...
    def joined(self, blocks: Sequence[NDArray[np.uint8]], direction: int) -> Trains:
        """With those of the main path among samples, whose bytes `blocks` are. Raises ValueError for parts of one."""
    def early(self, sign: int, fit: EdgeFit) -> tuple[list[int], int]:
        """When trains since `fit` were that have arrived, by it, before they can have been sent, and how many have come
        since.
        """
    def floor(self, sign: int, fit: EdgeFit) -> tuple[float, float]:
        """Delay of the fastest train by the fit, and of the one that two fifths are faster than, ns. Raises ValueError
        without trains.
        """

def fit_edge(
    outbound: Trains,
    inbound: Trains,
    parameters: EstimatorParameters,
    prior: Prior | None,
    ranks: Sequence[float],
) -> tuple[Any, ...] | None:
    """The fields of an `EdgeFit` in its order, without raw_offset_ns; tuples for what they are made of."""

def separate(
    upper_t: NDArray[np.float64],
    upper: NDArray[np.float64],
    lower_t: NDArray[np.float64],
    lower: NDArray[np.float64],
    nu: float,
    rate_ppb: float = 0.0,
) -> tuple[float, float, float]:
    """The line between two clouds with the widest soft margin: offset ns, rate, half of the gap ns.

    Raises ValueError for an empty cloud.
    """

def usual_gap(gaps: Sequence[float], share: float) -> tuple[float, float]:
    """The usual gap, where `share` of them are densest, and how far they scatter there, ns. At least one is given."""

def gap_change(gaps: Sequence[float]) -> float:
    """By how much the gap changes from one to the next, median, ns; 0 of a single one."""
