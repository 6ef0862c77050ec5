"""Fleet time without a coordinator: each host moves towards the times of its neighbours, by the edges to them.

One iteration of damped averaging a round; some twenty of them give the result of least squares. The mean of a fleet
that averages stays where it is, so the timeline goes on. Bounds are passed along in the same way: a host's is the
smallest of its own, aged, and of each neighbour's plus the bound of the edge to it. Without a source of truth
they grow, as they must. Where a neighbour contradicts the average by more than the bound of the edge to it,
it is not known whose stamps are wrong, and no neighbour's bound may narrow the host's own. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fabricpulse.clocksync.clock.fleet_clock import Correction

# As of the solve (solve.contradictions): of at least so many neighbours more than this share.
_FEWEST, _MOST_CONTRADICTING = 3, 0.6


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
    doubt_ns: float = 0.0,
) -> Correction | None:
    """The next correction, or None when there is nothing to average, or most of it contradicts the rest.
    doubt_ns : how far we may be off, by what is remembered (neighbour_doubt).
    """
    if not views or _contradict(views):
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
        mean, rate = mean / 2, (rate + own_rate_ppb) / 2
    correction = base + round(mean)
    wide = [view.bound_ns + abs(view.correction_ns - correction) for view in views]
    agreed = agree(correction, views)
    if own_correction_ns is None:
        bound = max(min(wide), doubt_ns) if agreed else max(*wide, doubt_ns)
    else:
        kept = own_bound_ns + abs(correction - own_correction_ns)
        bound = min(kept, max(min(wide), doubt_ns)) if agreed else kept
    return Correction(ref_ns, correction, rate, int(bound) + 1)


def agree(correction_ns: int, views: Sequence[NeighbourView]) -> bool:
    """Whether no view is further from a correction than its edge can hide."""
    return all(abs(view.correction_ns - correction_ns) <= view.hides_ns for view in views)


def contradiction_ns(
    own_correction_ns: int | None, own_bound_ns: float, views: Sequence[NeighbourView]
) -> float:
    """How far we may be off where two of what we and the neighbours say cannot both be true; 0 where all can."""
    claims = [(view.correction_ns, view.bound_ns) for view in views]
    if own_correction_ns is not None:
        claims.append((own_correction_ns, own_bound_ns))
    if not claims or max(at - bound for at, bound in claims) <= min(at + bound for at, bound in claims):
        return 0.0
    low, high = min(at for at, _ in claims), max(at for at, _ in claims)
    # Wherever the average puts us, some view has us at the other end.
    return high - low + max(bound for _, bound in claims)


def _contradict(views: Sequence[NeighbourView]) -> bool:
    """Whether most of `views` exclude the middle one."""
    if len(views) < _FEWEST:
        return False
    middle = sorted(views, key=lambda view: view.correction_ns)[len(views) // 2]
    outside = [
        abs(view.correction_ns - middle.correction_ns) > view.bound_ns + middle.bound_ns for view in views
    ]
    return sum(outside) > _MOST_CONTRADICTING * len(views)
