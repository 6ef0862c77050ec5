"""Whether losses that still come are those of a fault that has ended."""

import numpy as np
import pytest

from fabricpulse.diagnosis.search.recovered import has_ended


@pytest.mark.parametrize("rate", [2.0, 8.0, 40.0])
def test_a_tenth_of_the_rate_is_the_end(rate: float) -> None:
    """A fault that lost packets for ten seconds and hardly any in the last four has ended; while it goes on it has
    not, nor when it becomes worse.
    """
    on = np.arange(0.0, 10.0, 1 / rate)
    assert has_ended(np.append(on, 13.9), 14.0)
    assert not has_ended(on, 10.0)
    assert not has_ended(np.concatenate([on, np.arange(10.0, 14.0, 0.5 / rate)]), 14.0)


def test_chance_is_no_end() -> None:
    """Losses at random, at one rate: at most one look in fifty says that they have ended."""
    random = np.random.default_rng(5)
    looks = []
    for rate in (1.0, 5.0, 30.0):
        for _ in range(200):
            moments = np.sort(random.uniform(0.0, 30.0, random.poisson(30 * rate)))
            looks.append(has_ended(moments, 30.0))
    assert np.mean(looks) < 0.02


@pytest.mark.parametrize("moments", [[], [1.0, 2.0, 3.0], 20 * [5.0]])
def test_little_evidence_is_no_end(moments: list[float]) -> None:
    """A few losses, or all at one moment, say nothing of a rate."""
    assert not has_ended(np.array(moments), 30.0)


def test_a_burst_long_ago_is_over() -> None:
    """All was lost within a second, and one packet by chance half a minute later: no fault that goes on."""
    moments = np.array([*(12 * [5.0]), 6.0, 41.0])
    assert not has_ended(moments[:13], 30.0)
    assert has_ended(moments, 41.5)


def test_chance_does_not_stretch_a_fault() -> None:
    """A minute of losses, and a few by chance in the minute since then."""
    on = np.arange(0.0, 20.0, 1.5)
    assert has_ended(np.array([*on, 45.0, 70.0]), 79.0)
