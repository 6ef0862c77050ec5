"""The share of each NIC in the delays of its pairs: what its host's stack, its stamps and its own cable take. Pure.

A two-way delay is the term of one NIC, that of the other, and what the fabric adds, which is the same for all pairs of
a class. Terms differ by microseconds and the classes by hundreds of nanoseconds, so that no delay tells a class by
itself; all of them together do. Only pairs are added up, never a level: a constant may move from the classes to the
terms without a consequence.
"""

import numpy as np
from scipy.sparse import csr_array

from fabricpulse.diagnosis.tree.measured import Floats, Ints

# Weights of a pair that is further than the fit, against one that is nearer. Above a half: where as many pairs of a NIC
# are near as are far, the terms are those of the far ones; queues that never empty must not be taken for distance
# either. How many are near depends on who was asked to measure.
FAR_SIDES = (0.6, 0.75, 0.9)
_WIDTHS_NS = (4000.0, 2000.0, 1000.0, 500.0, 300.0, 200.0, 200.0, 150.0, 150.0, 100.0, 100.0, 100.0)
_MOST_PRODUCTS = 60
# Of a place where the pairs of a NIC agree, against the place where most do.
_MODE_SHARE = 0.4
_TOLERANCE = 1e-5
# NICs whose pairs are looked at together: bounds memory.
_AT_ONCE = 4096
# Holds a NIC of a part of the graph without odd cycles, where the terms are not determined.
_RIDGE = 1e-4


class Pairs:
    """The pattern of the normal equations of a set of pairs. n : NICs."""

    def __init__(self, n: int, a: Ints, b: Ints) -> None:
        self.n, self.a, self.b = n, a, b
        rows = np.concatenate([a, b])
        order = np.argsort(rows, kind="stable")
        self._columns = np.concatenate([b, a])[order].astype(np.int32)
        # By NIC its pairs, one NIC after the other.
        self._rows = order
        self._rows[order >= len(a)] -= len(a)
        self._starts = np.zeros(n + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=n), out=self._starts[1:])

    def solve(self, y: Floats, weight: Floats, start: Floats) -> Floats:
        """Least squares of start_a + start_b against y: conjugate gradients from `start`. Writes to `weight`."""
        w = weight
        w /= max(float(w.max(initial=0.0)), 1e-300)
        diagonal = self._at_ends(w) + _RIDGE
        x = start.copy()
        r = self.without(y, x)
        r *= w
        residual = self._at_ends(r)
        np.abs(y, out=r)
        r *= w
        enough = _TOLERANCE * float(np.sqrt(np.sum(np.square(self._at_ends(r))))) or 1.0
        del r
        matrix = csr_array((w[self._rows], self._columns, self._starts), shape=(self.n, self.n))
        z = residual / diagonal
        p, rho = z.copy(), float(residual @ z)
        for _ in range(_MOST_PRODUCTS):
            if rho <= 0 or float(np.sqrt(residual @ residual)) <= enough:
                break
            q = diagonal * p + matrix @ p
            alpha = rho / float(p @ q)
            x += alpha * p
            residual -= alpha * q
            z = residual / diagonal
            rho, before = float(residual @ z), rho
            p = z + (rho / before) * p
        return x

    def at_ends(self, value: Floats, first: int, last: int) -> tuple[Ints, Floats]:
        """The values of the pairs of some NICs: of which NIC, ascending, and what. value : by pair."""
        starts = self._starts[first : last + 1]
        rows = self._rows[starts[0] : starts[-1]]
        return np.repeat(np.arange(first, last), np.diff(starts)), value[rows]

    def without(self, y: Floats, terms: Floats) -> Floats:
        """y of each pair without the terms of both NICs. Of a large fleet a column is megabytes: there are few."""
        found: Floats = y - terms[self.a]
        found -= terms[self.b]
        return found

    def _at_ends(self, value: Floats) -> Floats:
        return np.asarray(np.bincount(self.a, value, self.n) + np.bincount(self.b, value, self.n), float)


def first_terms(pairs: Pairs, y: Floats, far_side: float) -> Floats:
    """Terms before any class is known: those of a distant class. far_side : weight of a pair that is further than the
    fit, 1 minus it that of one that is nearer.
    """
    terms = np.full(pairs.n, float(np.median(y)) / 2 if len(y) else 0.0)
    for width in _WIDTHS_NS:
        r = pairs.without(y, terms)
        weight = np.where(r > 0, far_side, 1 - far_side)
        np.abs(r, out=r)
        weight /= np.maximum(r, width, out=r)
        del r
        terms = pairs.solve(y, weight, terms)
    return terms


def moved_to_mode(pairs: Pairs, y: Floats, terms: Floats, sigma: float) -> Floats:
    """Terms after those of NICs of which many pairs agree upon a longer one have been raised to it: the fit stays where
    it began, with pairs of the wrong class.
    """
    r = pairs.without(y, terms)
    span = float(np.ptp(r)) + 100 * sigma if len(r) else 1.0
    moved = terms.copy()
    for first in range(0, pairs.n, _AT_ONCE):
        last = min(first + _AT_ONCE, pairs.n)
        nic, value = pairs.at_ends(r, first, last)
        if len(nic):
            moved[first:last] += _to_mode(nic - first, value, last - first, span, 3 * sigma)
    return moved


def _to_mode(nic: Ints, value: Floats, n: int, span: float, width: float) -> Floats:
    """By how much the terms of n NICs are raised. value : of pairs, those of one NIC together. span : more than they
    differ by.
    """
    order = np.lexsort((value, nic))
    nic, value = nic[order], value[order]
    # One line of all NICs, each far from the next.
    line = np.asarray(nic * span + (value - float(value.min())), float)
    count = np.searchsorted(line, line + width, side="right") - np.arange(len(line))
    densest = np.zeros(n, np.int64)
    np.maximum.at(densest, nic, count)
    dense = count >= np.maximum(_MODE_SHARE * densest[nic], 3)
    at = np.flatnonzero(dense)
    last = np.full(n, -1)
    last[nic[at]] = at  # the highest of each, as the line ascends
    has = np.flatnonzero(last >= 0)
    middle = last[has] + count[last[has]] // 2
    shift = value[np.minimum(middle, len(value) - 1)]
    found = np.zeros(n)
    up = np.abs(shift) > width
    found[has[up]] = shift[up]
    return found


def refined(pairs: Pairs, y: Floats, terms: Floats, sigma: float, rounds: int = 4) -> Floats:
    """Terms when the class of each pair is known, and y is free of it. Pairs that are further by several sigma (ns),
    as one whose queue never empties, have no say, and those that are nearer little.
    """
    for _ in range(rounds):
        r = pairs.without(y, terms)
        r /= sigma
        weight = np.square(r / 5)
        np.subtract(1, weight, out=weight)
        np.square(np.maximum(weight, 0.0, out=weight), out=weight)
        np.abs(r, out=r)
        weight *= r < 5
        # One of whose pairs none fits keeps a way back.
        weight += np.divide(0.02, np.maximum(r, 1.0, out=r), out=r)
        del r
        terms = pairs.solve(y, weight, terms)
    return terms


def width_of(r: Floats, least_ns: float = 60.0) -> float:
    """Standard deviation of residuals around 0, by those above it: nearer classes lie below."""
    above = r[r > 0]
    return max(least_ns, float(np.median(above)) / 0.6745) if len(above) else least_ns


def highest_mode(values: Floats, least_share: float = 0.2, width_ns: float = 400.0) -> float:
    """Where values are dense: of several such places the highest one that has at least `least_share` of what the
    densest has, and two values where any has: a single pair may be congested.
    """
    ordered = np.sort(values)
    count = np.searchsorted(ordered, ordered + width_ns, side="right") - np.arange(len(ordered))
    most = int(count.max(initial=0))
    dense = np.flatnonzero(count >= max(least_share * most, min(most, 2)))
    at = int(dense[-1])
    # The densest window at that place, not its upper edge.
    near = dense[(ordered[dense] >= ordered[at] - 2 * width_ns)]
    best = int(near[np.argmax(count[near])])
    return float(np.median(ordered[best : best + int(count[best])]))
