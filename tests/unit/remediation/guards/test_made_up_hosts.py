"""Hosts that somebody makes up raise no limit, hide no loss, and freeze nothing when they leave."""

from functools import partial

import pytest
from tests.unit.remediation.world import World, alert, fleet

from fabricpulse.remediation.receiver.state.model import AgentState, Held


def test_fake_agents_do_not_raise_the_limits():
    """3,000 registered hosts raised the breaker from 3 to 300 hosts; only hosts that were observed count, up to 10."""
    world = fleet(
        4, "breaker_window_s: 100000, cooldown_s: 0, max_in_flight: 99, burst: 99, shared_cause_count: 99"
    )
    for i in range(3000):
        fake = AgentState(host=f"fake{i}", seen_at=world.now, health={"rail0": "healthy"})
        world.run(lambda t, a=fake: world.reconciler.observed.on_agent(t, a, world.now))
    world.deliver(*(alert(f"fake{i}", f"nic{i}") for i in range(20)))
    world.now += 6
    world.reconcile()
    assert len(world.pending()) == 3
    assert set(world.state.breakers) == {"failover"}


def test_fake_agents_do_not_raise_the_limit_of_a_job():
    """3,000 registered hosts that claim a job raised what it may lose from 2 NICs to 8."""
    world = fleet(
        6, "breaker_hosts: 99, burst: 99, max_in_flight: 99, shared_cause_count: 99, shared_cause_fraction: 1"
    )
    world.report(workloads=("a",))
    for i in range(3000):
        fake = AgentState(host=f"fake{i}", seen_at=world.now, devices={"rail0": True}, workloads=("a",))
        world.run(lambda t, a=fake: world.reconciler.observed.on_agent(t, a, world.now))
    world.deliver(*(alert(host, f"rail{i % 2}") for i, host in enumerate(world.hosts)))
    world.now += 6
    world.reconcile()
    assert len(world.pending()) == 2
    assert {t.blocked for t in world.state.targets.values()} == {"", "workload"}


def test_what_one_host_holds_out_stops_no_failover_of_others():
    """It said that eight of its NICs are out and that it runs the job, which used up what the job may lose."""
    world = fleet(8)
    world.now += 1
    held = {f"nic{i}": Held("avoid", 5) for i in range(8)}
    for _ in range(2):
        world.report(["h7"], held=held, workloads=("train",))
    world.report(world.hosts[:7], workloads=("train",))
    assert sum(target.desired == "avoid" for target in world.state.targets.values()) == 8
    world.deliver(alert())
    world.now += 6
    world.report(["h7"], held=held, workloads=("train",))
    world.reconcile()
    assert [action.target.key for action in world.pending()] == ["h0/rail0"]


def test_fake_agents_do_not_hide_that_many_are_lost():
    """Half of the fleet's agents lost is half, whoever else has registered meanwhile."""
    world = fleet(10)
    world.now += 20
    world.report(world.hosts[:5])
    for i in range(3000):
        fake = AgentState(host=f"fake{i}", seen_at=world.now, health={"rail0": "healthy"})
        world.run(lambda t, a=fake: world.reconciler.observed.on_agent(t, a, world.now))
    world.deliver(alert())
    world.now += 6
    world.reconcile()
    assert (world.pending(), world.blocked()) == ([], "frozen")


def joined(world: World, count: int, source: str) -> None:
    """Hosts that `source` speaks for: they report as often as others do, all of them well."""
    health = {f"rail{i}": "healthy" for i in range(8)}
    for i in range(count):
        host, devices = f"made-up{i}", dict.fromkeys(health, True)
        agent = AgentState(
            host=host,
            seen_at=world.now,
            health=health,  # type: ignore[arg-type]
            devices=devices,
            workloads=("a",),
            source=source,
        )
        world.run(partial(world._on_agent, agent))


@pytest.mark.parametrize("age_s", [0, 601])
def test_made_up_hosts_that_leave_do_not_freeze_the_fleet(age_s):
    """Who has the token that all agents share: three thousand names, then silence, and for an hour nothing was done."""
    world = fleet(6)
    joined(world, 3000, "10.0.0.66")
    world.now += age_s
    joined(world, 3000, "10.0.0.66")
    world.now += 16
    world.report()
    world.deliver(alert())
    world.now += 6
    world.reconcile()
    assert [action.target.host for action in world.pending()] == ["h0"]


def test_strangers_with_many_addresses_that_leave_do_not_freeze_a_fleet():
    """Hosts of which nobody knows more than their addresses, made up within a moment: nothing was done for an hour."""
    world = fleet(6)
    world.now += 601
    for host in world.hosts:
        world.report([host], source=f"10.0.0.{host}")
    for i in range(20):
        made_up = AgentState(host=f"made-up{i}", seen_at=world.now, source=f"10.0.1.{i}")
        world.run(partial(world._on_agent, made_up))
    world.now += 16
    world.report()
    world.deliver(alert())
    world.now += 6
    world.reconcile()
    assert [action.target.host for action in world.pending()] == ["h0"]


def test_addresses_that_fall_silent_together_do():
    """Hosts without tokens of their own are as good as their addresses: three of six, one address each, are lost."""
    world = fleet(0)
    hosts = [f"h{i}" for i in range(6)]
    for host in hosts:
        world.report([host], source=f"10.0.0.{host}")
    world.now += 16
    for host in hosts[:3]:
        world.report([host], source=f"10.0.0.{host}")
    world.deliver(alert())
    world.now += 6
    world.reconcile()
    assert (world.pending(), world.blocked()) == ([], "frozen")


def test_hosts_behind_a_proxy_all_count():
    """One address, or two, speak for all: half of them lost is half of the fleet."""
    world = fleet(0)
    hosts = [f"h{i}" for i in range(8)]
    for number, host in enumerate(hosts):
        world.report([host], source=f"10.0.0.{number % 2}")
    world.now += 16
    for number, host in enumerate(hosts[:4]):
        world.report([host], source=f"10.0.0.{number % 2}")
    world.deliver(alert())
    world.now += 6
    world.reconcile()
    assert (world.pending(), world.blocked()) == ([], "frozen")


def test_made_up_hosts_that_stay_raise_no_limit():
    """Once they had reported for ten minutes they counted: ten hosts in place of three, eight NICs of a job in place
    of two. Of each address one counts, so that it may be one more."""
    for limits, allowed in (("breaker_hosts: 3", 3), ("breaker_hosts: 99", 3)):
        world = fleet(
            12, f"{limits}, burst: 99, max_in_flight: 99, shared_cause_count: 99, shared_cause_fraction: 1"
        )
        jobs = ("a",) if limits == "breaker_hosts: 99" else ()
        for seconds in (0, 601):
            world.now += seconds
            joined(world, 300, "10.0.0.66")
            world.report(workloads=jobs)
        world.deliver(*(alert(host, f"nic{i}") for i, host in enumerate(world.hosts)))
        world.now += 6
        world.reconcile()
        assert len(world.pending()) == allowed
