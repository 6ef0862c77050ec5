"""Schedules and shaping, computed and never slept."""

import itertools

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.lab.faults import FlapPlan, tbf


def test_a_flap_plan_is_seeded() -> None:
    """The same seed gives the same times, another seed others."""
    assert list(FlapPlan(2, 10, seed=7).cycles()) == list(FlapPlan(2, 10, seed=7).cycles())
    assert list(FlapPlan(2, 10, seed=7).cycles()) != list(FlapPlan(2, 10, seed=8).cycles())


def test_a_flap_plan_has_the_wanted_rate_and_share() -> None:
    """2 Hz, 25 % down: 1000 flaps take 500 s within 2 %, each period within the jitter."""
    cycles = list(FlapPlan(2, 1000, down_fraction=0.25, jitter=0.2).cycles())
    assert sum(map(sum, cycles)) == pytest.approx(500, rel=0.02)
    for down, up in cycles:
        assert 0.4 <= down + up <= 0.6
        assert down / (down + up) == pytest.approx(0.25)


def test_without_a_count_a_flap_plan_is_endless() -> None:
    """It goes on as long as it is asked."""
    assert len(list(itertools.islice(FlapPlan(10).cycles(), 5000))) == 5000


@pytest.mark.parametrize(
    "plan", [{"rate_hz": 0}, {"rate_hz": 1, "down_fraction": 1}, {"rate_hz": 1, "jitter": 1}]
)
def test_an_impossible_flap_is_refused(plan: dict[str, float]) -> None:
    """One sentence."""
    with pytest.raises(UserError, match="a flap needs"):
        FlapPlan(**plan)  # type: ignore[arg-type]


def test_a_limit_queues_what_was_asked_and_at_least_two_packets() -> None:
    """100 Mbit/s and 20 ms are 250 kB of queue; a slow limit still lets a jumbo frame through."""
    assert (
        tbf("h0", 100, 20, 9000)
        == "qdisc replace dev h0 root tbf rate 100000000bit burst 18036b limit 250000b"
    )
    slow = tbf("h0", 0.1, 1, 9000).split()
    assert (slow[slow.index("burst") + 1], slow[slow.index("limit") + 1]) == ("18036b", "18036b")


@pytest.mark.parametrize(("mbit", "queue_ms"), [(0, 1), (-1, 1), (1, 0)])
def test_an_impossible_limit_is_refused(mbit: float, queue_ms: float) -> None:
    """One sentence."""
    with pytest.raises(UserError, match="not possible"):
        tbf("h0", mbit, queue_ms, 1500)
