"""A clock that was far ahead once does not freeze anything for ever, on neither side."""

import msgspec
import pytest
from tests.unit.remediation.world import RULES_AUTO, World, alert, config

from fabricpulse.remediation.receiver.state import rebase
from fabricpulse.remediation.receiver.state.model import Action, Drain, Episode, Rebalance, TargetState
from fabricpulse.remediation.receiver.wall_clock import MonotonicWallClock

DAY = 86_400.0


def test_the_clock_does_not_go_back_behind_the_journal():
    """A wall clock that was set back by a minute between two starts: time goes on from the journal."""
    wall = 1_700_000_000.0
    assert MonotonicWallClock(wall + 60, wall)() == pytest.approx(wall + 60, abs=1)
    assert MonotonicWallClock(wall - 60, wall)() == pytest.approx(wall, abs=1)


def test_a_journal_from_far_ahead_is_not_followed():
    """400 days ahead once: the receiver stayed there. The wall clock counts, and it is said."""
    wall = 1_700_000_000.0
    clock = MonotonicWallClock(wall + 400 * DAY, wall)
    assert clock() == pytest.approx(wall, abs=1)
    assert clock.journal_ahead_s == 400 * DAY


def test_times_from_the_future_are_rebased():
    """Hold, cooldown, rate limit and pause set while the clock was ahead do not last for 400 days."""
    world = World(config(RULES_AUTO))
    right = world.now
    world.now += 400 * DAY
    world.report()
    world.deliver(alert())
    world.settle()
    world.pause("upgrade", "ada", 60)
    world.now = right
    world.restart()
    assert "clock_rebased" in world.events()
    world.tick(61)
    assert world.state.pause is None
    world.deliver(alert(firing=False))
    world.tick(0)
    world.tick(11)
    (action,) = world.pending()
    assert action.action == "nic.restore"
    assert all(target.changed_at <= world.now for target in world.state.targets.values())


@pytest.mark.parametrize(
    ("collection", "kind"),
    [
        ("targets", TargetState),
        ("episodes", Episode),
        ("actions", Action),
        ("rebalances", Rebalance),
        ("drains", Drain),
    ],
)
def test_each_time_of_an_entry_is_rebased(collection, kind):
    """Hand-offs from the future used up `hosts_per_day` for 400 days. The name of a field says that it is a time."""
    fields = {field.name for field in msgspec.structs.fields(kind) if field.type is float}
    times = {name for name in fields if name.endswith(("_at", "_since", "_seen"))}
    assert set(rebase._TIMES[collection]) == times


def test_a_resume_from_the_future_is_rebased():
    """What came to nothing since then counts: rules could not stop themselves for 400 days."""
    world = World(config(RULES_AUTO))
    right = world.now
    world.now += 400 * DAY
    world.resume("ada")
    world.now = right
    world.restart()
    assert world.state.resumed_at == right
