"""Robust weighted least squares of differences between the nodes of a graph.

The normal equations are a graph Laplacian; conjugate gradients with a Jacobi preconditioner solve them in a few dozen
products (a direct factorisation of a random graph fills in completely and must never be used). Huber weights take
edges that do not fit out of the answer. Pure: arrays in, arrays out.
"""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.graph import Graph, Matrix, Nodes
from fabricpulse.clocksync.solve.outliers import typical_size

Floats = NDArray[np.float64]

_HUBER = 1.5
# A round that moves no host by more than _ENOUGH of the usual error is the last; after _ROUNDS one that moves none by
# more than _ROUGHLY of it. The edges of a faulty host may take more.
_ROUNDS, _MOST_ROUNDS = 5, 24
_ENOUGH, _ROUGHLY = 0.02, 3.0
# The typical residual is so many times as large as expected only where faulty hosts have pulled the solution.
_FAR = 10.0
_FEW = 16
_MAX_ITERATIONS = 200
_CG_TOLERANCE = 1e-6


def robust_least_squares(
    graph: Graph, m: Floats, sigma: Floats, start: Floats | None = None, tail: Floats | None = None
) -> tuple[Floats, Floats]:
    """x with x_i - x_j close to m for each edge, and the Huber weight of each edge.

    x is fixed up to one constant a component; the mean change against `start` is 0 in each. sigma : > 0, expected
    error of m; scaled by what the residuals really are. tail : per edge, 0 to 1: the share of its say that it keeps
    once it does not fit. O(edges) per iteration.
    """
    i, j = graph.i, graph.j
    x = np.zeros(graph.n) if start is None else start.copy()
    base = 1.0 / np.square(sigma)
    residual = _apart(x, i, j)
    np.subtract(m, residual, out=residual)
    typical = float(np.median(sigma))
    # Where most edges fit what was known, the few that do not have no say from the first round on.
    scale = _scale(residual, sigma)
    trusted = scale < _FAR
    huber = _weights(residual, sigma, scale, tail) if trusted else np.ones(len(m))
    # Faulty hosts that pull the solution make the typical residual larger, which gives them more weight, and so on.
    most = 2 * scale if trusted else np.inf
    for number in range(_MOST_ROUNDS):
        weight = base * huber
        diagonal = graph.sum_at_ends(weight, 1.0)
        diagonal[diagonal == 0] = 1.0
        b = graph.sum_at_ends(weight * residual, -1.0)
        step = _conjugate_gradients(graph.adjacency(weight), diagonal, b)
        del weight
        x += step
        np.subtract(m, _apart(x, i, j), out=residual)
        before, scale = scale, _scale(residual, sigma)
        # Where so much is wrong, what is usual is known only when what is wrong has lost its say: least absolute
        # residuals, as long as they help; among few hosts, where one that is faulty is at the end of most edges, to the
        # end.
        few = graph.n <= _FEW
        absolute = scale > _FAR and (few or scale < 0.8 * before)
        huber = _weights(residual, sigma, 1.0 if absolute else min(scale, most), tail)
        moved = float(np.abs(step).max(initial=0.0))
        if moved < _ENOUGH * typical or (
            number >= _ROUNDS - 1 and moved < _ROUGHLY * scale * typical and not (few and absolute)
        ):
            break
    return x, huber


def tail_of(bound_ns: Floats) -> Floats:
    """What an edge counts for that does not fit, by what it may hide: half of the round trip of its fastest packets.

    One way of a long path may be longer by all of that, and then many edges agree on what is wrong; those of short
    paths cannot be wrong by so much. Squared: where one way of a third of all edges became 3 to 100 us longer, a host
    was wrong by more than 1 us in 6 of 60 simulated fleets; in 12 by the plain ratio, in 53 without.
    """
    usual = float(np.median(bound_ns)) if len(bound_ns) else 1.0
    share: Floats = np.minimum(1.0, usual / np.maximum(bound_ns, 1.0)) ** 2
    return share


# In place, below: each array of the edges of a large fleet is 8 MB, and what is not touched anew is not waited for.


def _apart(x: Floats, i: Nodes, j: Nodes) -> Floats:
    apart = x[i]
    apart -= x[j]
    return apart


def _scale(residual: Floats, sigma: Floats) -> float:
    """By how much residuals are larger than expected, 1 at least."""
    normal = np.abs(residual)
    normal /= sigma
    return max(1.0, typical_size(normal) / 0.6745)


def _weights(residual: Floats, sigma: Floats, scale: float, tail: Floats | None = None) -> Floats:
    fits: Floats = np.abs(residual)
    np.maximum(fits, 1e-9, out=fits)
    np.divide(_HUBER * scale * sigma, fits, out=fits)
    weights = np.minimum(1.0, fits)
    if tail is not None:
        # From where an edge no longer fits to three times as far its say shrinks to the share:
        # 1 - (1 - tail) * clip((1 / fits - 1) / 2, 0, 1).
        np.divide(1.0, fits, out=fits)
        fits -= 1.0
        fits /= 2.0
        np.clip(fits, 0.0, 1.0, out=fits)
        fits *= 1.0 - tail
        np.subtract(1.0, fits, out=fits)
        weights *= fits
    return weights


def _conjugate_gradients(off_diagonal: Matrix, diagonal: Floats, b: Floats) -> Floats:
    """Solves (diag - off_diagonal) x = b, singular on constants, for b without a constant part."""
    x = np.zeros_like(b)
    r = b.copy()
    inverse = 1.0 / diagonal
    z = r * inverse
    p = z.copy()
    rz = _dot(r, z)
    target = _CG_TOLERANCE**2 * rz + 1e-24
    for _ in range(_MAX_ITERATIONS):
        if rz <= target:
            break
        q = diagonal * p - off_diagonal @ p
        curvature = _dot(p, q)
        if curvature <= 0:
            break
        alpha = rz / curvature
        x += alpha * p
        r -= alpha * q
        np.multiply(r, inverse, out=z)
        rz, old = _dot(r, z), rz
        p *= rz / old
        p += z
    return x


def _dot(a: Floats, b: Floats) -> float:
    # Not a @ b: BLAS would wake its threads for each of these small products, and they spin.
    return float(np.einsum("i,i->", a, b))
