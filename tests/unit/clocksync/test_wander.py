"""The wander of clocks that is learned from corrections: its direction, whatever the noise, and its limits."""

import numpy as np
import pytest

from fabricpulse.clocksync.edge.wander import Wander

USUAL = 5.0


def settled(true_ppb: float, noise_ns: float, seed: int, steps: int = 600) -> float:
    """Geometric mean of what is learned in the second half, by a Kalman filter of a clock that wanders by true_ppb."""
    rng = np.random.default_rng(seed)
    wander = Wander(USUAL)
    offset, rate = 0.0, 0.0
    x, p = np.zeros(2), np.diag([100.0**2, 20.0**2])
    move = np.array([[1.0, 1.0], [0.0, 1.0]])
    learned = []
    for step in range(steps):
        change = rng.normal(0, true_ppb)
        offset, rate = offset + rate + change / 2, rate + change
        q = wander.ppb**2
        x, p = move @ x, move @ p @ move.T + q * np.array([[1 / 3, 1 / 2], [1 / 2, 1.0]])
        gain = p[:, 0] / (p[0, 0] + noise_ns**2)
        correction = gain * (offset + rng.normal(0, noise_ns) - x[0])
        wander.corrected(float(correction[0] / np.sqrt(p[0, 0])))
        x, p = x + correction, p - np.outer(gain, p[0])
        if step >= steps // 2:
            learned.append(wander.ppb)
    return float(np.exp(np.mean(np.log(learned))))


@pytest.mark.parametrize("noise_ns", [15.0, 40.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_wander_is_found_whatever_the_noise(noise_ns: float, seed: int) -> None:
    """Within a factor of two from either side: in much noise a calm clock tells of itself slowly."""
    assert settled(2.0, noise_ns, seed) < 2.0 * 2
    assert 14.0 / 2 < settled(14.0, noise_ns, seed) < 14.0 * 1.5


def test_noise_that_the_filter_underrates_is_no_wander() -> None:
    """Corrections of four times the expected size, but to and fro: the wander falls to its least."""
    rng = np.random.default_rng(1)
    wander = Wander(USUAL)
    last = 0.0
    for _ in range(500):
        noise = rng.normal()
        wander.corrected(4 * (noise - last))
        last = 0.7 * noise
    assert wander.ppb < 0.5 * USUAL


def test_one_correction_changes_little_and_limits_hold() -> None:
    """A clock that was steered is one loud pair; corrections to one side for ever end at the limit."""
    wander = Wander(USUAL)
    for by in (1.0, -1.0, 1.0, 100.0, 100.0):
        wander.corrected(by)
    assert wander.ppb < 1.5 * USUAL
    for _ in range(1000):
        wander.corrected(1.0)
    assert wander.ppb == pytest.approx(4 * USUAL)
    wander.clear()
    assert wander.ppb == USUAL


def test_corrections_of_nothing_teach_nothing() -> None:
    """No division by their size."""
    wander = Wander(USUAL)
    for _ in range(10):
        wander.corrected(0.0)
    assert wander.ppb == USUAL
