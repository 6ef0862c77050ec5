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
    solutions said, and still counts. verified : the host's line is from no time in which nobody would have noticed a
    pause of it (RoundReport.unverified); None: of all.
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
    verified: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.correction_ns)

    def counting(self, component: NDArray[np.int32], votes: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whose lines say where fleet time goes on, and how well it is known. Where half of those of voting hosts are
        verified, the others of their component may be from before a pause, and would contradict right ones.
        """
        if self.verified is None or self.verified.all():
            return self.known
        known, verified = (
            np.bincount(component, of & votes, int(component.max()) + 1)
            for of in (self.known, self.known & self.verified)
        )
        return self.known & (self.verified | (2 * verified < known)[component])
