"""Rules with `action: notify`: an alert is passed on to the destinations, and nothing else follows."""

from dataclasses import replace

import pytest
from tests.unit.remediation.world import World, alert, config

from fabricpulse.core.errors import ConfigError
from fabricpulse.remediation.receiver.config import NotifyConfig
from fabricpulse.remediation.receiver.explain import explain_alert
from fabricpulse.remediation.receiver.policy import advice, policy_of

RULES = "rules: [{alert: FabricNicFlapping, mode: auto}, {alert: FabricNicSlow, action: notify}]\n"


def notified(world: World) -> list[tuple[str, str]]:
    return [(line.subject, line.detail["status"]) for line in world.lines if line.event == "notify"]


def test_notified_once_at_the_beginning_and_once_at_the_end():
    """Repeats add nothing; by default every destination of `notify` takes the line."""
    world = World(config(RULES))
    slow = alert(name="FabricNicSlow")
    for _ in range(3):
        world.deliver(slow)
    world.deliver(replace(slow, firing=False))
    world.deliver(replace(slow, firing=False))
    assert notified(world) == [("h0/rail0", "firing"), ("h0/rail0", "resolved")]
    assert world.lines[-1].detail["labels"]["device"] == "rail0"
    assert "notify" in NotifyConfig(name="chat", url="http://chat/").events


def test_an_alert_without_a_nic_is_notified():
    """A switch has no host: the line is about the fleet, and its labels are cut."""
    world = World(config(RULES))
    switch = replace(alert(name="FabricNicSlow"), labels={"alertname": "FabricNicSlow", "faulty": "s" * 4096})
    world.deliver(switch)
    assert notified(world) == [("fleet", "firing")]
    assert world.lines[-1].detail["labels"]["faulty"] == "s" * 200


def test_it_changes_nothing():
    """Not acted on, no part of a group of many hosts, and no reason for a NIC to stay out."""
    world = World(config(RULES + "hold: {initial_s: 10, jitter: 0}\nguards: {settle_s: 0}"), hosts=9)
    world.deliver(*(alert(host, name="FabricNicSlow") for host in world.hosts))
    world.tick(60)
    assert (world.pending(), world.state.targets) == ([], {})
    world.deliver(alert())
    assert [a.action for a in world.settle()] == ["nic.avoid"]
    world.settle()
    world.deliver(alert(firing=False))
    world.tick(15)
    assert [a.action for a in world.pending()] == ["nic.restore"]


def test_one_that_vanished_is_notified():
    """No Alertmanager has it any more: an end, though not a resolved one."""
    world = World(config(RULES + "alertmanagers: [http://a]\nexpire_s: 60"))
    watchdog = alert(name="FabricWatchdog")
    world.poll([alert(name="FabricNicSlow"), watchdog])
    world.now += 61
    world.poll([watchdog])
    assert notified(world) == [("h0/rail0", "firing"), ("fleet", "expired")]


def test_observe_writes_down_and_tells_nobody():
    """As with any rule."""
    world = World(config("rules: [{alert: FabricNicSlow, action: notify, mode: observe}]"))
    world.deliver(alert(name="FabricNicSlow"))
    assert notified(world) == []
    assert "episode_firing" in world.events()


@pytest.mark.parametrize("mode", ["dry_run", "approve"])
def test_modes_without_a_meaning_are_refused(mode):
    """There is nothing to approve."""
    with pytest.raises(ConfigError, match="no meaning for the action notify"):
        config(f"rules: [{{alert: FabricNicSlow, action: notify, mode: {mode}}}]")


def test_it_is_no_rule_that_acts():
    """The advice on open access is for rules that act."""
    found = advice(policy_of(config("rules: [{alert: FabricNicSlow, action: notify}]")))
    assert found == ["no rule acts: every mode is observe or dry_run"]


def test_explain_says_so():
    """What the alert would come to."""
    world = World(config(RULES))
    said = explain_alert(world.config, {}, world.state, alert(name="FabricNicSlow"), world.now)
    assert said["next"] == "the destinations of `notify` get an event"
