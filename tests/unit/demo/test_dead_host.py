"""The scenario of a dead host: on-call is notified of the host, not of the stall of its job."""

import pytest
from click.testing import CliRunner
from tests.unit.demo.test_flap import World

from fabricpulse.core.errors import UserError
from fabricpulse.lab.demo.command import command
from fabricpulse.lab.demo.observed import AlertSeen, PageSeen
from fabricpulse.lab.demo.scenarios.base import Fleet, Judgement
from fabricpulse.lab.demo.scenarios.dead_host import STALL, WATCHED_S, DeadHost, DeadHostOutcome

FLEET = Fleet(("h0", "h1", "h2", "h3"), ("rail0", "rail1"))
RIGHT = PageSeen("FabricHostDown", (("instance", "h2"), ("peer", "h2")), "group")
STALLED = PageSeen(STALL, (("peer", "h2"), ("workload", "demo-ring")), "other")


def play(*pages: PageSeen, stall: bool = True) -> tuple[World, list[str]]:
    """The run, in which on-call gets `pages`; without `stall` nobody ever sees that the job stands still."""
    world = World(DeadHost, FLEET)
    observed = world.observed
    world.healthy()
    seen = world.run(8)
    observed.marks["fault"] = world.now
    seen += world.run(2)
    observed.firing = (AlertSeen(DeadHost.alert, "h2", "", "firing"),)
    observed.notified = (AlertSeen(DeadHost.alert, "h2", "", "active"),)
    seen += world.run(4)
    if stall:
        observed.notified = (*observed.notified, AlertSeen(STALL, "", "", "suppressed"))
    seen += world.run(6)
    observed.pages.update(dict.fromkeys(pages, world.now))
    seen += world.run(WATCHED_S - 12)
    observed.marks["fault_over"] = world.now
    return world, seen + world.run(1)


def test_one_page() -> None:
    """All milestones; times count from the fault."""
    world, seen = play(RIGHT)
    result = world.result()

    assert sorted(seen) == sorted(milestone.milestone.name for milestone in world.scenario_run.results)
    assert isinstance(result.outcome, DeadHostOutcome)
    assert result.outcome.alert_s == pytest.approx(2.0, abs=0.11)
    assert result.outcome.page_s == pytest.approx(12.0, abs=0.11)
    assert result.success


def test_the_stall_alerted_as_well_fails_the_demo() -> None:
    """Two pages for one fault."""
    world, _ = play(RIGHT, STALLED)
    result = world.result()

    [check] = [check for check in result.checks if check.name == "other_pages"]
    assert check.judgement is Judgement.BROKEN
    assert not result.success


def test_a_stall_that_nobody_saw_proves_nothing() -> None:
    """One page is no merit where there was nothing to mute."""
    assert "stall_known" not in play(RIGHT, stall=False)[1]


def test_without_the_page_it_is_not_seen() -> None:
    """An alert in Prometheus and Alertmanager is no page."""
    assert "paged" not in play()[1]


def test_a_fleet_that_is_too_small_is_refused() -> None:
    """Before anything is built: of two hosts one alone would miss the other."""
    done = CliRunner().invoke(command, ["--headless", "--scenario", "dead-host", "--hosts", "2"])

    assert isinstance(done.exception, UserError)
    assert "scenario dead-host needs at least 3 hosts" in str(done.exception)
