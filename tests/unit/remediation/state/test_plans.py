"""Rules with `mode: approve`: nothing happens unless an operator approved exactly that."""

import pytest
from tests.unit.remediation.world import World, alert, config

from fabricpulse.remediation.receiver.explain import explain
from fabricpulse.remediation.receiver.state.plans import APPROVAL_VALID_S

RULES = "rules: [{alert: FabricNicFlapping, mode: approve}]\nhold: {initial_s: 10, jitter: 0}\n"


@pytest.fixture
def world():
    """A world in which a NIC fires."""
    made = World(config(RULES))
    made.deliver(alert())
    return made


def plan(world, key="h0/rail0"):
    found = world.state.targets[key].plan
    assert found is not None
    return found


def approve(world, name):
    done = world.run(lambda t: world.reconciler.operator.approve(t, name, "ada", world.now))
    world.reconcile()
    return done


def test_nothing_happens_until_it_is_approved(world):
    """The plan is journaled once; after the approval the action names who gave it; the return needs one of its own."""
    world.tick(60)
    assert world.state.actions == {}
    assert world.events().count("awaiting_approval") == 1
    assert approve(world, plan(world).hash)
    (action,) = world.settle()
    assert action.reason == "FabricNicFlapping is firing, approved by ada"
    assert world.state.targets["h0/rail0"].plan is None
    world.deliver(alert(firing=False))
    world.tick(20)
    assert world.phase() == "avoided"
    assert plan(world).action == "nic.restore"
    assert approve(world, plan(world).hash)
    (action,) = world.settle()
    assert (action.action, world.phase()) == ("nic.restore", "in_service")
    assert action.reason.endswith("approved by ada")


@pytest.mark.parametrize("again", ["fires", "unhealthy"])
def test_an_approval_of_a_return_is_for_one_hold(world, again):
    """It fired again, or was unhealthy, and was well for long enough once more: that is another return."""
    approve(world, plan(world).hash)
    world.settle()
    world.deliver(alert(firing=False))
    world.tick(20)
    first = plan(world).hash
    world.now += 1
    if again == "fires":
        world.deliver(alert(starts_at=world.now))
        world.deliver(alert(starts_at=world.now, firing=False))
    else:
        world.report(health=dict.fromkeys(world.devices, "unhealthy"))
    assert world.state.targets["h0/rail0"].plan is None
    world.tick(20)
    assert plan(world).action == "nic.restore"
    assert not approve(world, first)
    assert world.phase() == "avoided"


def test_an_approval_is_for_one_plan(world):
    """Another name, a plan of another NIC, of another episode or twice: nothing."""
    first = plan(world).hash
    assert not approve(world, "0" * 16)
    world.deliver(alert(firing=False))
    assert world.state.targets.get("h0/rail0") is None or world.state.targets["h0/rail0"].plan is None
    assert not approve(world, first)
    world.now += 60
    world.report()
    world.deliver(alert(starts_at=world.now))
    assert plan(world).hash != first
    assert not approve(world, first)
    world.deliver(alert("h1"))
    assert plan(world, "h1/rail0").hash != plan(world).hash
    assert world.state.actions == {}
    assert approve(world, plan(world).hash)
    assert not approve(world, first)


def test_guards_hold_for_what_is_approved(world):
    """Approved while paused, it waits; and what could not be done within the time is not done later."""
    name = plan(world).hash
    world.pause("upgrade", "bob")
    assert approve(world, name)
    world.tick(30)
    assert (world.blocked(), world.state.actions) == ("paused", {})
    world.tick(APPROVAL_VALID_S)
    world.resume("bob")
    world.tick(1)
    assert world.state.actions == {}
    assert "approval_expired" in world.events()
    assert not plan(world).approved_at
    assert approve(world, plan(world).hash)
    assert [a.action for a in world.pending()] == ["nic.avoid"]


def test_it_fires_again_while_its_return_waits(world):
    """The plan to return is gone."""
    approve(world, plan(world).hash)
    world.settle()
    world.deliver(alert(firing=False))
    world.tick(20)
    name = plan(world).hash
    world.deliver(alert(starts_at=world.now))
    assert world.state.targets["h0/rail0"].plan is None
    assert not approve(world, name)


def test_it_is_explained(world):
    """With the command that approves it."""
    target = world.state.targets["h0/rail0"].target
    found = explain(world.config, {}, world.state, target, world.now)["next"]
    assert found == f"nic.avoid waits for approval: fabricpulse remediation approve {plan(world).hash}"


@pytest.mark.parametrize("mode", ["observe", "dry_run"])
def test_a_plan_is_dropped_when_its_rule_acts_no_more(world, mode):
    """Of a failover and of a return: status showed it on, approve said "approved", and it was carried out once the rule
    was in the mode approve again."""
    name = plan(world).hash
    world.reconciler.set_policy(config(RULES.replace("approve", mode)), {})
    world.tick(1)
    assert world.state.targets["h0/rail0"].plan is None
    assert not approve(world, name)
    world.reconciler.set_policy(config(RULES), {})
    world.tick(1)
    assert all(action.dry_run for action in world.state.actions.values())
    assert approve(world, plan(world).hash)
    world.settle()
    world.deliver(alert(firing=False))
    world.tick(20)
    name = plan(world).hash
    world.reconciler.set_policy(config(RULES.replace("approve", mode)), {})
    world.tick(1)
    assert (world.state.targets["h0/rail0"].plan, world.blocked()) == (None, "not_acting")
    assert not approve(world, name)
