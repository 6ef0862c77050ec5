"""Without a coordinator: rounds of averaging with neighbours."""

import numpy as np

from fabricpulse.clocksync.sidecar.averaging import NeighbourView, average


def rounds(n: int, count: int, seed: int, liar: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Corrections and bounds of n hosts after `count` rounds on a ring with chords; clocks within 100 us."""
    rng = np.random.default_rng(seed)
    clock = rng.integers(-100_000, 100_000, n)
    near = {i: sorted({(i + d) % n for d in (1, 2, 5)} | {(i - d) % n for d in (1, 2, 5)}) for i in range(n)}
    noise = {(i, j): int(rng.normal(0, 10)) for i in range(n) for j in near[i] if i < j}
    correction = np.zeros(n, np.int64)
    bound = np.full(n, 1e6)
    bound[0] = 0.0
    for _ in range(count):
        old, old_bound = correction.copy(), bound.copy()
        for i in range(n):
            views = []
            for j in near[i]:
                measured = clock[j] - clock[i] + (noise[i, j] if i < j else -noise[j, i])
                lie = 5_000_000 if j == liar else 0
                views.append(NeighbourView(float(old[j] + measured + lie), 0.0, 10.0, old_bound[j] + 2_000))
            result = average(0, int(old[i]), 0.0, float(old_bound[i]), views)
            assert result is not None
            correction[i], bound[i] = result.correction_ns, result.bound_ns
    return correction + clock, bound


def test_twenty_five_rounds_bring_a_ring_together() -> None:
    """From 200 us apart to within 60 ns of each other."""
    fleet, _ = rounds(12, 25, 1)
    assert np.ptp(fleet) < 60


def test_bounds_never_claim_more_than_the_edges_give() -> None:
    """A bound is never below what the way to the best neighbour costs, and holds."""
    fleet, bound = rounds(12, 25, 2)
    assert (np.abs(fleet - fleet[0]) <= bound + bound[0]).all()


def test_one_liar_does_not_pull_the_others() -> None:
    """A neighbour whose word is 5 ms off is left out."""
    fleet, _ = rounds(12, 25, 3, liar=4)
    assert np.ptp(np.delete(fleet, 4)) < 200


def test_nobody_to_average_with() -> None:
    """No views, no correction."""
    assert average(0, 5, 0.0, 1.0, []) is None
