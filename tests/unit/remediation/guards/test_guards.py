"""Each guard rail, alone."""

import pytest
from tests.unit.remediation.world import RULES_AUTO, World, alert, config, fleet, world_with

from fabricpulse.remediation.receiver.guards.guard_words import WORDS
from fabricpulse.remediation.receiver.guards.guards import REASONS
from fabricpulse.remediation.receiver.health import problems
from fabricpulse.remediation.receiver.state.model import AgentState, Held, Target


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
    [
        {"devices": {"rail0": True, "rail1": False}},
        {"connected": {"rail0": True, "rail1": False}},
        {"connected": {"rail0": True, "rail1": True}, "health": {"rail0": "healthy", "rail1": "unhealthy"}},
    ],
)
def test_a_nic_that_does_not_work_does_not_count_as_left(report):
    """A dead link, one that the mesh cannot reach, or could not since the last report, is not what a job can be left
    with."""
    world = world_with()
    world.now += 1
    world.report(**report)
    world.deliver(alert("h0", "rail0"))
    assert (world.pending(), world.blocked()) == ([], "last_nic")


def test_a_nic_that_nobody_sees_does_not_count_as_left():
    """Membership has eight NICs of the host, six of which are broken for good: neither a job nor the mesh knows them.
    The last one that works was taken out as one of seven."""
    world = world_with("max_in_flight: 9, cooldown_s: 0", nics=2)
    world.reconciler.set_policy(world.config, {"h0": frozenset(f"rail{i}" for i in range(8))})
    world.tick(1)
    world.deliver(alert("h0", "rail0"))
    world.settle()
    assert world.phase("h0/rail0") == "avoided"
    world.deliver(alert("h0", "rail1"))
    assert (world.pending(), world.blocked("h0/rail1")) == ([], "last_nic")


def test_what_a_process_says_of_links_stops_no_failover():
    """Without a mesh health is what processes say of links, too: any user could say that those of all others are
    down."""
    world = world_with()
    world.now += 1
    world.report(health={"rail0": "healthy", "rail1": "unhealthy"})
    world.deliver(alert("h0", "rail0"))
    assert [a.action for a in world.pending()] == ["nic.avoid"]


def test_capacity_keeps_three_quarters():
    """Of eight rails two may be out, not three."""
    world = world_with("max_in_flight: 9, cooldown_s: 0", nics=8)
    for rail in ("rail0", "rail1", "rail2"):
        world.deliver(alert("h0", rail))
        world.settle()
    assert world.phase("h0/rail1") == "avoided"
    assert world.blocked("h0/rail2") == "capacity"


def test_cooldown_counts_from_the_last_failover():
    """A NIC that flaps as soon as it is back leaves again once the cooldown since its last failover is over."""
    world = world_with("cooldown_s: 300")
    world.deliver(alert())
    world.settle()
    world.deliver(alert(firing=False))
    world.tick(10.1)
    world.settle()
    world.deliver(alert(starts_at=world.now))
    assert world.blocked() == "cooldown"
    world.tick(285)
    assert world.pending() == []
    world.tick(6)
    assert [a.action for a in world.pending()] == ["nic.avoid"]


def test_attempts_are_bounded_whatever_became_of_them():
    """Three failovers of a NIC within six hours, then people; a refused one is one."""
    world = world_with("cooldown_s: 0, max_attempts: 3, retry_initial_s: 0")
    for outcome in ("refused", "failed", "refused"):
        world.deliver(alert(starts_at=world.now))
        assert [a.action for a in world.settle(outcome)] == ["nic.avoid"]
        world.deliver(alert(firing=False, starts_at=world.now))
        world.settle()
        world.tick(1)
    world.deliver(alert(starts_at=world.now))
    assert (world.pending(), world.blocked()) == ([], "attempts")


def test_a_host_that_refuses_is_asked_less_and_less():
    """A socket that refuses everything made 72 avoids and 72 restores in six hours; now it is three of each."""
    world = World(config("rules: [{alert: FabricNicFlapping, mode: auto}]"))
    world.deliver(alert())
    times = []
    for _ in range(6 * 3600 // 5):
        for action in world.pending():
            if action.action == "nic.avoid":
                times.append(world.now)
            world.result(action, "refused" if action.action == "nic.avoid" else "applied")
        world.tick(5)
    assert len(times) == 3
    assert sum(a.action == "nic.restore" for a in world.state.actions.values()) == 3
    first, second = times[1] - times[0], times[2] - times[1]
    assert first >= 60
    assert second >= 120


def test_backoff_doubles_and_a_release_ends_it():
    """60 s, 120 s, 240 s; an operator who releases the NIC ends it."""
    world = world_with("cooldown_s: 0, max_attempts: 9, retry_initial_s: 60")
    world.deliver(alert())
    for wait in (60, 120, 240):
        assert [a.action for a in world.settle("failed")] == ["nic.avoid"]
        world.settle()
        world.tick(wait - 1)
        assert (world.pending(), world.blocked()) == ([], "backoff")
        world.tick(1.5)
    assert [a.action for a in world.pending()] == ["nic.avoid"]


def test_a_failover_that_nobody_fetches_counts_too():
    """Expired intents are attempts with a back-off as well."""
    world = world_with("cooldown_s: 0, max_attempts: 9")
    world.deliver(alert())
    world.tick(121)
    world.settle()
    world.tick(1)
    assert world.blocked() == "backoff"


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
    world = world_with("breaker_hosts: 2, shared_cause_count: 9, shared_cause_fraction: 1", hosts=4)
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


@pytest.mark.simulation
def test_the_breaker_has_a_bound_of_its_own():
    """A tenth of a large fleet is no noise: at most breaker_max_hosts."""
    world = fleet(400, "max_in_flight: 999, burst: 999, shared_cause_count: 999, shared_cause_fraction: 1")
    for i in range(40):
        world.deliver(alert(f"h{i}"))
        world.tick(5)
        world.settle()
    assert len(world.state.actions) == 10
    assert set(world.state.breakers) == {"failover"}


def test_a_job_loses_so_much_at_most():
    """A tenth of the NICs of its hosts, at least 2 and at most 8; each job has its own limit, a nameless one none."""
    text = (
        RULES_AUTO
        + "guards: {settle_s: 0, breaker_hosts: 99, burst: 99, max_in_flight: 99, shared_cause_count: 99, "
        "shared_cause_fraction: 1}"
    )
    for hosts, workloads, out in ((6, ("a",), 4), (30, ("a",), 8), (2, ("a", "b"), 2), (9, (), 9)):
        world = World(config(text), hosts=hosts, nics=8)
        world.now += 601
        world.report(workloads=workloads)
        for i, host in enumerate(world.hosts):
            world.deliver(alert(host, f"rail{i % 8}"))
        taken = [t for t in world.state.targets.values() if t.desired == "avoid"]
        assert len(taken) == out, (hosts, workloads)
        if out < hosts:
            assert {t.blocked for t in world.state.targets.values()} == {"", "workload"}
    world = World(config(text), hosts=6, nics=8)
    world.now += 601
    world.report(world.hosts[:3], workloads=("a",))
    world.report(world.hosts[3:], workloads=("b",))
    for i, host in enumerate(world.hosts):
        world.deliver(alert(host, f"rail{i}"))
    out_of = [t.target.host for t in world.state.targets.values() if t.desired == "avoid"]
    assert out_of == ["h0", "h1", "h3", "h4"]


def test_a_restart_does_not_forget_what_a_job_has_lost():
    """NICs of hosts whose agents do not report after it count for the job that ran there, and for no other one."""
    world = World(config(), hosts=5, nics=8)
    world.report(world.hosts[:4], workloads=("a",))
    world.report(["h4"], workloads=("b",))
    for host in ("h0", "h1"):
        world.deliver(alert(host, "rail0"))
        world.settle()
    world.restart()
    world.report(["h2", "h3"], workloads=("a",))
    world.report(["h4"], workloads=("b",))
    world.deliver(alert("h3", "rail3"))
    assert world.blocked("h3/rail3") == "workload"
    world.deliver(alert("h4", "rail4"))
    assert world.phase("h4/rail4") == "avoiding"


def test_a_rule_that_only_does_harm_stops():
    """Three failovers after which jobs stalled: the rule observes until an operator resumes."""
    world = world_with("max_harmful: 3, breaker_hosts: 99, cooldown_s: 0, shared_cause_count: 99", hosts=5)
    for host in ("h0", "h1", "h2"):
        world.deliver(alert(host))
        (action,) = world.settle()
        world.result(action, traffic="stalled", processes=1)
        world.settle()
        world.deliver(alert(host, firing=False))
    world.deliver(alert("h3"))
    assert (world.pending(), world.blocked("h3/rail0")) == ([], "harmful")
    world.now += 1
    world.resume("ada")
    world.tick(1)
    assert [a.target.host for a in world.pending()] == ["h3"]


def test_a_host_that_says_its_jobs_stall_stops_the_rule_there_only():
    """A plugin may say what it likes: three stalls of one host are no word about the others; a second host's is."""
    limits = (
        "max_harmful: 3, max_attempts: 99, breaker_hosts: 99, cooldown_s: 0, shared_cause_count: 99, "
        "retry_initial_s: 0, retry_cap_s: 0"
    )
    world = world_with(limits, hosts=5)

    def stalls(host: str) -> None:
        world.now += 1
        world.deliver(alert(host, starts_at=world.now))
        (action,) = world.settle()
        world.result(action, traffic="stalled", processes=1)
        world.deliver(alert(host, firing=False, starts_at=world.now))
        world.settle()

    for _ in range(3):
        stalls("h0")
    world.now += 1
    world.deliver(alert("h0", starts_at=world.now))
    assert (world.pending(), world.blocked("h0/rail0")) == ([], "harmful")
    (problem,) = problems(world.config, world.state, world.now, "")
    assert "only observes on h0: " in problem.message
    stalls("h3")
    world.deliver(alert("h4", starts_at=world.now))
    assert (world.pending(), world.blocked("h4/rail0")) == ([], "harmful")
    (problem,) = problems(world.config, world.state, world.now, "")
    assert " on " not in problem.message.partition(":")[0]


@pytest.mark.parametrize(("outcome", "fields"), [("applied", {"traffic": "partly_stalled"}), ("failed", {})])
def test_one_users_sockets_do_not_stop_a_rule_for_the_fleet(outcome, fields):
    """They say that they stall, or that they do what they do not, on two hosts beside jobs that are well: there the
    NICs go back, and in the end the rule stops on these hosts."""
    limits = (
        "max_harmful: 4, max_unproven: 4, max_attempts: 99, breaker_hosts: 99, cooldown_s: 0, burst: 99, "
    )
    world = world_with(limits + "shared_cause_count: 99, retry_cap_s: 1, retry_initial_s: 1", hosts=3, nics=4)
    for turn in range(8):
        host, device = f"h{turn % 2}", f"rail{turn // 2}"
        world.tick(60)
        world.deliver(alert(host, device, starts_at=world.now))
        (action,) = world.pending()
        world.result(action, outcome, processes=1, **fields)
        assert world.state.actions[action.op_id].outcome in ("rolled_back", "failed")
        world.deliver(alert(host, device, starts_at=world.now, firing=False))
        world.settle()
    world.tick(60)
    world.deliver(alert("h2"), alert("h0", "rail0", starts_at=world.now))
    assert [action.target.key for action in world.pending()] == ["h2/rail0"]
    assert world.blocked("h0/rail0") in ("harmful", "unhelpful")


def test_a_rule_that_stops_acting_brings_nothing_back():
    """From auto to dry_run: what is out stays out until an operator releases it."""
    world = world_with()
    world.deliver(alert())
    world.settle()
    world.reconciler.set_policy(config(f"{RULES_AUTO.replace('auto', 'dry_run')}"), {})
    world.deliver(alert(firing=False))
    world.tick(60)
    assert (world.pending(), world.blocked()) == ([], "not_acting")
    world.release(Target("h0", "rail0"), "ada")
    assert [a.action for a in world.pending()] == ["nic.restore"]


def test_retired_hosts_do_not_freeze_for_ever():
    """40 % of the agents gone: frozen for an hour at most, and not at all once they are forgotten."""
    world = world_with(hosts=10)
    world.hosts = world.hosts[:6]
    world.tick(60)
    world.deliver(alert())
    assert world.blocked() == "frozen"
    for host in ("h6", "h7", "h8", "h9"):
        world.run(lambda t, h=host: world.reconciler.operator.forget(t, h, "ada", world.now))
    world.tick(0.1)
    assert [a.target.host for a in world.pending()] == ["h0"]

    world = world_with(hosts=10)
    world.hosts = world.hosts[:6]
    world.tick(3500)
    world.deliver(alert())
    assert world.blocked() == "frozen"
    world.tick(200)
    assert [a.target.host for a in world.pending()] == ["h0"]


def test_forget_drops_everything_of_a_host_and_nothing_else():
    """Targets, episodes, actions, agent; if the host comes back, its agent reports what it holds."""
    world = world_with(hosts=3)
    world.deliver(alert("h0"), alert("h1"))
    world.settle()
    held = {"rail0": Held("avoid", world.state.targets["h0/rail0"].generation)}
    world.run(lambda t: world.reconciler.operator.forget(t, "h0", "ada", world.now))
    for collection in (world.state.targets, world.state.episodes, world.state.actions, world.state.agents):
        assert not [key for key in collection if "h0" in key]
        assert [key for key in collection if "h1" in key]
    world.report(["h0"], held=held)
    assert world.phase() == "avoided"


@pytest.mark.parametrize("second", [None, []])
def test_one_alertmanager_of_two_is_enough_when_it_is_fed(second):
    """A NIC never came back while one of two Alertmanagers was down; the watchdog alert shows that the other is fed."""
    settings = f"{RULES_AUTO}alertmanagers: [http://a, http://b]\n"
    world = World(config(settings))
    watchdog = alert(name="FabricWatchdog")
    world.poll([alert(), watchdog], [alert(), watchdog])
    world.settle()
    world.poll([watchdog], second)
    world.deliver(alert(firing=False))
    for _ in range(4):
        world.tick(100)
        world.poll([watchdog], second)
    assert "nic.restore" in [a.action for a in world.state.actions.values()]


def test_one_alertmanager_without_the_watchdog_is_not_enough():
    """One that has just started, or that nobody feeds, knows of no alert."""
    world = World(config(f"{RULES_AUTO}alertmanagers: [http://a, http://b]\n"))
    watchdog = alert(name="FabricWatchdog")
    world.poll([alert(), watchdog], [alert(), watchdog])
    world.settle()
    for _ in range(4):
        world.tick(100)
        world.poll([], None)
    world.deliver(alert(firing=False))
    world.tick(60)
    assert (world.pending(), world.blocked()) == ([], "alertmanager_lost")


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
    """Whatever blocks is a label of the metric, and has a sentence for people."""
    assert [reason for reason in REASONS if not reason.replace("_", "").isalpha()] == []
    assert WORDS.keys() == set(REASONS)
