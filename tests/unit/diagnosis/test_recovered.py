"""Whether losses that still come are those of a fault that has ended."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from fabricpulse.diagnosis.search.recovered import has_ended
from fabricpulse.diagnosis.search.succession import KEPT_S, Succession


def ended(moments: NDArray[np.float64], now_s: float, excused: float = math.inf) -> bool:
    """excused : losses from then on are explained by a restart."""
    return has_ended(moments, moments >= excused, now_s)


@pytest.mark.parametrize("rate", [2.0, 8.0, 40.0])
def test_a_tenth_of_the_rate_is_the_end(rate: float) -> None:
    """A fault that lost packets for ten seconds and hardly any in the last four has ended; while it goes on it has
    not, nor when it becomes worse.
    """
    on = np.arange(0.0, 10.0, 1 / rate)
    assert ended(np.append(on, 13.9), 14.0)
    assert not ended(on, 10.0)
    assert not ended(np.concatenate([on, np.arange(10.0, 14.0, 0.5 / rate)]), 14.0)


def test_chance_is_no_end() -> None:
    """Losses at random, at one rate: at most one look in fifty says that they have ended."""
    random = np.random.default_rng(5)
    looks = []
    for rate in (1.0, 5.0, 30.0):
        for _ in range(200):
            moments = np.sort(random.uniform(0.0, 30.0, random.poisson(30 * rate)))
            looks.append(ended(moments, 30.0))
    assert np.mean(looks) < 0.02


@pytest.mark.parametrize("moments", [[], [1.0, 2.0, 3.0], 20 * [15.0]])
def test_little_evidence_is_no_end(moments: list[float]) -> None:
    """A few losses, or all at one moment, say nothing of a rate."""
    assert not ended(np.array(moments), 30.0)


def test_a_burst_long_ago_is_over() -> None:
    """All was lost within a second, and one packet by chance half a minute later: no fault that goes on."""
    moments = np.array([*(12 * [5.0]), 6.0, 41.0])
    assert not ended(moments[:13], 26.0)
    assert ended(moments, 41.5)


def test_chance_does_not_stretch_a_fault() -> None:
    """A minute of losses, and a few by chance in the minute since then."""
    on = np.arange(0.0, 20.0, 1.5)
    assert ended(np.array([*on, 45.0, 70.0]), 79.0)


@pytest.mark.parametrize(("burst", "over"), [(4, False), (7, True)])
def test_few_losses_at_once_were_a_burst(burst: int, over: bool) -> None:
    """Of some flows the last packets that a flap took, and one by chance half a minute later."""
    assert ended(np.array([*np.linspace(1.0, 4.0, burst), 29.9]), 30.0) is over


def test_what_a_restart_explains_keeps_no_fault_alive() -> None:
    """It lost packets for ten seconds; what is lost since then is lost by restarts. They tell of the rate before, too:
    of a coordinator that has just begun it is all that is known.
    """
    on, restart = np.arange(0.0, 10.0, 0.2), np.arange(10.5, 16.0, 0.2)
    both = np.concatenate([on, restart])
    assert not ended(both, 16.0)
    assert ended(both, 16.0, excused=10.0)
    assert ended(on, 15.0, excused=0.0)


def test_what_its_parts_leave_is_not_all_that_a_fault_owned() -> None:
    """In its last second a leaf is found on some of its flows, as its NICs explain the rest: they are its own still."""
    succession, leaf, nic = Succession(), ("loss", "switch", "leaf1", ""), ("loss", "nic_rx", "h4/r0", "")
    succession.name(leaf, np.arange(100), 50.0)
    succession.name(leaf, np.arange(4), 51.0)
    assert succession.remains(nic, np.arange(20, 40))
    succession.name(leaf, np.arange(4), 50.0 + KEPT_S + 1)
    assert not succession.remains(nic, np.arange(20, 40))
