"""Alerts that have ended: what is remembered of them, and for how long."""

from tests.unit.remediation.world import World, alert, config

from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state import retention
from fabricpulse.remediation.receiver.state.model import Held

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


def adopted_that_needs_a_probe() -> World:
    """A NIC that was adopted from its agent, an alert about it that vanished, and another one that fires."""
    world = World(config(f"rules: [{RULE}, {{alert: Other, mode: auto}}]\n{ASKED}"), hosts=1)
    world.held["h0/rail0"] = Held("avoid", int(world.now * 1000))
    world.restart()
    world.report()
    world.poll([alert(), alert(name="Other")])
    world.now += 400
    world.report()
    world.poll([alert(name="Other")])
    assert world.state.targets["h0/rail0"].needs_probe
    return world


def test_what_vanished_is_remembered_until_a_probe_has_succeeded(monkeypatch):
    """After a day, or after many others, the end of another alert put the NIC back without a probe."""
    monkeypatch.setattr(retention, "_KEEP_EPISODES", 0)
    world = adopted_that_needs_a_probe()
    world.now += 90_000
    world.report()
    world.poll([alert(name="Other")])
    world.deliver(alert(name="Other", firing=False))
    assert world.state.targets["h0/rail0"].needs_probe
    world.run(lambda t: world.reconciler.operator.forget(t, "h0", "ada", world.now))
    world.now += 31
    world.reconcile()
    assert world.state.episodes == {}


def test_a_start_forgets_no_host_that_has_not_reported_yet():
    """Agents are not kept: the first cycle dropped what was adopted a day ago, and the need of a probe with it."""
    world = adopted_that_needs_a_probe()
    for _ in range(2):
        world.now += 50_000
        world.report()
        world.poll([alert(name="Other")])
    world.reconciler = Reconciler(world.config)
    world.restart()
    world.reconcile()
    assert world.state.agents == {}
    world.deliver(alert(name="Other", firing=False))
    assert world.state.targets["h0/rail0"].needs_probe
    world.now += 86_431
    world.reconcile()
    assert world.state.targets == {}
