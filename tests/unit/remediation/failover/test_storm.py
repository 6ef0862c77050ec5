"""Many NICs that fire: a cycle stays short, nobody is forgotten, nothing remembered between cycles is stale."""

from tests.unit.remediation.world import START, World, alert, config

from fabricpulse.remediation.receiver.failover import decisions
from fabricpulse.remediation.receiver.state.transaction import Transaction

STORM = "rules: [{alert: FabricNicFlapping, mode: auto}]\nhold: {initial_s: 10, jitter: 0}\n"


def test_a_cycle_decides_on_some_and_the_next_on_the_others(monkeypatch):
    """7 NICs, 3 a cycle: after three cycles each has been looked at; in a small fleet all are at once."""
    monkeypatch.setattr(decisions, "_AT_ONCE", 3)
    world = World(config(STORM), hosts=0)
    alerts = [alert(f"gone{i}") for i in range(7)]
    world.run(lambda t: world.reconciler.observed.on_alerts(t, alerts, world.now))
    seen = []
    for _ in range(3):
        world.reconcile()
        seen.append(sum(t.blocked == "agent_lost" for t in world.state.targets.values()))
    assert seen == [3, 6, 7]


def test_what_was_remembered_of_a_commit_that_failed_is_not_used():
    """A transaction that is thrown away, then another one: the second one's alert is acted on, not the first one's."""
    world = World(config(STORM), hosts=2)
    thrown_away = Transaction(world.state)
    world.reconciler.observed.on_alerts(thrown_away, [alert("h0")], world.now)
    world.reconciler.decisions.reconcile(thrown_away, world.now)
    assert [a.target.host for a in thrown_away.actions.values()] == ["h0"]
    world.deliver(alert("h1"))
    assert [a.target.host for a in world.pending()] == ["h1"]


def test_an_event_that_is_undone_leaves_no_trace():
    """Rolled back within a transaction: as if it had not been."""
    world = World(config(STORM), hosts=2)
    transaction = Transaction(world.state)
    mark = transaction.mark()
    world.reconciler.observed.on_alerts(transaction, [alert("h0")], world.now)
    world.reconciler.decisions._firing_targets.of(transaction)
    transaction.rollback(mark)
    world.reconciler.decisions.reconcile(transaction, world.now)
    assert list(transaction.actions) == []


def test_only_what_begins_or_ends_is_a_change():
    """An alert that is reported again costs nothing; one that begins, ends, fires again or is forgotten is noticed."""
    world = World(config(STORM), hosts=2)
    versions = [world.state.episodes_version]
    for alerts, changes in (
        ([alert("h0")], True),
        ([alert("h0")], False),
        ([alert("h0"), alert("h1")], True),
        ([alert("h0", starts_at=START - 5)], False),
        ([alert("h0", firing=False)], True),
        ([alert("h0", firing=False)], False),
        ([alert("h0", starts_at=START + 5)], True),
    ):
        world.now += 1
        world.report()
        world.deliver(*alerts)
        versions.append(world.state.episodes_version)
        assert (versions[-1] != versions[-2]) is changes, alerts
    world.run(lambda t: world.reconciler.operator.forget(t, "h1", "ada", world.now))
    assert world.state.episodes_version != versions[-1]


def test_a_view_with_changes_is_the_dictionary_with_them():
    """Keys, values, items and length, added, replaced and removed, in insertion order."""
    world = World(config(STORM), hosts=3)
    for host in world.hosts:
        world.deliver(alert(host))
    transaction = Transaction(world.state)
    names = list(transaction.episodes)
    transaction.drop("episodes", [names[0]])
    world.reconciler.observed.on_alerts(transaction, [alert("new")], world.now)
    expected = [*names[1:], "FabricNicFlapping/new/rail0"]
    assert list(transaction.episodes) == list(transaction.episodes.keys()) == expected
    assert [e.fingerprint for e in transaction.episodes.values()] == expected
    assert len(transaction.episodes) == len(expected)
    assert names[0] not in transaction.episodes
    assert dict(transaction.episodes.items()) == {name: transaction.episodes[name] for name in expected}
