"""Fleet time without a coordinator: each host moves towards what its neighbours and the edges to them say.

One iteration of damped averaging a round; some twenty of them give what the least squares give. The mean of a fleet
that averages stays where it is, so the timeline goes on. Bounds are passed along in the same way: mine is the
smallest of my own, aged, and of each neighbour's plus what the edge to it can hide. With nobody to say what
is right they grow, as they must. Where a neighbour contradicts what I make of all of them, by more than the edge to it
can hide, nobody can tell whose stamps are wrong, and no word of a neighbour is worth more than what I know. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fabricpulse.clocksync.clock.fleet_clock import Correction


@dataclass(frozen=True)
class NeighbourView:
    """What one edge and the neighbour at its other end say about our correction at our stamp time
    `ref_ns`. hides_ns : what the edge may be off by; it is in bound_ns, too.
    """

    correction_ns: int
    rate_ppb: float
    sigma_ns: float
    bound_ns: float
    hides_ns: float


def average(
    ref_ns: int,
    own_correction_ns: int | None,
    own_rate_ppb: float,
    own_bound_ns: float,
    views: Sequence[NeighbourView],
    damping: float = 0.5,
) -> Correction | None:
    """The next correction, or None when there is nothing to average. damping : share of the own old value,
    [0, 1).
    """
    if not views:
        return None
    base = views[0].correction_ns if own_correction_ns is None else own_correction_ns
    # A neighbour whose word is far from the others' is left out: distance to the median against the sum of
    # bounds.
    ordered = sorted(view.correction_ns - base for view in views)
    median = ordered[len(ordered) // 2]
    good = [
        v
        for v in views
        if abs(v.correction_ns - base - median) <= v.bound_ns + min(w.bound_ns for w in views)
    ]
    good = good or list(views)
    weights = [1.0 / max(view.sigma_ns, 1.0) ** 2 for view in good]
    total = sum(weights)
    mean = sum(w * (v.correction_ns - base) for w, v in zip(weights, good, strict=True)) / total
    rate = sum(w * v.rate_ppb for w, v in zip(weights, good, strict=True)) / total
    if own_correction_ns is not None:
        mean = (1 - damping) * mean
        rate = (1 - damping) * rate + damping * own_rate_ppb
    correction = base + round(mean)
    told = [view.bound_ns + abs(view.correction_ns - correction) for view in views]
    agreed = all(abs(view.correction_ns - correction) <= view.hides_ns for view in views)
    if own_correction_ns is None:
        bound = min(told) if agreed else max(told)
    else:
        kept = own_bound_ns + abs(correction - own_correction_ns)
        bound = min(kept, *told) if agreed else kept
    return Correction(ref_ns, correction, rate, int(bound) + 1)
