"""An alert on a leaf or a rail: remediation takes out none of its NICs."""

from dataclasses import replace

import pytest
from tests.unit.remediation.world import START, World, alert, config

from fabricpulse.core.errors import ConfigError
from fabricpulse.remediation.receiver.explain import explain_alert
from fabricpulse.remediation.receiver.payload import Alert

RULES = "rules: [{alert: FabricNicFlapping, mode: auto}]\nguards: {settle_s: 5}\n"


def fleet() -> World:
    """A hundred hosts that have reported for long."""
    world = World(config(RULES), hosts=100)
    world.now += 601
    world.report()
    return world


def cause(name: str = "FabricFaultLocated", firing: bool = True, **labels: str) -> Alert:
    """An alert on what many NICs share."""
    return Alert(firing, f"{name}/{labels}", START, {"alertname": name, **labels})


def behind(leaf: str, host: str = "h0") -> Alert:
    """The alert of a NIC behind a leaf."""
    plain = alert(host)
    return replace(plain, labels=plain.labels | {"leaf": leaf})


@pytest.mark.parametrize("first", ["leaf", "nic"])
def test_the_alert_of_a_leaf_is_enough(first):
    """Prometheus tells of a leaf's NICs one evaluation after the other: two of them were taken out. Whichever of the
    alerts comes first, within the settle window the leaf's stops those of its NICs, and no others."""
    world = fleet()
    alerts = [cause(leaf="l7", kind="switch"), behind("l7")]
    for one in alerts if first == "leaf" else reversed(alerts):
        world.deliver(one)
        world.tick(4)
    world.deliver(behind("l8", "h1"))
    world.tick(60)
    assert [a.target.host for a in world.pending()] == ["h1"]
    assert world.blocked() == "shared_cause"
    assert set(world.state.targets) == {"h0/rail0", "h1/rail0"}
    # After the leaf's end its NICs count as single ones again, though not at once.
    world.deliver(cause(leaf="l7", kind="switch", firing=False))
    world.tick(890)
    assert world.blocked() == "shared_cause"
    world.tick(20)
    assert "h0" in [a.target.host for a in world.state.actions.values()]


def test_the_alert_of_a_rail_is_enough_and_that_of_a_link_says_nothing_of_nics():
    """FabricNetworkDown names the rail; a located fault without `leaf` is not where NICs end."""
    world = fleet()
    world.deliver(cause("FabricNetworkDown", network="rail0"), cause(kind="link", network="rail1"))
    world.deliver(alert("h0", "rail0"), alert("h1", "rail1"))
    world.tick(60)
    assert [a.target.key for a in world.pending()] == ["h1/rail1"]
    assert world.blocked() == "shared_cause"


def test_a_cause_may_notify_and_do_nothing_else():
    """An alert cannot be about a NIC, and about none; it may be notified."""
    with pytest.raises(ConfigError, match="FabricNetworkDown is in cause_alerts, so it may only notify"):
        config("rules: [{alert: FabricNetworkDown}]")
    rules = "{alert: FabricNicFlapping, mode: auto}, {alert: FabricFaultLocated, action: notify}"
    world = World(config(f"rules: [{rules}]"))
    world.deliver(cause(leaf="l7"))
    assert world.lines[-1].event == "notify"
    world.deliver(behind("l7"))
    assert (world.pending(), world.blocked()) == ([], "shared_cause")


def test_what_is_said_of_such_an_alert():
    """`explain` names what it stops; nothing in the journal takes it for a NIC."""
    world = fleet()
    said = explain_alert(world.config, {}, world.state, cause(leaf="l7"), world.now)
    assert said["next"] == "no NIC with leaf=l7 is taken out while it fires"
    world.deliver(cause(leaf="l7"))
    world.deliver(cause(leaf="l7", firing=False))
    episodes = [line for line in world.lines if line.event.startswith("episode_")]
    assert [(line.subject, line.event) for line in episodes] == [
        ("fleet", "episode_firing"),
        ("fleet", "episode_resolved"),
    ]
