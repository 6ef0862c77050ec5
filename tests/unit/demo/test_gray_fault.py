"""Scenarios of a NIC whose link stays up: one page, the right one, and a figure for every other."""

import pytest
from tests.unit.demo.test_flap import World

from fabricpulse.lab.demo.observed import AlertSeen, PageSeen
from fabricpulse.lab.demo.scenarios.base import Judgement
from fabricpulse.lab.demo.scenarios.gray_fault import GrayFaultOutcome, GrayFaultScenario
from fabricpulse.lab.demo.scenarios.gray_loss import GrayLoss
from fabricpulse.lab.demo.scenarios.mtu import SmallMtu
from fabricpulse.lab.demo.scenarios.slow_path import SlowPath

ALERT = GrayLoss.alert
NIC = (("device", "rail0"), ("instance", "h1"))
RIGHT = PageSeen(ALERT, NIC, "group")


def play(world: World, *pages: PageSeen, disconnected: bool = False) -> list[str]:
    """The run, in which on-call gets `pages`."""
    observed, alert = world.observed, world.scenario.alert
    world.healthy()
    seen = world.run(8)
    observed.marks["fault"] = world.now
    world.bandwidth = 25e6
    seen += world.run(3)
    observed.firing = (AlertSeen(alert, "h1", "rail0", "firing"),)
    observed.notified = (AlertSeen(alert, "h1", "rail0", "active"),)
    seen += world.run(10)
    observed.pages.update(dict.fromkeys(pages, world.now))
    world.nic.connected = not disconnected
    seen += world.run(1)
    world.nic.connected = True
    seen += world.run(world.scenario.fault_s - 14)
    observed.marks["fault_over"] = world.now
    seen += world.run(1)
    observed.marks["repaired"] = world.now
    world.bandwidth = 50e6
    seen += world.run(3)
    observed.firing = observed.notified = ()
    return seen + world.run(10)


@pytest.mark.parametrize("scenario", [GrayLoss, SmallMtu, SlowPath])
def test_one_page(scenario: type[GrayFaultScenario]) -> None:
    """All milestones; times count from the fault."""
    world = World(scenario)
    seen = play(world, PageSeen(scenario.alert, world.scenario._about, "group"))
    result = world.result()

    assert sorted(seen) == sorted(milestone.milestone.name for milestone in world.scenario_run.results)
    assert isinstance(result.outcome, GrayFaultOutcome)
    assert result.outcome.alert_s == pytest.approx(3.1, abs=0.11)
    assert result.outcome.page_s == pytest.approx(13.0, abs=0.11)
    assert result.outcome.bandwidth_before == pytest.approx(50e6)
    assert result.outcome.bandwidth_during == pytest.approx(25e6, rel=0.01)
    assert result.outcome.bandwidth_after == pytest.approx(50e6)
    assert result.success


@pytest.mark.parametrize(
    "other",
    [
        PageSeen("FabricNicSlow", (("device", "rail1"), ("instance", "h1")), "other"),
        PageSeen(ALERT, (("device", "rail0"), ("instance", "h0")), "group"),
    ],
    ids=str,
)
def test_another_page_fails_the_demo(other: PageSeen) -> None:
    """Of another alert, or of the same one about another NIC."""
    world = World(GrayLoss)
    play(world, RIGHT, other)
    result = world.result()

    [check] = [check for check in result.checks if check.name == "other_pages"]
    assert check.judgement is Judgement.BROKEN
    assert not result.success
    assert any("other pages" in line for line in result.failures())


def test_without_the_page_it_is_not_seen() -> None:
    """An alert in Prometheus and Alertmanager is no page."""
    world = World(GrayLoss)
    assert "paged" not in play(world)


def test_a_nic_that_was_disconnected_has_not_stayed_up() -> None:
    """Not even for a moment: then it was no gray failure."""
    world = World(GrayLoss)
    assert "link_stayed_up" not in play(world, RIGHT, disconnected=True)
