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


def remember(counts: Counts, held_out_ns: Floats, *slots: NDArray[np.intp]) -> Floats:
    """Takes one solve in, and returns the estimate for each row of `counts`; 0 where too little is known.

    counts : CLASSES for each slot; changed. held_out_ns : of each edge, NaN where nothing is known. slots : at the one
    ends of all edges, then at the others. Sizes beyond the last class (1.3 ms) are no estimate.
    """
    finite = np.isfinite(held_out_ns)
    number = np.maximum(np.abs(held_out_ns[finite]), 1.0)
    np.log(number, out=number)
    number /= np.log(_RATIO)
    classes = np.minimum(np.ceil(number, out=number), CLASSES - 1).astype(np.intp)
    del number
    counts *= np.float32(1.0 - 1.0 / _REMEMBERED)
    flat = counts.reshape(-1)
    found = np.zeros(len(flat), np.float32)
    for ends in slots:
        np.add.at(found, ends[finite] * CLASSES + classes, np.float32(1.0))
    flat += found
    del found
    below = np.cumsum(counts, axis=1)
    # Not of sums that float32 has rounded differently.
    within = np.minimum((below < _SHARE * below[:, -1:]).sum(axis=1), CLASSES - 1)
    known = (below[:, -1] >= _FEWEST) & (within < CLASSES - 1)
    return np.where(known, np.ceil(_RATIO**within), 0.0)
