"""What fleet time of each host is likely off by: a quantile of what its edges say beside all others. Pure.

Each solve tells of most edges what all others say of them (solve.held_out). A host remembers the sizes of its edges'
for some minutes, as counts in classes whose limits are 25 % apart, so that the quantile is told by its class's upper
limit. It is above the error of the host, as the edge that is held out errs itself, and is no bound: what all edges of
the host hide alike is not in it.
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
    told = np.isfinite(held_out_ns)
    size = np.maximum(np.abs(held_out_ns[told]), 1.0)
    number = np.minimum(np.ceil(np.log(size) / np.log(_RATIO)), CLASSES - 1).astype(np.intp)
    counts *= np.float32(1.0 - 1.0 / _REMEMBERED)
    flat = counts.reshape(-1)
    flat += np.bincount(slots[told] * CLASSES + number, minlength=len(flat)).astype(np.float32)
    below = np.cumsum(counts, axis=1)
    # Not of sums that float32 has rounded differently.
    within = np.minimum((below < _SHARE * below[:, -1:]).sum(axis=1), CLASSES - 1)
    known = (below[:, -1] >= _FEWEST) & (within < CLASSES - 1)
    return np.where(known, np.ceil(_RATIO**within), 0.0)
