"""What follows the episodes step by step is what looking at all of them would find."""

import dataclasses
import random
from collections import defaultdict

import pytest
from msgspec.structs import replace
from tests.unit.remediation.world import World, alert, config

from fabricpulse.remediation.receiver.guards.shared_cause import SharedCauses, limit_of
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.state.episode_changes import EpisodeChanges
from fabricpulse.remediation.receiver.state.model import Episode, Target
from fabricpulse.remediation.receiver.state.transaction import Transaction

RULES = """
rules:
  - {alert: FabricNicFlapping, mode: auto}
  - {alert: FabricNicLossy, mode: observe}
  - {alert: FabricNicQuiet, action: nic.restore, mode: auto}
guards: {settle_s: 0, shared_cause_memory_s: 50, shared_cause_window_s: 10}
"""
ALERTS = ("FabricNicFlapping", "FabricNicLossy", "FabricNicQuiet", "FabricOfNoRule")


def shared_by_definition(world: World, observed: int) -> set[str]:
    """Of every window of every cause: those in which so many hosts began."""
    limits, now = world.config.guards, world.now
    by_cause: dict[str, list[Episode]] = defaultdict(list)
    named: set[str] = set()
    for episode in world.state.episodes.values():
        if episode.status != "firing" and now - episode.ended_at > limits.shared_cause_memory_s:
            continue
        if episode.target.host:
            for cause in episode.causes:
                by_cause[cause].append(episode)
        else:
            named.update(episode.causes)
    found = set()
    for cause, group in by_cause.items():
        many = len({e.target.host for e in group}) >= 3
        for first in group:
            window = [
                e for e in group if 0 <= e.first_seen - first.first_seen <= limits.shared_cause_window_s
            ]
            if many and len({e.target.host for e in window}) >= limit_of(limits, observed):
                found |= {e.fingerprint for e in window}
        if cause in named:
            found |= {e.fingerprint for e in group}
    return found


def firing_by_definition(world: World) -> tuple[dict[str, str], dict[str, str]]:
    """Target -> its episode that counts, of those that take out and of those that ask back."""
    rank = {"FabricNicFlapping": 3, "FabricNicQuiet": 3, "FabricNicLossy": 0}
    best: tuple[dict[str, Episode], dict[str, Episode]] = ({}, {})

    def weight(episode: Episode) -> tuple[int, float]:
        return rank.get(episode.alert, -1), -episode.first_seen

    for episode in world.state.episodes.values():
        if episode.status == "firing" and episode.target.device:
            kept = best[episode.alert == "FabricNicQuiet"]
            known = kept.setdefault(episode.target.key, episode)
            if weight(episode) > weight(known):
                kept[episode.target.key] = episode
    firing, asked = ({key: e.fingerprint for key, e in kept.items()} for kept in best)
    return firing, asked


@pytest.mark.parametrize("seed", range(8))
def test_followed_step_by_step(seed):
    """Random begins, ends, ends of memory, forgotten hosts, causes with alerts of their own, transactions that fail, in
    between looked at or not: the same firing targets and shared causes as from all episodes."""
    chance = random.Random(seed)
    world = World(config(RULES), hosts=0)
    firing, shared = world.reconciler.decisions._firing_targets, SharedCauses(world.config.guards)
    for step in range(400):
        world.now += chance.choice((0.0, 0.5, 4.0, 40.0))
        host, device = f"h{chance.randrange(9)}", f"rail{chance.randrange(2)}"
        name = chance.choice(ALERTS)
        reported = alert(host, device, firing=chance.random() < 0.7, starts_at=world.now, name=name)
        if chance.random() < 0.05:
            reported = about_a_leaf(
                alert(f"x{step}", name="FabricFaultLocated", firing=chance.random() < 0.5)
            )
        transaction = Transaction(world.state)
        mark = transaction.mark()
        world.reconciler.observed.on_alerts(transaction, [reported], world.now)
        if chance.random() < 0.1:
            transaction.rollback(mark)
        if chance.random() < 0.1:
            transaction.drop("episodes", [n for n in transaction.episodes if f"/{host}/" in n])
        if name == "FabricOfNoRule" and chance.random() < 0.5:
            # Left over from a policy that had a rule for it.
            left = Episode(
                fingerprint=f"left/{host}", alert=name, target=Target(host, device), causes=("leaf=l",),
                starts_at=world.now, first_seen=world.now, last_seen=world.now, status="firing",
            )  # fmt: skip
            transaction.put_episode(left)
        if chance.random() < 0.2:
            firing.of(transaction)
            shared.follow(transaction, lambda _: 0, world.now)
        if chance.random() < 0.9:  # else its commit has failed
            world.state = transaction.apply()
        if chance.random() < 0.3:
            observed, fresh = chance.choice((0, 5, 20)), Transaction(world.state)
            expected, asked = firing_by_definition(world)
            assert firing.of(fresh) == expected, step
            assert firing.asked_back == asked, step
            shared.follow(fresh, lambda _, n=observed: n, world.now)
            found = {fingerprint for fingerprint in world.state.episodes if fingerprint in shared}
            assert found == shared_by_definition(world, observed), step


def about_a_leaf(one: Alert) -> Alert:
    """The same alert, about a leaf."""
    return dataclasses.replace(one, labels={"alertname": one.name, "leaf": "l"})


def test_one_more_costs_what_one_costs():
    """Ten thousand that fire, then one: the followers look at that one, and a group is not sorted again."""
    world = World(config(RULES), hosts=0)
    alerts = [alert(f"h{i}") for i in range(10_000)]
    world.run(lambda t: world.reconciler.observed.on_alerts(t, alerts, world.now))
    shared = SharedCauses(world.config.guards)
    assert alerts[0].fingerprint in shared.follow(Transaction(world.state), lambda _: 0, world.now)
    world.reconcile()
    version = world.state.episodes_version
    world.now += 1
    world.run(lambda t: world.reconciler.observed.on_alerts(t, [alert("new")], world.now))
    transaction = Transaction(world.state)
    assert list(transaction.episodes_changed_since(version) or {}) == ["FabricNicFlapping/new/rail0"]
    (group,) = shared._groups.values()
    before = group._ordered
    assert "FabricNicFlapping/new/rail0" in shared.follow(transaction, lambda _: 0, world.now)
    assert group._ordered is before
    assert group._read == 10_001


def test_changes_are_bounded():
    """Old ones are forgotten, and a query for them gets None."""
    changes = EpisodeChanges()
    for version in range(1, 40_000):
        changes.note(version, [f"f{version}"])
    assert changes.since(1) is None
    assert changes.since(39_998) == {"f39999": None}
    assert len(changes._changed) <= 25_000
    changes.note(40_000, [f"g{i}" for i in range(60_000)])
    assert (changes.since(39_999), changes.since(40_000)) == (None, {})
    assert len(changes._changed) == 1
    state = World(hosts=0).state
    assert replace(state, episode_changes=changes) == state, "it follows from the episodes"
