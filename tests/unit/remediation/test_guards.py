"""Each guard rail, alone."""

import pytest
from tests.unit.remediation.world import World, alert, config

from fabricpulse.remediation.receiver.guards import REASONS
from fabricpulse.remediation.receiver.model import AgentState

RULES = "rules: [{alert: FabricNicFlapping, mode: auto}]\nhold: {initial_s: 10, jitter: 0}\n"


def world_with(limits: str = "", hosts: int = 2, nics: int = 2) -> World:
    return World(config(f"{RULES}guards: {{{limits}}}\n"), hosts, nics)


def test_pause_stops_decisions_and_resume_decides_on_what_is_then():
    """The kill switch; what fired and ended meanwhile is not caught up with."""
    world = world_with()
    world.pause("upgrade", "ada")
    world.deliver(alert("h0"), alert("h1"))
    assert (world.pending(), world.blocked()) == ([], "paused")
    world.deliver(alert("h0", firing=False))
    world.resume("ada")
    world.tick()
    assert [a.target.host for a in world.pending()] == ["h1"]


def test_pause_with_an_end_ends_by_itself():
    """A pause that somebody forgets does not last for ever."""
    world = world_with()
    world.pause("upgrade", "ada", 30)
    world.deliver(alert())
    world.tick(29)
    assert world.pending() == []
    world.tick(1)
    assert [a.action for a in world.pending()] == ["nic.avoid"]


def test_never_the_last_nic():
    """With one rail out, the other stays whatever it does."""
    world = world_with("min_fraction_in_service: 0, max_in_flight: 9")
    world.deliver(alert("h0", "rail0"))
    world.settle()
    world.deliver(alert("h0", "rail1"))
    assert (world.pending(), world.blocked("h0/rail1")) == ([], "last_nic")


@pytest.mark.parametrize(
    "report",
    [{"devices": {"rail0": True, "rail1": False}}, {"connected": {"rail0": True, "rail1": False}}],
)
def test_a_nic_that_does_not_work_does_not_count_as_left(report):
    """A dead link, or one that the mesh cannot reach, is not what a job can be left with."""
    world = world_with()
    world.now += 1
    world.report(**report)
    world.deliver(alert("h0", "rail0"))
    assert (world.pending(), world.blocked()) == ([], "last_nic")


def test_capacity_keeps_three_quarters():
    """Of eight rails two may be out, not three."""
    world = world_with("max_in_flight: 9, cooldown_s: 0", nics=8)
    for rail in ("rail0", "rail1", "rail2"):
        world.deliver(alert("h0", rail))
        world.settle()
    assert world.phase("h0/rail1") == "avoided"
    assert world.blocked("h0/rail2") == "capacity"


def test_cooldown_after_a_return():
    """A NIC that has just come back is left alone for a while, and then not."""
    world = world_with("cooldown_s: 300")
    world.deliver(alert())
    world.settle()
    world.deliver(alert(firing=False))
    world.tick(10.1)
    world.settle()
    world.deliver(alert(starts_at=world.now))
    assert world.blocked() == "cooldown"
    world.tick(301)
    assert [a.action for a in world.pending()] == ["nic.avoid"]


def test_attempts_are_bounded_and_refused_ones_do_not_count():
    """Three failovers of a NIC within six hours, then people; a refusal wears nothing out."""
    world = world_with("cooldown_s: 0, max_attempts: 2")
    for outcome in ("refused", "refused", "failed", "failed"):
        world.deliver(alert(starts_at=world.now))
        assert [a.action for a in world.settle(outcome)] == ["nic.avoid"]
        world.deliver(alert(firing=False, starts_at=world.now))
        world.settle()
        world.tick(1)
    world.deliver(alert(starts_at=world.now))
    assert (world.pending(), world.blocked()) == ([], "attempts")


def test_one_action_a_host_and_a_budget_for_the_fleet():
    """A second NIC of a busy host waits; so does the third host when two may be busy."""
    world = world_with("max_in_flight: 2, shared_cause_count: 9", hosts=3, nics=8)
    world.deliver(alert("h0", "rail0"))
    world.deliver(alert("h0", "rail1"))
    assert world.blocked("h0/rail1") == "in_flight"
    world.deliver(alert("h1"), alert("h2"))
    assert len(world.pending()) == 2
    assert world.blocked("h2/rail0") == "budget"
    world.settle()
    assert {a.target.key for a in world.pending()} >= {"h2/rail0"}


def test_rate_is_a_bucket_that_refills():
    """Two at once, then one every ten seconds."""
    limits = "burst: 2, actions_per_minute: 6, max_in_flight: 9, breaker_hosts: 9, shared_cause_count: 9"
    world = world_with(limits, hosts=4)
    world.deliver(*(alert(host) for host in world.hosts))
    assert len(world.settle()) == 2
    world.tick(9)
    assert world.pending() == []
    world.tick(1.1)
    assert len(world.settle()) == 1
    world.tick(10.1)
    assert len(world.settle()) == 1


def test_breaker_trips_before_the_host_too_many_and_stays():
    """Two hosts are allowed; the third is not acted on, and nothing is until a person says so."""
    world = world_with("breaker_hosts: 2, shared_cause_count: 9", hosts=4)
    for host in ("h0", "h1", "h2"):
        world.deliver(alert(host))
        world.settle()
    assert (world.phase("h1/rail0"), world.blocked("h2/rail0")) == ("avoided", "breaker")
    assert set(world.state.breakers) == {"failover"}
    world.tick(10_000)
    assert world.pending() == []
    world.resume("ada")
    world.tick()
    assert [a.target.host for a in world.pending()] == ["h2"]


def test_failover_breaker_does_not_stop_failback():
    """Directions have breakers of their own: what is out may come back while nothing more leaves."""
    world = world_with("breaker_hosts: 1", hosts=2)
    world.deliver(alert("h0"), alert("h1"))
    world.settle()
    assert set(world.state.breakers) == {"failover"}
    world.deliver(alert("h0", firing=False))
    world.tick(10.1)
    assert [a.action for a in world.pending()] == ["nic.restore"]


def test_shared_cause_is_not_a_nic():
    """One rail of many hosts at once is a switch: moving every host's traffic would not mend it."""
    world = world_with("shared_cause_count: 3, max_in_flight: 9", hosts=6)
    world.deliver(*(alert(host, "rail1") for host in world.hosts[:5]), alert("h5", "rail0"))
    assert [a.target.key for a in world.pending()] == ["h5/rail0"]
    assert world.blocked("h0/rail1") == "shared_cause"


def test_a_lost_agent_blocks_its_host_and_many_block_all():
    """An action that nobody would carry out is not decided; many lost at once means that we are cut off."""
    world = world_with(hosts=4)
    world.now += 20
    world.report(["h1", "h2", "h3"])
    world.deliver(alert("h0"))
    assert world.blocked("h0/rail0") == "agent_lost"
    world.now += 20
    world.report(["h1", "h2"])
    world.deliver(alert("h1"))
    assert world.blocked("h1/rail0") == "frozen"


def test_an_unknown_host_is_never_acted_on():
    """A label that names a host without an agent leads to nothing."""
    world = world_with()
    world.deliver(alert("h99"))
    assert (world.pending(), world.blocked("h99/rail0")) == ([], "agent_lost")


def test_a_host_without_jobs_and_unknown_nics_may_lose_the_one_that_fires():
    """Nothing runs there; the plugin of a job that comes guards itself."""
    world = world_with()
    world.state = world.state.__class__(
        agents={"h0": AgentState(host="h0", seen_at=world.now)}, epoch=world.state.epoch
    )
    world.hosts = []
    world.deliver(alert("h0"))
    assert [a.target.key for a in world.pending()] == ["h0/rail0"]


def test_blocked_targets_leave_no_trace_when_the_alert_ends():
    """Labels of a flood of alerts must not fill the memory for ever."""
    world = world_with()
    world.deliver(*(alert(f"x{i}") for i in range(100)))
    assert len(world.state.targets) == 100
    world.deliver(*(alert(f"x{i}", firing=False) for i in range(100)))
    assert world.state.targets == {}


def test_reasons_are_a_closed_set():
    """Whatever blocks is a label of the metric."""
    source = [reason for reason in REASONS if not reason.replace("_", "").isalpha()]
    assert source == []
