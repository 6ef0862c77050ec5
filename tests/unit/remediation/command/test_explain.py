"""What a NIC waits for, in one sentence, in every phase."""

from tests.unit.remediation.world import World, alert, config

from fabricpulse.remediation.receiver.explain import explain
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
