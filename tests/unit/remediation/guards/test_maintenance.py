"""Maintenance windows: which NICs, when, and that nothing is decided meanwhile."""

import pytest
from tests.unit.remediation.world import START, World, alert, config

from fabricpulse.remediation.receiver.config import MaintenanceConfig
from fabricpulse.remediation.receiver.guards.maintenance import in_maintenance
from fabricpulse.remediation.receiver.state.model import Target
from fabricpulse.remediation.receiver.times import moment
from fabricpulse.remediation.receiver.wall_clock import follow_wall

ONCE = MaintenanceConfig(
    hosts=("gpu-0*",), devices=("rail0",), begin="2026-11-22T02:00:00Z", end="2026-11-22T04:00:00+01:00"
)
# Sunday night, past midnight into Monday.
WEEKLY = MaintenanceConfig(days=("sun",), at="23:00", for_s=7200)


@pytest.mark.parametrize(
    ("window", "when", "host", "expected"),
    [
        (ONCE, "2026-11-22T01:59:59", "gpu-01", False),
        (ONCE, "2026-11-22T02:00:00", "gpu-01", True),
        (ONCE, "2026-11-22T02:59:59", "gpu-01", True),
        (ONCE, "2026-11-22T03:00:00", "gpu-01", False),
        (ONCE, "2026-11-22T02:30:00", "gpu-11", False),
        (WEEKLY, "2026-11-22T22:59:59", "any", False),
        (WEEKLY, "2026-11-22T23:00:00", "any", True),
        (WEEKLY, "2026-11-23T00:59:59", "any", True),
        (WEEKLY, "2026-11-23T01:00:00", "any", False),
        (WEEKLY, "2026-11-23T23:30:00", "any", False),
        (WEEKLY, "2026-11-29T23:30:00", "any", True),
    ],
)
def test_when_and_where(window, when, host, expected):
    """Begin included, end not; offsets and weekdays in UTC."""
    assert in_maintenance((window,), Target(host, "rail0"), moment(when)) is expected
    assert not in_maintenance((), Target(host, "rail0"), moment(when))


def test_a_week_long_window_is_always_open():
    """Also on the days after it has begun."""
    window = MaintenanceConfig(days=("wed",), at="12:00", for_s=604_800)
    assert all(in_maintenance((window,), Target("h", "d"), START + 3600 * hour) for hour in range(200))


def test_nothing_is_decided_meanwhile_and_what_still_fires_is_acted_on_afterwards():
    """Neither out nor back."""
    text = (
        "rules: [{alert: FabricNicFlapping, mode: auto}]\nhold: {initial_s: 10, jitter: 0}\n"
        "maintenance: [{hosts: [h0], begin: '2023-11-14T22:13:00', end: '2023-11-14T22:14:00'},"
        " {hosts: [h0], begin: '2023-11-14T22:15:00', end: '2023-11-14T22:20:00'}]"
    )
    world = World(config(text))  # begins at 22:13:20
    world.deliver(alert(), alert("h1"))
    assert (world.blocked(), world.phase("h1/rail0")) == ("maintenance", "avoiding")
    world.settle()
    world.tick(45)
    assert world.phase() == "avoiding"
    world.settle()
    world.now = moment("2023-11-14T22:15:01")
    world.deliver(alert(firing=False), alert("h1", firing=False))
    world.tick(60)
    assert (world.phase(), world.blocked()) == ("avoided", "maintenance")
    world.now = moment("2023-11-14T22:20:00")
    world.tick(90)
    assert world.phase() == "restoring"


def test_windows_are_of_peoples_time():
    """A receiver that started with a wrong clock does not follow when that is set; windows do: they were off by it."""
    text = (
        "rules: [{alert: FabricNicFlapping, mode: auto}]\n"
        "maintenance: [{begin: '2023-11-15T02:00:00', end: '2023-11-15T03:00:00'}]"
    )
    world = World(config(text))
    ahead_s = moment("2023-11-15T02:30:00") - world.now
    world.run(lambda t: follow_wall(t, ahead_s))
    world.deliver(alert())
    assert world.blocked() == "maintenance"
    world.run(lambda t: follow_wall(t, ahead_s + 0.5))
    assert world.state.wall_ahead_s == ahead_s, "what drifts is not written down each time"
    world.run(lambda t: follow_wall(t, 0.0))
    world.reconcile()
    assert world.phase() == "avoiding"
