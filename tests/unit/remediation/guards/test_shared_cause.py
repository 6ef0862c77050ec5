"""Faults of many hosts at once are a leaf's or a rail's, and no NIC leaves for them."""

from dataclasses import replace

import pytest
from tests.unit.remediation.world import alert, fleet, world_with


def test_shared_cause_is_not_a_nic():
    """One rail of many hosts at once is a switch: moving every host's traffic would not mend it."""
    world = world_with("shared_cause_count: 3, max_in_flight: 9", hosts=6)
    world.deliver(*(alert(host, "rail1") for host in world.hosts[:5]), alert("h5", "rail0"))
    assert [a.target.key for a in world.pending()] == ["h5/rail0"]
    assert world.blocked("h0/rail1") == "shared_cause"


@pytest.mark.simulation
def test_a_leaf_of_a_large_fleet_takes_out_nothing():
    """32 ports of 400 hosts flap at once: all 32 were taken out after 60 s. Now none, however long it lasts."""
    world = fleet(400)
    world.deliver(*(alert(host, "rail3") for host in world.hosts[:32]))
    for seconds in (1, 5, 55, 60, 300):
        world.tick(seconds)
        assert world.pending() == []
    assert {world.blocked(f"{host}/rail3") for host in world.hosts[:32]} == {"shared_cause"}
    assert world.state.breakers == {}
    # One after the other ends; the last ones are no NICs of their own for that.
    for host in world.hosts[:31]:
        world.deliver(alert(host, "rail3", firing=False))
        world.tick(10)
        assert world.pending() == []


def test_six_hosts_with_defaults():
    """All hosts of a small fleet on one rail: three NICs were taken out at 60.1 s."""
    world = fleet(6)
    world.deliver(*(alert(host) for host in world.hosts))
    world.tick(600)
    assert world.pending() == []


def test_alerts_that_come_one_by_one_are_seen_together():
    """The settle window: four hosts within four seconds, each in a notification of its own."""
    world = fleet(100)
    for host in world.hosts[:4]:
        world.deliver(alert(host))
        assert world.pending() == []
        world.tick(1)
    world.tick(100)
    assert world.pending() == []


def test_a_false_end_does_not_take_a_group_apart():
    """Of four hosts below a dead leaf one alert ends falsely and fires again from the same start, ten minutes later:
    three are no group, and their NICs left."""
    world = fleet(100)
    world.deliver(*(alert(host) for host in world.hosts[:4]))
    world.tick(500)
    world.deliver(alert(firing=False))
    world.tick(100)
    world.deliver(alert())
    world.tick(1000)
    assert (world.pending(), world.blocked("h1/rail0")) == ([], "shared_cause")


def test_a_group_of_before_and_after_an_absence():
    """The receiver starts anew amid an outage, once its clock is 400 days ahead: two and two were no four."""
    for away_s in (600, 34_560_000):
        world = fleet(100)
        world.deliver(*(alert(host) for host in world.hosts[:2]))
        world.now += away_s
        world.restart()
        world.tick(1)
        world.deliver(*(alert(host, starts_at=world.now) for host in world.hosts[2:4]))
        world.tick(700)
        assert (world.pending(), world.blocked("h0/rail0")) == ([], "shared_cause")


def test_those_that_fire_again_together_are_a_group():
    """Of one that had a fault of its own before the leaf's: all of them ended falsely, and came back at once."""
    world = fleet(100)
    world.deliver(alert())
    world.pause("x", "ada")
    world.tick(200)
    world.deliver(*(alert(host) for host in world.hosts[1:5]))
    world.deliver(*(alert(host, firing=False) for host in world.hosts[:5]))
    world.tick(100)
    world.deliver(*(alert(host) for host in world.hosts[:5]))
    world.run(lambda t: world.reconciler.operator.resume(t, "ada", world.now))
    world.tick(100)
    assert (world.pending(), world.blocked("h0/rail0")) == ([], "shared_cause")


def test_one_nic_leaves_after_the_settle_window():
    """A single fault is acted on after five seconds, and not before; waiting is no line in the journal."""
    world = fleet(100)
    world.deliver(alert())
    world.tick(4.9)
    assert (world.pending(), world.blocked()) == ([], "")
    world.tick(0.2)
    assert [a.target.key for a in world.pending()] == ["h0/rail0"]
    assert "blocked" not in world.events()


def test_causes_come_from_labels():
    """Hosts behind one leaf share it on whatever rail; hosts of one rail behind different leaves share the rail."""
    world = fleet(100)
    plain = [alert(f"h{i}", f"rail{i}") for i in range(4)]
    leaf = [replace(a, labels=a.labels | {"leaf": "l7"}) for a in plain]
    world.deliver(*leaf)
    world.tick(6)
    assert world.pending() == []
    assert {episode.causes for episode in world.state.episodes.values()} == {
        (f"network=rail{i}", "leaf=l7") for i in range(4)
    }
