"""What was decided and is not done yet, when people change their mind: pause, another policy, a host that is gone."""

from typing import Any

import pytest
from tests.unit.remediation.rebalance.test_rebalancer import collided
from tests.unit.remediation.simulation.fabric_model import AUTO
from tests.unit.remediation.state.test_drains import TEXT, Hosts
from tests.unit.remediation.world import RULES_AUTO, World, alert, config

from fabricpulse.core.config import parse_config
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.explain import explain
from fabricpulse.remediation.receiver.health import problems
from fabricpulse.remediation.receiver.state.in_flight import valid_until, withheld
from fabricpulse.remediation.receiver.state.model import Pause, Target
from fabricpulse.remediation.receiver.state.transaction import with_changes

RULES = "rules: [{{alert: FabricNicFlapping, mode: {mode}}}]\nhold: {{initial_s: 10, jitter: 0}}\n"


def held_back(world: World) -> list[str]:
    """Operations that no agent is handed now."""
    actions = world.state.actions.values()
    return [a.op_id for a in actions if withheld(world.reconciler.config, world.state, a, world.now)]


def test_a_failover_without_a_result_waits_for_the_end_of_a_pause():
    """The kill switch holds for what was decided a moment ago as well, also where the agent's answer was lost: the NIC
    stays as it is."""
    world = World()
    world.deliver(alert())
    (action,) = world.pending()
    assert held_back(world) == []
    world.pause("switch upgrade", "ada")
    assert held_back(world) == [action.op_id]
    world.resume("ada")
    assert held_back(world) == []
    world.sent([action.op_id])
    world.pause("one more", "ada")
    assert held_back(world) == [action.op_id]
    world.result(action, processes=1)
    assert (held_back(world), world.phase()) == ([], "avoided"), "the agent had it"


@pytest.mark.parametrize("sent", [False, True])
def test_a_failover_is_not_handed_out_once_its_alert_has_ended(sent):
    """It may be again when the alert comes back while the decision is young; then it is over."""
    world = World()
    world.deliver(alert())
    (action,) = world.pending()
    if sent:
        world.sent([action.op_id], lost=True)
    world.deliver(alert(firing=False))
    assert held_back(world) == [action.op_id]
    world.deliver(alert(starts_at=world.now))
    assert held_back(world) == []
    assert valid_until(world.config, action) == action.created_at + 120
    world.now = action.created_at + 119.5
    assert held_back(world) == [action.op_id], "it would be void before the agent has it"


def test_a_failover_of_a_short_life_is_handed_out():
    """For half of it at least."""
    world = World(config(f"{RULES_AUTO}guards: {{intent_ttl_s: 0.5, settle_s: 0}}\n"))
    world.deliver(alert())
    assert (len(world.pending()), held_back(world)) == (1, [])


def test_only_a_failover_without_a_result_has_an_end():
    """What is carried out is kept up, and a return undoes."""
    world = World()
    world.deliver(alert())
    (avoid,) = world.settle()
    world.deliver(alert(firing=False))
    world.tick(15)
    (back,) = world.pending()
    done = world.state.actions[avoid.op_id]
    assert [valid_until(world.config, action) for action in (done, back)] == [float("inf")] * 2


def test_a_failover_that_no_agent_has_fetched_is_kept_back_when_its_rule_acts_no_more():
    """From auto to dry_run, or without the rule: nothing of it is handed out, and it expires."""
    for mode in ("dry_run", "observe"):
        world = World()
        world.deliver(alert())
        (action,) = world.pending()
        world.reconciler.set_policy(config(RULES.format(mode=mode)), {})
        assert held_back(world) == [action.op_id]
        world.tick(130)
        assert world.state.actions[action.op_id].outcome == "expired"
    world.reconciler.set_policy(config(RULES.format(mode="auto")), {})


@pytest.mark.parametrize("paused", [False, True])
def test_a_failover_that_never_arrived_is_not_carried_out_hours_later(paused):
    """Its answer was lost on the wire; the alert ends meanwhile. When the agent is back it is offered the way back."""
    world = World()
    world.deliver(alert())
    (action,) = world.pending()
    world.sent([action.op_id], lost=True)
    world.deliver(alert(firing=False))
    world.now += 61
    world.report(["h1"])
    world.reconcile()
    assert world.state.actions[action.op_id].outcome == "unknown"
    assert held_back(world) == [action.op_id]
    if paused:
        world.pause("stop", "ada")
    world.now += 3 * 3600
    world.report(["h1"])
    world.reconcile()
    assert (held_back(world), world.phase()) == ([action.op_id], "avoiding")
    world.tick()
    (back,) = world.pending()
    assert (back.action, held_back(world)) == ("nic.restore", [action.op_id])
    world.settle()
    assert world.phase() == "in_service"


def test_a_failover_that_never_arrived_is_decided_anew_while_its_alert_fires():
    """After the wait that follows any that came to nothing, and under the guards of that moment."""
    world = World(config(f"{RULES_AUTO}guards: {{cooldown_s: 0}}\n"))
    world.deliver(alert())
    (action,) = world.pending()
    world.sent([action.op_id], lost=True)
    world.tick(70)
    assert [a.action for a in world.settle()] == ["nic.restore"]
    assert (world.phase(), world.blocked()) == ("in_service", "backoff")
    world.tick(60)
    (again,) = world.settle()
    assert (again.action, again.op_id != action.op_id, world.phase()) == ("nic.avoid", True, "avoided")


def test_a_failover_whose_result_never_comes_is_undone_after_its_hold():
    """Its agent has it and says nothing of it: it counted as out for ever, and no problem was shown."""
    world = World()
    world.deliver(alert())
    (action,) = world.pending()
    world.sent([action.op_id])
    world.tick(70)
    assert (world.phase(), world.state.actions[action.op_id].outcome) == ("avoiding", "unknown")
    target = Target("h0", "rail0")
    assert "has not reported its result" in explain(world.config, {}, world.state, target, world.now)["next"]
    assert [p.code for p in problems(world.config, world.state, world.now, "")] == ["result_unknown"]
    world.deliver(alert(firing=False))
    world.now += 600
    world.report(["h1"])
    world.reconcile()
    assert world.phase() == "avoiding", "nobody is there to observe it"
    assert "`forget h0`" in explain(world.config, {}, world.state, target, world.now)["next"]
    world.tick(8)
    assert world.pending() == [], "the hold is 10 s"
    world.tick(8)
    (back,) = world.settle()
    assert (back.action, world.phase()) == ("nic.restore", "in_service")
    assert problems(world.config, world.state, world.now, "") == []


def test_what_is_undone_is_handed_out_whatever_the_rule_is():
    """A return that an operator has ordered waits for nobody."""
    world = World()
    world.deliver(alert())
    world.settle()
    world.pause("people at work", "ada")
    world.release(Target("h0", "rail0"), "ada")
    assert len(world.pending()) == 1
    assert held_back(world) == []


def test_lanes_stay_as_they_are_while_paused():
    """Orders that no agent has fetched yet are not handed out; after the pause the plan goes on."""
    fabric = collided(delay_s=30.0)
    while "rebalance" not in fabric.events():
        fabric.run(1)
    (plan,) = fabric.plans()
    host = plan.moves[0].host
    rebalancer = fabric.reconciler.rebalancer
    assert plan.phase == "moving"
    assert rebalancer.orders(fabric.state, host, fabric.now)
    fabric.state = with_changes(fabric.state, pause=Pause(reason="r", owner="ada", since=fabric.now))
    assert rebalancer.orders(fabric.state, host, fabric.now) == []
    fabric.state = with_changes(fabric.state, pause=None)
    assert rebalancer.orders(fabric.state, host, fabric.now)


@pytest.mark.parametrize("mode", ["observe", "dry_run"])
def test_a_host_is_not_drained_when_its_rule_acts_no_more(mode):
    """Within the grace, and one that waits for approval."""
    for first in ("auto", "approve"):
        world = Hosts(mode=f", mode: {first}")
        world.fire()
        world.tick(6)
        world.reconciler.set_policy(config(TEXT.format(mode=f", mode: {mode}", more="")), {})
        if first == "approve":
            world.approve(world.drain().hash)
        world.tick(70)
        first_drain, *announced = world.state.drains.values()
        assert (first_drain.phase, world.orders()) == ("dropped", [])
        assert {drain.phase for drain in announced} <= {"dry_run"}


def test_a_drain_that_people_have_approved_goes_on_when_its_rule_is_auto():
    """The other way round nothing is dropped."""
    world = Hosts(mode=", mode: approve")
    world.fire()
    world.tick(6)
    assert world.approve(world.drain().hash)
    world.reconciler.set_policy(config(TEXT.format(mode=", mode: auto", more="")), {})
    world.tick(70)
    assert world.drain().phase == "draining"


def with_mode(fabric: Any, mode: str) -> None:
    policy = parse_config(AUTO.replace("auto", mode), ReceiverConfig, "test")
    fabric.reconciler.set_policy(policy, {})


def test_a_plan_for_lanes_is_dropped_when_its_mode_acts_no_more():
    """An approval that comes after the change moves nothing."""
    fabric = collided(text=AUTO.replace("auto", "approve"))
    while not fabric.plans():
        fabric.run(1)
    (plan,) = fabric.plans()
    with_mode(fabric, "dry_run")
    fabric._change(lambda t: fabric.reconciler.operator.approve(t, plan.hash, "ada", fabric.now))
    fabric.run(5)
    assert fabric.plans()[0].phase == "dropped"
    assert fabric.operations == []


def test_lanes_go_back_when_their_mode_acts_no_more():
    """A plan that is being tried is undone, also what agents have not answered about."""
    fabric = collided()
    ports = [lane.entropy for lane in fabric.lanes]
    while "rebalance" not in fabric.events():
        fabric.run(1)
    with_mode(fabric, "observe")
    fabric.run(60)
    assert fabric.plans()[0].phase == "withdrawn"
    assert [lane.entropy for lane in fabric.lanes] == ports


def test_an_alert_whose_rule_is_gone_still_ends():
    """Without Alertmanagers to ask, nothing else would ever end it."""
    world = World()
    world.deliver(alert())
    world.settle()
    world.reconciler.set_policy(config("rules: []\n"), {})
    world.deliver(alert(firing=False))
    assert [e.status for e in world.state.episodes.values()] == ["resolved"]
    world.tick(60)
    assert world.blocked() == "not_acting", "an operator releases it"


def test_a_nic_that_is_ill_again_needs_another_approval():
    """What was approved was the return of a NIC that had been healthy."""
    world = World(config(RULES.format(mode="approve") + "guards: {cooldown_s: 0}\n"))
    world.deliver(alert())
    plan = world.state.targets["h0/rail0"].plan
    assert plan is not None
    world.run(lambda t: world.reconciler.operator.approve(t, plan.hash, "ada", world.now))
    world.reconcile()
    world.settle()
    world.deliver(alert(firing=False))
    world.tick(15)
    first = world.state.targets["h0/rail0"].plan
    assert first is not None
    world.pause("not now", "ada")
    world.run(lambda t: world.reconciler.operator.approve(t, first.hash, "ada", world.now))
    world.now += 1
    world.report(["h0"], health={"rail0": "unhealthy"})
    world.resume("ada")
    world.tick(20)
    again = world.state.targets["h0/rail0"].plan
    assert world.pending() == []
    assert again is not None
    assert not again.approved_at


def test_a_host_that_is_forgotten_leaves_room_for_others():
    """A drained host that was retired counted as out for ever: with max_hosts 1 no other one could be left."""
    world = Hosts()
    world.fire()
    world.tick(6)
    world.tick(61)
    world.answer()
    assert world.drain().phase == "drained"
    world.run(lambda t: world.reconciler.operator.forget(t, "h0", "ada", world.now))
    assert world.drain().phase == "dropped"
    world.fire("h1")
    world.tick(6)
    assert world.drain("h1").phase == "leaving"
