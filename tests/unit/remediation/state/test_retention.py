"""Alerts that have ended: what is remembered of them, and for how long."""

from tests.unit.remediation.world import World, alert, config

from fabricpulse.remediation.receiver.state import retention

RULE = "{alert: FabricNicFlapping, mode: auto}"
ASKED = "alertmanagers: ['http://am']\nwatchdog: ''\n"


def test_an_ended_alert_is_remembered_for_a_day_however_many_end():
    """After five hundred others a stale repeat of it was taken for news."""
    world = World(config(f"rules: [{RULE}]\n{ASKED}"), hosts=1)
    world.poll([])
    others = [("h9", f"rail{i}") for i in range(600)]
    world.deliver(alert(), *(alert(*other) for other in others))
    world.deliver(alert(firing=False))
    world.now += 1
    world.deliver(*(alert(*other, firing=False) for other in others))
    world.now += 3600
    world.poll([])
    assert world.deliver(alert())
    world.now += 86_401
    world.poll([])
    assert world.state.episodes == {}


def test_ended_alerts_leave_room_for_those_that_fire(monkeypatch):
    """The newest of them stay."""
    monkeypatch.setattr(retention, "_KEEP_EPISODES", 2)
    world = World(hosts=1)
    for i in range(4):
        world.now += 31
        world.deliver(alert("h9", f"rail{i}"))
        world.deliver(alert("h9", f"rail{i}", firing=False))
    world.now += 31
    world.deliver(alert("h9", "rail4"))
    assert [e.target.device for e in world.state.episodes.values()] == ["rail2", "rail3", "rail4"]


def test_only_the_end_of_what_vanished_spares_the_probes():
    """One alert vanished without an end, another one about the NIC has ended: nobody has seen the first one's."""
    world = World(config(f"rules: [{RULE}, {{alert: Other, mode: auto}}]\n{ASKED}"))
    other = alert(name="Other")
    world.poll([alert(), other])
    world.settle()
    world.now += 400
    world.poll([other])
    world.deliver(alert(name="Other", firing=False))
    assert world.state.targets["h0/rail0"].needs_probe
    world.deliver(alert(starts_at=world.now))
    world.deliver(alert(starts_at=world.now, firing=False))
    assert not world.state.targets["h0/rail0"].needs_probe
