"""The separating line is the optimum of the linear program that it stands for."""

import numpy as np
import pytest
from scipy.optimize import linprog

from fabricpulse.clocksync._edge_fit import separate


def clouds(seed: int, n: int, rate_ppb: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Points above and below offset 0 with slope rate_ppb, 1.5 us of path and exponential queueing."""
    rng = np.random.default_rng(seed)
    tu, tl = rng.uniform(-2, 2, n), rng.uniform(-2, 2, n)
    upper = rate_ppb * tu + 1500 + rng.exponential(400, n)
    lower = rate_ppb * tl - 1500 - rng.exponential(400, n)
    return tu, upper, tl, lower


def linear_program(
    tu: np.ndarray, upper: np.ndarray, tl: np.ndarray, lower: np.ndarray, k: int
) -> tuple[float, float, float]:
    """max gap with the mean of the k lowest (highest) points as margins, as an LP; k = count of supports."""
    n, m = len(upper), len(lower)
    # Variables: slope, a, b, slack_u (n), slack_l (m): maximise (a - sum su / k) - (b + sum sl / k).
    cost = np.concatenate([[0, -1, 1], np.full(n, 1 / k), np.full(m, 1 / k)])
    above = np.hstack([tu[:, None], np.ones((n, 1)), np.zeros((n, 1)), -np.eye(n), np.zeros((n, m))])
    below = np.hstack([-tl[:, None], np.zeros((m, 1)), -np.ones((m, 1)), np.zeros((m, n)), -np.eye(m)])
    result = linprog(
        cost,
        A_ub=np.vstack([above, below]),
        b_ub=np.concatenate([upper, -lower]),
        bounds=[(None, None)] * 3 + [(0, None)] * (n + m),
    )
    return float(result.x[0]), float(result.x[1] + result.x[2]) / 2, float(-result.fun) / 2


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rate_ppb", [0.0, 7_300.0, -48_000.0, 900_000.0])
def test_equals_the_linear_program(seed: int, rate_ppb: float) -> None:
    """Half gap within 0.02 ns of HiGHS; slope and offset too, whatever the relative rate."""
    tu, upper, tl, lower = clouds(seed, 150, rate_ppb)
    offset_ns, rate_ppb_found, half_gap_ns = separate(tu, upper, tl, lower, 0.02)
    slope, _, half_gap = linear_program(tu, upper, tl, lower, 3)
    assert half_gap_ns == pytest.approx(half_gap, abs=0.02)
    assert rate_ppb_found == pytest.approx(slope, abs=2.0)
    assert offset_ns == pytest.approx(0.0, abs=120)


def test_a_single_point_each_way_gives_their_middle() -> None:
    """With nothing to tell the slope from, the given one is kept."""
    one = np.array([0.0])
    offset_ns, _, half_gap_ns = separate(
        one, np.array([2_000.0]), one, np.array([-1_000.0]), 0.01, rate_ppb=5.0
    )
    assert (offset_ns, half_gap_ns) == (500.0, 1_500.0)


def test_an_empty_cloud_is_refused() -> None:
    """There is no line next to nothing."""
    some, none = np.zeros(3), np.zeros(0)
    with pytest.raises(ValueError, match="both clouds"):
        separate(some, some, none, none, 0.01)
