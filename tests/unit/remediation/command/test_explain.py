"""What a NIC waits for, in one sentence, in every phase."""

from tests.unit.remediation.world import World, alert, config

from fabricpulse.remediation.receiver.explain import explain, explain_alert
from fabricpulse.remediation.receiver.guards.guard_words import guard
from fabricpulse.remediation.receiver.state.model import Target

RULES = "rules: [{alert: FabricNicFlapping, mode: auto}]\nhold: {initial_s: 10, jitter: 0}\n"


def sentence(world: World, host: str = "h0") -> str:
    found = explain(world.config, {}, world.state, Target(host, "rail0"), world.now)
    return str(found["next"])


def test_from_alert_to_return():
    """Settling, carried out, firing, hold with its progress, stopped hold, back."""
    world = World(config(f"{RULES}guards: {{settle_s: 5}}"))
    assert sentence(world) == "nothing: no alert fires"
    world.deliver(alert())
    assert sentence(world) == "FabricNicFlapping is acted on once it is 5 s old, mode auto"
    world.tick(5.1)
    assert sentence(world).startswith("the agent is carrying out h0/rail0#")
    world.settle()
    assert sentence(world) == "it stays out while FabricNicFlapping fires"
    world.deliver(alert(firing=False))
    world.tick(4)
    assert sentence(world) == "hold: 4 s of 10 s observed healthy"
    world.now += 2
    world.report(health={"rail0": "unhealthy"})
    assert sentence(world) == "hold: 0 s of 10 s observed healthy, stopped: unhealthy"


def test_guards_and_rules_are_named():
    """What forbids it, and a rule that only observes."""
    world = World(config(RULES))
    world.pause("upgrade", "ada")
    world.deliver(alert())
    why = "guard paused: remediation is paused; `resume` ends that"
    assert sentence(world) == f"FabricNicFlapping is not acted on: {why}"
    observing = World(config("rules: [{alert: FabricNicFlapping, mode: observe}]"))
    observing.deliver(alert())
    assert sentence(observing) == "nothing: the rule of FabricNicFlapping only observes"


def test_explaining_changes_nothing():
    """It reads the state that the commit loop owns."""
    world = World(config(RULES))
    world.deliver(alert())
    before = {key: dict(getattr(world.state, key)) for key in ("targets", "episodes", "actions", "agents")}
    explain(world.config, {}, world.state, Target("h0", "rail0"), world.now)
    assert before == {key: getattr(world.state, key) for key in before}


def test_a_guard_shows_before_the_alert_is_old_enough():
    """It said that the alert is acted on in 5 s, about the last NIC of a host; so does the file with an alert."""
    world = World(config(f"{RULES}guards: {{settle_s: 5}}"), nics=1)
    asked = explain_alert(world.config, {}, world.state, alert(), world.now)["next"]
    world.deliver(alert())
    assert sentence(world) == asked == "FabricNicFlapping is not acted on: " + guard("last_nic")
    world.tick(6)
    assert (world.pending(), world.blocked()) == ([], "last_nic")


def out(text: str) -> World:
    world = World(config(text))
    world.deliver(alert())
    world.settle()
    world.deliver(alert(firing=False))
    world.tick(0)
    world.now += 4
    world.report()
    world.now += 7
    world.report()
    return world


def test_it_says_what_is_decided_next():
    """Failed over too often, a rule that no longer acts, a strong and a new rule: it said that the NIC returns, and
    that nothing is done."""
    sticky = out(f"{RULES}".replace("jitter: 0", "jitter: 0, sticky_count: 1"))
    assert sentence(sticky) == "an operator must release it: it failed over too often"
    sticky.reconcile()
    assert sticky.phase() == "manual"
    silent = out(RULES)
    assert sentence(silent) == "it goes back into service"
    silent.config = config(RULES.replace("auto", "dry_run"))
    silent.reconciler.set_policy(silent.config, {})
    assert sentence(silent) == "it is kept out by the " + guard("not_acting")
    silent.reconcile()
    assert silent.blocked() == "not_acting"
    both = "rules: [{alert: FabricNicFlapping, mode: auto}, {alert: Other, mode: dry_run}]\nguards: {settle_s: 5}\n"
    world = World(config(both))
    world.deliver(alert())
    world.now += 6
    world.report()
    world.run(lambda t: world.reconciler.observed.on_alerts(t, [alert(name="Other")], world.now))
    assert sentence(world) == "FabricNicFlapping: it is taken out of service"


def test_what_came_to_nothing_is_not_under_way():
    """A refused return, and a failover that may have arrived: "the agent is carrying out" was said of them for ever."""
    world = out(RULES)
    world.reconcile()
    world.settle("refused", "pid 1: denied")
    assert sentence(world).startswith("its return came to nothing and counts as out: refused, pid 1: denied")
    world = World(config(RULES))
    world.deliver(alert())
    (action,) = world.pending()
    world.sent([action.op_id], lost=True)
    world.now += 61
    world.reconcile()
    assert "no agent reports from h0" in sentence(world)
    world.report()
    assert sentence(world) == f"nobody knows whether the agent has {action.op_id}: its next report shows that"


def test_a_guard_of_the_past_is_not_one_of_now():
    """A plan was made, and waits; the pause is over."""
    world = World(config(RULES.replace("auto", "approve")))
    world.deliver(alert())
    world.pause("work", "ada")
    world.reconcile()
    assert sentence(world) == "FabricNicFlapping is not acted on: " + guard("paused")
    world.resume("ada")
    assert sentence(world).startswith("nic.avoid waits for approval: ")
