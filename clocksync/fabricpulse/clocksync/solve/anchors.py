"""Anchor selection (RFC 5905 section 11.2.1) and the resulting error bounds. Pure.

Each anchor reports an interval for UTC. Intervals of anchors that are right overlap, since each of them holds the
truth; as in NTP (Marzullo's algorithm; RFC 5905, section 11.2.1), the intersection of more than half of them counts,
and one that does not overlap with it is a falseticker, however narrow it is. The guarantee assumes a majority that is
right: an anchor may be wrong by less than others' intervals are wide, which cannot be detected, so a bound rests on one
anchor alone only where no further one can be wrong.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.shortest_paths import ShortestPaths

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Anchors from which bounds are carried to all hosts where it takes several to agree: a search each.
_CARRIERS = 4
# Roundings of corrections, ns.
_ROUNDING_NS = 2.0


def intersection(low: Floats, high: Floats) -> tuple[float, float] | None:
    """From the first to the last point that lies in more than half of the intervals; None if there is none."""
    need = len(low) // 2 + 1
    ends = np.concatenate([low, high])
    # Where one begins as another ends, they share the point.
    order = np.lexsort((np.repeat([0, 1], len(low)), ends))
    inside = np.cumsum(np.where(order < len(low), 1, -1))
    enough = np.flatnonzero(inside >= need)
    if not len(enough):
        return None
    # After the last such point comes the end of an interval.
    return float(ends[order[enough[0]]]), float(ends[order[enough[-1] + 1]])


def weighted_median(values: Floats, weights: Floats) -> float:
    """The value at which half of the weight lies below."""
    order = np.argsort(values)
    running = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(running, running[-1] / 2)])


@dataclass(frozen=True)
class AnchorSelection:
    """The selected anchors of one component.

    constant_ns : what to add to all corrections. survivors : per anchor; all survive where there is no majority.
    falsetickers : those that the majority excludes, or, without one, all that exclude one another. disputed : there is
    no majority. source_ns : per anchor, how far UTC may be from fleet time there; inf where it does not say.
    """

    constant_ns: float
    survivors: Bools
    falsetickers: Bools
    disputed: bool
    source_ns: Floats


def select_anchors(
    paths: ShortestPaths, hosts: NDArray[np.intp], wanted_ns: Floats, bound_ns: Floats, now_ns: float | None
) -> AnchorSelection:
    """Selects the anchors of one component.

    hosts : theirs. wanted_ns : what each would add to all corrections, within bound_ns. now_ns : what goes on with the
    timeline as it is, None where there is none yet. Without a majority the timeline stays, as far as one of the anchors
    allows it: bounds that tell of all of them are better than a fleet that slews from one to another.
    """
    count = len(hosts)
    low, high = wanted_ns - bound_ns, wanted_ns + bound_ns
    if low.max() > high.min():
        # What the edges between them can hide counts before one is called wrong.
        hidden = paths.between(hosts[bound_ns.argmin() : bound_ns.argmin() + 1], hosts)[0] + _ROUNDING_NS
        low, high = low - hidden, high + hidden
    weight = 1.0 / np.square(bound_ns + 1.0)
    region = intersection(low, high)
    if region is None:
        survivors = np.ones(count, np.bool_)
        falsetickers = (low > high.min()) | (high < low.max())
        constant = weighted_median(wanted_ns, weight) if now_ns is None else now_ns
        constant = float(np.clip(constant, low.min(), high.max()))
        right_at_least = 1
    else:
        falsetickers = (low > region[1]) | (high < region[0])
        survivors = ~falsetickers
        constant = float(np.clip(weighted_median(wanted_ns[survivors], weight[survivors]), *region))
        right_at_least = count // 2 + 1
    off = np.where(survivors, np.abs(wanted_ns - constant) + bound_ns, np.inf)
    # Among this many survivors at least one is a truechimer.
    one_of = int(survivors.sum()) - right_at_least + 1
    if one_of > 1:
        carriers = np.argsort(off)[:_CARRIERS]
        reach = np.sort(off + paths.between(hosts[carriers], hosts), axis=1)
        off = np.full(count, np.inf)
        off[carriers] = reach[:, one_of - 1]
    return AnchorSelection(constant, survivors, falsetickers, region is None, off)
