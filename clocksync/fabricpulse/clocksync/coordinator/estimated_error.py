"""The likely error of fleet time of each host: a quantile of its held-out residuals. Pure.

Each solve predicts most edges from all others (solve.held_out). The sizes of these residuals are kept for each host
for some minutes, as counts in classes whose limits are 25 % apart, so that the quantile is its class's upper
limit. It is above the error of the host, as it includes the error of the held-out edge itself, and is no bound: an
error common to all edges of the host is not in it.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.float32]

CLASSES = 64
_RATIO = 1.25
_SHARE = 0.99
# Solves after which what was counted weighs a third.
_REMEMBERED = 120.0
# As many comparisons of a host are no quantile yet.
_FEWEST = 50.0


def remember(counts: Counts, slots: NDArray[np.intp], held_out_ns: Floats) -> Floats:
    """Takes one solve in, and returns the estimate for each row of `counts`; 0 where too little is known.

    counts : CLASSES for each slot; changed. slots : at the one ends of all edges, then at the others, each with
    held_out_ns of its edge, NaN where nothing is known. Sizes beyond the last class (1.3 ms) are no estimate.
    """
    finite = np.isfinite(held_out_ns)
    size = np.maximum(np.abs(held_out_ns[finite]), 1.0)
    number = np.minimum(np.ceil(np.log(size) / np.log(_RATIO)), CLASSES - 1).astype(np.intp)
    counts *= np.float32(1.0 - 1.0 / _REMEMBERED)
    flat = counts.reshape(-1)
    flat += np.bincount(slots[finite] * CLASSES + number, minlength=len(flat)).astype(np.float32)
    below = np.cumsum(counts, axis=1)
    # Not of sums that float32 has rounded differently.
    within = np.minimum((below < _SHARE * below[:, -1:]).sum(axis=1), CLASSES - 1)
    known = (below[:, -1] >= _FEWEST) & (within < CLASSES - 1)
    return np.where(known, np.ceil(_RATIO**within), 0.0)
