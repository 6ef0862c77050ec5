"""The hosts as they are before a solve. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.graph import Floats

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Hosts:
    """What is known of the hosts before the solve, at the same instant.

    correction_ns, rate_ppb : by the line that the host keeps. known : it has such a line. bound_ns : its
    error bound. anchor_ns : correction by a time source of its own, NaN without one. anchor_bound_ns : that
    source's error bound. anchor_rate_ppb : rate of that source minus the host's. unnoticed_ns : how far fleet time may
    have drifted away from the host's before it was noticed that its part of the fleet was cut off. missed_ns : how far
    the root may have moved in rounds whose replies the host has not had, infinite where unknown. doubt_ns : what former
    solutions said, and still counts.
    """

    correction_ns: Ints
    rate_ppb: Floats
    known: NDArray[np.bool_]
    bound_ns: Floats
    anchor_ns: Floats
    anchor_bound_ns: Floats
    unnoticed_ns: Floats | float = 0.0
    anchor_rate_ppb: Floats | float = 0.0
    missed_ns: Floats | float = 0.0
    doubt_ns: Floats | float = 0.0

    def __len__(self) -> int:
        return len(self.correction_ns)
