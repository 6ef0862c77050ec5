"""What the solve is worth, judged by what it has not seen: each edge against all others.

A residual flatters, as the edge that it is of has pulled the solution its way; at a host with few edges by most of it.
Without the edge it would be 1 / (1 - h) times as large, where h, its leverage, is its weight times the effective
resistance between its ends (Allen, "The relationship between variable selection and data augmentation", 1974; for
graphs Spielman and Srivastava, STOC 2008). No second solve is needed. Pure.

An edge that is held out errs itself, so this is above the error of the solution; but it knows nothing of what all edges
of a host have in common.
"""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.graph import Floats, Graph, Nodes
from fabricpulse.clocksync.solve.graph_forms import FEW

# Above it others say next to nothing of an edge, and the estimate of h is too coarse.
_MOST = 0.9


def held_out(graph: Graph, weight: Floats, residual: Floats, component: NDArray[np.int32]) -> Floats:
    """Per edge: measured minus what the edges between other hosts say; NaN where they say next to nothing, as of the
    only way to a host.

    weight : of the last round of least squares. component : per host. All edges between two hosts are held out
    together: at the start of a fleet both ends fit an edge, by the same packets.
    """
    h = weight * _resistance(graph, weight, component)
    mean = residual
    number = np.minimum(graph.i, graph.j).astype(np.int64)
    number *= graph.n
    number += np.maximum(graph.i, graph.j)
    some, pair = _parallel(number)
    del number
    if len(some):
        # As if it were one edge, of their weighted mean; parallel edges count in one direction.
        total = np.bincount(pair, weight[some])
        h[some] *= total[pair] / weight[some]
        sign = np.where(graph.i[some] <= graph.j[some], 1.0, -1.0)
        mean = residual.copy()
        mean[some] = sign * (np.bincount(pair, weight[some] * residual[some] * sign) / total)[pair]
    known = h < _MOST
    return np.where(known, residual - mean + mean / np.where(known, 1.0 - h, 1.0), np.nan)


def _parallel(pair: NDArray[np.int64]) -> tuple[Nodes, Nodes]:
    """The edges that have others beside them, and which pair of hosts each is of, by a number from 0.

    pair : any number for the pair of hosts of each edge.
    """
    # Usually there are none, or next to none: values alone are sorted much faster than with their places.
    ordered = np.sort(pair)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    twice = np.unique(twice)
    place = np.minimum(np.searchsorted(twice, pair), len(twice) - 1)
    some = np.flatnonzero(twice[place] == pair)
    return some, place[some]


def _resistance(graph: Graph, weight: Floats, component: NDArray[np.int32]) -> Floats:
    """Effective resistance between the ends of each edge, a weight being a conductance: of few hosts exact."""
    degree = graph.sum_at_ends(weight, 1.0)
    degree[degree == 0] = 1.0
    if graph.n <= FEW:
        # The Laplacian is singular on what is constant in a component, which resistance does not ask for.
        constant = (component[:, np.newaxis] == component) * float(np.median(degree))
        inverse = np.linalg.inv(np.diag(degree) - graph.adjacency(weight) @ np.eye(graph.n) + constant)
        at = np.diagonal(inverse)
        exact: Floats = at[graph.i] + at[graph.j] - 2 * inverse[graph.i, graph.j]
        return exact
    # Of a random graph nearly what leaves both ends (never more), times what makes the leverages add up to the
    # number of unknowns.
    near = 1.0 / degree[graph.i] + 1.0 / degree[graph.j]
    unknowns = graph.n - (int(component.max()) + 1)
    return near * max(1.0, unknowns / max(float(np.sum(weight * near)), 1e-9))
