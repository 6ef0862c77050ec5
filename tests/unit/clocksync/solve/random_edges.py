"""Random fleets with honest edges, for tests in which some edges then lie."""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.graph_solve import Edges


def honest_fleet(
    rng: np.random.Generator, n: int, pairs: set[tuple[int, int]]
) -> tuple[NDArray[np.int64], Edges]:
    """Clocks of n hosts (ns that each must add to its own, up to 1 s), and an edge for each pair (lower number first)
    in a random direction. Edges hide 0.5 to 3 us; in some fleets up to a third hide nearly all that they can."""
    i, j = np.array(sorted(pairs)).T
    turned = rng.random(len(i)) < 0.5
    i, j = np.where(turned, j, i), np.where(turned, i, j)
    clock = rng.integers(-(10**9), 10**9, n)
    hides = np.exp(rng.uniform(np.log(500), np.log(3_000), len(i)))
    skewed = rng.random(len(i)) < rng.choice([0.0, 0.1, 0.3])
    noise = np.where(skewed, rng.uniform(-0.9, 0.9, len(i)) * hides, rng.normal(0, 10, len(i)))
    ones = np.ones(len(i))
    offset = clock[j] - clock[i] + np.rint(noise).astype(int)
    return clock, Edges(i, j, offset, 0 * ones, 20 * ones, 5 * ones, hides, 0.3 * ones, 0.3 * ones)
