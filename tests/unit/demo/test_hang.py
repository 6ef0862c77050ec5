"""The scenario of a rank that stops: its process is told, once, and the ring goes on afterwards."""

import pytest
from tests.unit.demo.test_flap import World

from fabricpulse.lab.demo.observed import AlertSeen, PageSeen
from fabricpulse.lab.demo.scenarios.base import Judgement
from fabricpulse.lab.demo.scenarios.hang import HANG_S, Hang, HangOutcome

RIGHT = PageSeen(Hang.alert, (("peer", "h1"), ("workload", "demo-ring")), "group")
WRONG_RANK = PageSeen(Hang.alert, (("peer", "h0"), ("workload", "demo-ring")), "group")


def play(*pages: PageSeen, errors: int = 0) -> tuple[World, list[str]]:
    """The story, in which people are told of `pages`, and the ring ends with so many errors."""
    world = World(Hang)
    observed = world.observed
    world.healthy()
    seen = world.run(8)
    observed.marks["fault"] = world.now
    seen += world.run(6)
    observed.firing = (AlertSeen(Hang.alert, "", "", "firing"),)
    observed.notified = (AlertSeen(Hang.alert, "", "", "active"),)
    seen += world.run(10)
    observed.pages.update(dict.fromkeys(pages, world.now))
    seen += world.run(HANG_S - 16)
    observed.marks["fault_over"] = world.now
    seen += world.run(1)
    observed.workload.errors = errors
    observed.marks["mended"] = world.now
    seen += world.run(3)
    observed.firing = observed.notified = ()
    return world, seen + world.run(2)


def test_one_page() -> None:
    """All milestones; times count from the fault."""
    world, seen = play(RIGHT)
    result = world.result()

    assert sorted(seen) == sorted(milestone.milestone.name for milestone in world.story.results)
    assert isinstance(result.outcome, HangOutcome)
    assert result.outcome.alert_s == pytest.approx(6.0, abs=0.11)
    assert result.outcome.page_s == pytest.approx(16.0, abs=0.11)
    assert result.success


def test_the_wrong_rank_is_another_page() -> None:
    """A page that blames a rank that waits."""
    world, seen = play(RIGHT, WRONG_RANK)

    assert "paged" in seen
    [promise] = [promise for promise in world.result().promises if promise.name == "other_pages"]
    assert promise.judgement is Judgement.BROKEN
    assert "paged" not in play(WRONG_RANK)[1]


def test_an_error_is_no_going_on() -> None:
    """A rank that stopped and goes on costs time, nothing else."""
    world, seen = play(RIGHT, errors=1)

    assert "ring_goes_on" not in seen
    assert not world.result().success
