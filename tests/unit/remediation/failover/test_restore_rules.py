"""Rules with `action: nic.restore`: an alert that says that a NIC is well may end its hold, and nothing else."""

from dataclasses import replace

import pytest
from tests.unit.remediation.world import World, alert, config

from fabricpulse.remediation.receiver.explain import explain
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.policy import advice, policy_of
from fabricpulse.remediation.receiver.replay import Replay
from fabricpulse.remediation.receiver.state.model import Target

TESTED = "NicTested"
SOON = "guards: {cooldown_s: 0, settle_s: 0}\n"


def rules(mode: str = "auto", avoid: str = "auto", more: str = "") -> str:
    taken = f"{{alert: FabricNicFlapping, mode: {avoid}}}"
    back = f"{{alert: {TESTED}, action: nic.restore, mode: {mode}}}"
    return f"rules: [{taken}, {back}]\nhold: {{initial_s: 3600, jitter: 0, cap_s: 14400}}\n{more or SOON}"


def well(firing: bool = True, host: str = "h0") -> Alert:
    return alert(host, name=TESTED, firing=firing)


def out(text: str) -> World:
    """h0/rail0 is out, and its alert has ended."""
    world = World(config(text))
    world.deliver(alert())
    world.settle()
    world.deliver(alert(firing=False))
    assert world.phase() == "avoided"
    return world


def restores(world: World) -> list[str]:
    return [line.detail["reason"] for line in world.lines if line.event == "nic.restore"]


def test_it_ends_the_hold_after_a_minute_of_health():
    """Not before the NIC was observed healthy for a minute; without the alert the hold is an hour."""
    world = out(rules())
    world.deliver(well())
    world.tick(50)
    assert world.phase() == "avoided"
    world.tick(20)
    assert restores(world) == ["healthy for 60 s, NicTested is firing"]
    world.settle()
    assert world.phase() == "in_service"
    waiting = out(rules())
    waiting.tick(600)
    assert waiting.phase() == "avoided"


def test_it_comes_back_when_it_could_leave_again():
    """Within the cooldown a NIC that flaps as it returns would stay in: it does not return before."""
    world = out(rules(more="guards: {cooldown_s: 300, settle_s: 0}\n"))
    world.deliver(well())
    world.tick(280)
    assert (restores(world), world.blocked()) == ([], "cooldown")
    world.tick(30)
    world.settle()
    assert world.phase() == "in_service"
    world.deliver(alert(starts_at=world.now))
    assert [action.action for action in world.pending()] == ["nic.avoid"]


def test_it_counts_only_while_it_fires():
    """One that has ended before the minute was over ends no hold."""
    world = out(rules())
    world.deliver(well())
    world.tick(30)
    world.deliver(well(firing=False))
    world.tick(120)
    assert restores(world) == []


def test_a_fault_that_fires_is_stronger():
    """Both at once: the NIC stays out; and the other alert takes nothing out."""
    world = out(rules())
    world.deliver(alert(starts_at=world.now), well())
    world.tick(300)
    assert restores(world) == []
    world.deliver(well(host="h1"))
    world.tick(10)
    assert world.phase("h1/rail0") == "unknown"
    assert world.pending() == []


@pytest.mark.parametrize("health", ["unhealthy", None])
def test_a_nic_that_is_not_observed_healthy_stays_out(health):
    """Whatever the alert says: it may be forged."""
    world = out(rules())
    world.deliver(well())
    for _ in range(60):
        world.now += 5
        world.report(health={"rail0": health} if health else {})
        world.reconcile()
    assert restores(world) == []


def test_it_releases_no_nic_that_waits_for_an_operator():
    """Too many failovers: only people bring it back."""
    text = rules(more="guards: {cooldown_s: 0, settle_s: 0, max_attempts: 9}\n").replace(
        "jitter: 0", "jitter: 0, sticky_count: 2"
    )
    world = out(text)
    world.deliver(well())
    world.tick(70)
    world.settle()
    world.deliver(alert(starts_at=world.now))
    world.settle()
    world.deliver(alert(firing=False, starts_at=world.now))
    world.tick(200)
    assert len(restores(world)) == 1
    assert (world.phase(), world.blocked()) == ("avoided", "manual")


def test_the_guards_of_the_return_apply():
    """Paused, and while the alerting is dead, nothing returns."""
    world = out(rules())
    world.deliver(well())
    world.pause("upgrade", "ada")
    world.tick(120)
    assert (restores(world), world.blocked()) == ([], "paused")
    world.resume("ada")
    world.tick(5)
    assert len(restores(world)) == 1


def test_its_end_proves_nothing():
    """A fault that vanished without `resolved` needs a probe; neither the end of the other alert nor its expiry counts
    as one, or as a fault."""
    world = World(config(rules(more="alertmanagers: [http://a]\nexpire_s: 60\n")))
    watchdog = alert(name="FabricWatchdog")
    world.poll([alert(), watchdog])
    world.settle()
    world.now += 61
    world.poll([watchdog])
    assert world.state.targets["h0/rail0"].needs_probe
    world.deliver(well())
    world.deliver(well(firing=False))
    assert world.state.targets["h0/rail0"].needs_probe
    other = out(rules(more="alertmanagers: [http://a]\nexpire_s: 60\n"))
    other.poll([well(), watchdog])
    other.now += 61
    other.poll([watchdog])
    assert not other.state.targets["h0/rail0"].needs_probe


def test_dry_run_says_so_once_an_episode():
    """And leaves the hold as it is."""
    world = out(rules("dry_run"))
    world.deliver(well())
    world.tick(300)
    assert world.events().count("would_restore") == 1
    assert restores(world) == []
    world.deliver(well(firing=False))
    world.now += 10
    world.deliver(replace(well(), starts_at=world.now))
    world.tick(100)
    assert world.events().count("would_restore") == 2


def test_approved_by_hash_while_it_fires():
    """The plan is dropped when the alert has ended; approved, it is carried out."""
    world = out(rules("approve"))
    world.deliver(well())
    world.tick(70)
    plan = world.state.targets["h0/rail0"].plan
    assert plan is not None
    assert (plan.action, plan.alert) == ("nic.restore", TESTED)
    world.deliver(well(firing=False))
    assert world.state.targets["h0/rail0"].plan is None
    world.deliver(replace(well(), starts_at=world.now + 1))
    world.tick(10)
    plan = world.state.targets["h0/rail0"].plan
    assert plan is not None
    world.run(lambda t: world.reconciler.operator.approve(t, plan.hash, "ada", world.now))
    world.tick(1)
    assert restores(world)[0].endswith("NicTested is firing, approved by ada")


def test_it_brings_back_what_its_own_rule_does_not():
    """The rule that took the NIC out was set to observe since; this one still acts."""
    world = out(rules())
    world.config = config(rules(avoid="observe"))
    world.reconciler.set_policy(world.config, {})
    world.tick(3700)
    assert (restores(world), world.blocked()) == ([], "not_acting")
    world.deliver(well())
    world.tick(5)
    assert len(restores(world)) == 1


def test_many_at_once_are_no_shared_fault():
    """Hosts whose NICs are well together are no reason to leave a flapping NIC in."""
    world = World(config(rules(more="guards: {settle_s: 0}\n")), hosts=6)
    world.deliver(*(well(host=f"h{number}") for number in range(1, 6)))
    world.deliver(alert())
    assert [action.target.key for action in world.pending()] == ["h0/rail0"]


def test_explain_and_advice_and_replay():
    """What it waits for; a rule without its counterpart; a past in which the NIC would have come back sooner."""
    world = out(rules())
    world.deliver(well())
    world.tick(10)

    def said() -> str:
        found = explain(world.config, {}, world.state, Target("h0", "rail0"), world.now)
        return str(found["next"])

    assert said() == "hold: 10 s of 3600 s observed healthy; NicTested may end it early, mode auto"
    alone = policy_of(config(f"rules: [{{alert: {TESTED}, action: nic.restore, mode: auto}}]"))
    assert any(line.startswith("a rule restores NICs, and none takes any out") for line in advice(alone))
    past = Replay(config(rules()), {})
    for at, reported in ((0, alert()), (20, alert(firing=False)), (30, well())):
        past.deliver(1e9 + at, [reported])
    past.advance(1e9 + 300)
    assert [line.event for line in past.lines] == ["nic.avoid", "nic.restore"]
