"""Whose stamps, or whose UTC, contradict the fleet's. Pure: arrays in, arrays out.

Three kinds of faulty hosts. Stamps that all jump by the same amount leave the residuals of all edges as they were; such
a host shows only in that its correction jumped while it reported no clock step (`unexplained_jumps`). Stamps that are
wrong by different amounts on different edges leave large residuals (`faulty_hosts`). Falsetickers among the anchors are
found where anchors are selected (anchors.py).
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# How long a suspicion outlives what it rests on. Alerts ask for more than this (clockSuspectFor of the mixin): a single
# occurrence raises none, one that is repeated within this time does.
HOLD_S = 60.0
# A host that moved by more than this between two solves, beyond its bound, while it saw no step of its own clock, is
# faulty.
_JUMP_NS = 50_000.0
# An edge that is off by more than this many times the usual residual, and this many ns, does not fit.
_OUTLIER_SCALE, _OUTLIER_NS = 6.0, 300.0
# Of the queues that all packets of one direction wait in, before one host, the longest is at most so many times the
# shortest, by the fastest packets.
_UNEVEN_QUEUES = 4.0
# With two hosts the faulty one cannot be identified.
_FEWEST_HOSTS = 3
# A host is tested by at least so many edges, and named when more than this share does not fit.
_FEWEST_EDGES, _MOST_OUTLIERS = 3, 0.6
# Among more hosts than this share the faulty ones cannot be identified.
_MOST_NAMED = 1 / 3


def typical_size(sizes: Floats) -> float:
    """The usual size of errors, as their median; where half of them is far from it, by those that are not.

    Of four faulty hosts among twelve more than half of the edges has one at an end.
    """
    quarter, half = np.quantile(sizes, (0.25, 0.5)).tolist()
    # Of normal errors a quarter is within 0.319 and half within 0.674 sigma.
    by_quarter = float(quarter) * 2.117
    return by_quarter if half > 4 * by_quarter else float(half)


def outlier_limits_ns(
    hosts: int, i: NDArray[np.intp], j: NDArray[np.intp], residual_ns: Floats, bound_ns: Floats
) -> Floats:
    """Of each edge: one with a larger residual does not fit; others as in faulty_hosts. bound_ns : what each can hide.

    A queue that all packets of one direction wait in makes that larger than others', and the residual, too: stamps are
    right. Where all edges of a host have such queues, it may have been placed wrong by the least of them. A host one of
    whose edges hides nothing has no such queue: what makes others hide more is on their ways, or its stamps are late.
    """
    limit_ns = max(_OUTLIER_NS, _OUTLIER_SCALE * typical_size(np.abs(residual_ns)))
    queue_ns: Floats = np.maximum(bound_ns - np.median(bound_ns), 0.0)
    least_ns = np.full(hosts, np.inf)
    for ends in i, j:
        np.minimum.at(least_ns, ends, queue_ns)
    misplaced_ns: Floats = least_ns[i] + least_ns[j]
    limits_ns: Floats = limit_ns + misplaced_ns + np.minimum(queue_ns, _UNEVEN_QUEUES * misplaced_ns)
    return limits_ns


def faulty_hosts(
    hosts: int, i: NDArray[np.intp], j: NDArray[np.intp], residual_ns: Floats, limit_ns: Floats
) -> list[int]:
    """The hosts most of whose edges do not fit, the worst first; i, j : hosts at the ends of each edge. residual_ns :
    measured minus solved offset of each edge; it fits if it is at most `limit_ns`, of each.

    One by one: an edge between a faulty host and another says nothing of the other, so the edges of a host that has
    been named are left out before the next is looked for. A host that the others have pulled away, more than half of
    whose edges then agree with each other, is not faulty: its edges are tested from where they put it.
    """
    outlier = np.abs(residual_ns) > limit_ns
    bad = np.bincount(i[outlier], minlength=hosts) + np.bincount(j[outlier], minlength=hosts)
    if bad.max(initial=0) <= _MOST_OUTLIERS * _FEWEST_EDGES:
        return []
    total = np.bincount(i, minlength=hosts) + np.bincount(j, minlength=hosts)
    # Outliers only become fewer as hosts are named: no other host can be, and only edges of these are tested.
    possible = bad > _MOST_OUTLIERS * _FEWEST_EDGES
    near = np.flatnonzero(possible[i] | possible[j])
    # In 32 bits: at 50,000 hosts with 40 edges these are the largest arrays of a round.
    one, other = i[near].astype(np.int32), j[near].astype(np.int32)
    ends = np.concatenate([one, other])
    order = np.argsort(ends).astype(np.int32)
    begin = np.searchsorted(ends[order], np.arange(hosts + 1))
    others = np.concatenate([other, one])[order]
    second = order >= len(near)
    edge = near.astype(np.int32)[np.where(second, order - len(near), order)]
    del one, other, ends, order
    place_ns, seen = (
        np.zeros(hosts),
        np.zeros(hosts, np.bool_),
    )  # where its edges put a host that was pulled away
    named: list[int] = []
    candidates = np.flatnonzero(possible)
    excluded = np.zeros(hosts, np.bool_)
    while len(named) < max(1, _MOST_NAMED * hosts):
        n, b = total[candidates], bad[candidates]
        share = np.where((n >= _FEWEST_EDGES) & ~excluded[candidates], b / np.maximum(n, 1), 0.0)
        # Of equals the one with more edges.
        worst = int((share + 1e-6 * b).argmax())
        if share[worst] <= _MOST_OUTLIERS:
            break
        host = int(candidates[worst])
        its = slice(begin[host], begin[host + 1])
        peers, of_those = others[its], outlier[edge[its]]
        if not seen[host]:
            seen[host] = True
            left = ~excluded[peers]
            # Of each edge, where the host would have to be for it to fit.
            wanted = place_ns[peers] + np.where(second[its], -1.0, 1.0) * residual_ns[edge[its]]
            limits = limit_ns[edge[its]]
            middle = _majority(wanted[left], float(np.median(limits[left])))
            if middle is not None:
                place_ns[host] = middle
                now = np.abs(wanted - middle) > limits
                outlier[edge[its]] = now
                bad[host] = int((now & left).sum())
                np.add.at(bad, peers, now.astype(np.intp) - of_those)
                continue
        named.append(host)
        excluded[host] = True
        np.subtract.at(total, peers, 1)
        np.subtract.at(bad, peers[of_those], 1)
    return named


def _majority(values: Floats, limit_ns: float) -> float | None:
    """The median of the values that lie within `limit_ns` of each other, if more than half of all do."""
    ordered, most = np.sort(values), len(values) // 2 + 1
    width = ordered[most - 1 :] - ordered[: len(ordered) - most + 1]
    first = int(width.argmin())
    return float(np.median(ordered[first : first + most])) if width[first] <= limit_ns else None


def unexplained_jumps(
    jump_ns: Floats, moved_ns: Floats, bound_ns: Floats, solved_ns: Floats, tested: Bools
) -> tuple[Floats, Bools]:
    """The net jump of each host's correction that nothing explains, after a solve; and which hosts jumped in it.

    jump_ns : before it, 0 for none; it ends when the correction comes back to within what is no jump. moved_ns : what
    the solve moved each host by. bound_ns : of each before it, with what it was widened by for its jump, and whatever
    the host knows of itself: a slew of its clock is in it. solved_ns : bound by the solve. tested : of the others
    nothing is known, or their clocks were stepped; they keep theirs.

    Where most are moved together, an anchor moves the fleet, which is no jump of theirs.
    """
    if np.count_nonzero(tested) < _FEWEST_HOSTS:
        return jump_ns, np.zeros(len(jump_ns), np.bool_)
    moved = moved_ns - np.median(moved_ns[tested])
    jumped = tested & (np.abs(moved) > _JUMP_NS + np.maximum(bound_ns - np.abs(jump_ns), 0.0))
    # Who has begun is followed closely: the fits of its edges follow one after the other.
    net = jump_ns + np.where(jumped | (tested & (jump_ns != 0)), moved, 0.0)
    # Not by the host's own bound, which also contains how far it still has to be slewed after the jump.
    back = tested & (np.abs(net) <= _JUMP_NS + solved_ns)
    return np.where(back, 0.0, net), jumped
