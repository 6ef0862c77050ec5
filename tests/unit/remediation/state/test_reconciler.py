"""From alerts to decisions, with time and agents driven by hand."""

from copy import deepcopy
from dataclasses import replace

import pytest
from tests.unit.remediation.world import START, World, alert, config

from fabricpulse.remediation.receiver import health
from fabricpulse.remediation.receiver.state import episode_room
from fabricpulse.remediation.receiver.state.model import Held, Target

SPECIAL = "rules: [{{alert: FabricNicFlapping, mode: auto}}]\nhold: {{initial_s: 10, jitter: 0}}\n{}"


def failed_over(world: World) -> World:
    world.deliver(alert())
    world.settle()
    assert world.phase() == "avoided"
    return world


def test_first_firing_takes_the_nic_out_at_once():
    """Failover is never damped: the first firing alert is an action, before any time has passed."""
    world = World()
    world.deliver(alert())
    (action,) = world.pending()
    assert (action.action, action.target, action.alert) == (
        "nic.avoid",
        Target("h0", "rail0"),
        "FabricNicFlapping",
    )
    assert action.received_at == action.created_at == START
    world.settle()
    assert world.phase() == "avoided"


def test_a_repeated_notification_decides_nothing():
    """Alertmanager delivers at least once: the hundredth copy changes nothing."""
    world = failed_over(World())
    for _ in range(100):
        world.deliver(alert())
        world.tick(1)
    assert len(world.state.actions) == 1


def test_resolved_only_starts_the_hold():
    """`resolved` is permission to wait, not to act; quiet for the hold brings the NIC back."""
    world = failed_over(World())
    world.deliver(alert(firing=False))
    world.tick(9.9)
    assert world.pending() == []
    world.tick(0.2)
    (action,) = world.pending()
    assert action.action == "nic.restore"
    world.settle()
    assert world.phase() == "in_service"
    avoid = next(a for a in world.state.actions.values() if a.action == "nic.avoid")
    assert avoid.restored_at == world.now


def test_firing_during_the_hold_starts_it_again_from_zero():
    """Nine quiet seconds before a new flap count for nothing."""
    world = failed_over(World())
    world.deliver(alert(firing=False))
    world.tick(9)
    world.deliver(alert(starts_at=START + 9))
    world.tick(5)
    world.deliver(alert(firing=False, starts_at=START + 9))
    world.tick(9)
    assert world.pending() == []
    world.tick(1.1)
    assert [a.action for a in world.pending()] == ["nic.restore"]


def test_two_alerts_about_one_nic_hold_it_until_both_are_quiet():
    """The NIC returns when the last of its episodes has ended, not the first."""
    both = config(
        "rules: [{alert: A, mode: auto}, {alert: B, mode: auto}]\nhold: {initial_s: 10, jitter: 0}\n"
    )
    world = World(both)
    world.deliver(alert(name="A"), alert(name="B"))
    world.settle()
    world.deliver(alert(name="A", firing=False))
    world.tick(60)
    assert world.phase() == "avoided"
    world.deliver(alert(name="B", firing=False))
    world.tick(10.1)
    assert [a.action for a in world.pending()] == ["nic.restore"]


def test_hold_doubles_and_the_third_time_waits_for_an_operator():
    """Each failover within the window doubles the hold; the third within two hours waits for an operator."""
    world = World(config(SPECIAL.format("guards: {cooldown_s: 0, max_attempts: 9}\n")))
    for expected in (10, 20):
        world.deliver(alert(starts_at=world.now))
        world.settle()
        world.deliver(alert(firing=False, starts_at=world.now))
        world.tick(0)
        world.tick(expected - 0.5)
        assert world.pending() == []
        world.tick(0.6)
        assert [a.action for a in world.settle()] == ["nic.restore"]
    world.deliver(alert(starts_at=world.now))
    world.settle()
    world.deliver(alert(firing=False, starts_at=world.now))
    world.tick(40.1)
    assert world.phase() == "manual"
    world.tick(100_000)
    assert world.pending() == []
    world.release(Target("h0", "rail0"), "ada")
    assert [a.reason for a in world.settle()] == ["released by ada"]
    assert world.phase() == "in_service"


@pytest.mark.parametrize("mode", ["observe", "dry_run"])
def test_without_auto_nothing_is_changed(mode):
    """`observe` keeps the episode; `dry_run` also says what it would do, once an episode."""
    world = World(config(f"rules: [{{alert: FabricNicFlapping, mode: {mode}}}]"))
    for _ in range(3):
        world.deliver(alert())
        world.settle()
        world.tick(1)
    assert world.state.episodes
    assert world.phase() in ("unknown", "in_service")
    outcomes = [(a.dry_run, a.outcome) for a in world.state.actions.values()]
    assert outcomes == ([] if mode == "observe" else [(True, "dry_run")])


def test_dry_run_is_what_a_rule_does_unless_configured_otherwise():
    """Acting has to be asked for."""
    world = World(config("rules: [{alert: FabricNicFlapping}]"))
    world.deliver(alert())
    assert [a.dry_run for a in world.pending()] == [True]


@pytest.mark.parametrize("outcome", ["refused", "failed"])
def test_what_did_not_work_is_rolled_back(outcome):
    """A refusal or a failure by some process brings all of them back to the one known state."""
    world = World()
    world.deliver(alert())
    world.settle(outcome, "pid 7: no")
    (action,) = world.pending()
    assert action.action == "nic.restore"
    assert action.reason == "rolled back: pid 7: no"
    world.settle()
    assert world.phase() == "in_service"
    world.tick(1)
    assert world.pending() == []
    assert world.blocked() == "backoff"


def test_jobs_that_stand_still_afterwards_get_their_nic_back():
    """Verified against traffic: an action that made things worse is undone, and counted as rolled back."""
    world = World()
    world.deliver(alert())
    (action,) = world.settle()
    world.result(action, traffic="stalled", processes=1)
    assert world.state.actions[action.op_id].outcome == "rolled_back"
    assert [a.action for a in world.pending()] == ["nic.restore"]


def test_traffic_that_moves_changes_nothing():
    """A good outcome is written down, and that is all."""
    world = World()
    world.deliver(alert())
    (action,) = world.settle()
    world.result(action, traffic="moved", processes=1)
    assert world.state.actions[action.op_id].traffic == "moved"
    assert world.pending() == []


def test_a_poll_finds_what_no_notification_brought():
    """An alert that the webhook never carried (lost, truncated) is found by asking."""
    world = World(config(SPECIAL.format("alertmanagers: [http://a]\n")))
    world.poll([alert()])
    assert [a.action for a in world.pending()] == ["nic.avoid"]


def test_silenced_alerts_begin_nothing_and_do_not_end_what_they_began():
    """A silence is for people: it neither takes a NIC out nor brings it back."""
    world = World(config(SPECIAL.format("alertmanagers: [http://a]\n")))
    world.poll([alert(suppressed=True)])
    assert world.pending() == []
    world.poll([alert()])
    world.settle()
    for _ in range(20):
        world.tick(60)
        world.poll([alert(suppressed=True)])
    assert world.phase() == "avoided"
    assert world.state.episodes[alert().fingerprint].status == "firing"


def test_vanished_is_not_healthy():
    """An alert that no Alertmanager knows any more, without `resolved`, needs a probe before the NIC returns."""
    world = failed_over(World(config(SPECIAL.format("alertmanagers: [http://a]\n"))))
    for _ in range(6):
        world.tick(60)
        world.poll([])
    assert "episode_expired" in world.events()
    world.tick(20)
    world.poll([])
    assert world.blocked() == "unproven"
    world.report(connected={"rail0": True})
    world.reconcile()
    assert [a.action for a in world.pending()] == ["nic.restore"]


def test_an_unhealthy_nic_restarts_the_hold():
    """A NIC that the mesh's probes do not reach, or whose link went down, is not quiet."""
    world = failed_over(World())
    world.deliver(alert(firing=False))
    for _ in range(10):
        world.now += 2
        world.report(health={"rail0": "unhealthy"})
        world.reconcile()
    assert (world.pending(), world.blocked()) == ([], "unhealthy")
    assert world.events().count("hold_restarted") == 1
    world.tick(9)
    assert world.pending() == []
    world.tick(1.5)
    assert [a.action for a in world.pending()] == ["nic.restore"]


@pytest.mark.parametrize("health", [{}, {"rail1": "healthy"}])
def test_seconds_without_an_observation_do_not_count(health):
    """An agent that lives and does not measure the NIC brings nothing back, however long it lasts."""
    world = failed_over(World())
    world.deliver(alert(firing=False))
    world.tick(4)
    for _ in range(1000):
        world.now += 5
        world.report(health=health)
        world.reconcile()
    assert (world.pending(), world.blocked()) == ([], "not_observed")
    assert world.events().count("hold_stopped") == 1
    world.tick(9)
    assert world.pending() == []
    world.tick(1.1)
    assert [a.reason for a in world.pending()] == ["healthy for 10 s"]


def test_a_gap_between_reports_does_not_count():
    """An agent that was away for an hour has observed nothing in it; the last part of the hold is measured again."""
    settings = "hold: {initial_s: 600, jitter: 0}\nrules: [{alert: FabricNicFlapping, mode: auto}]"
    world = failed_over(World(config(settings)))
    world.deliver(alert(firing=False))
    world.tick(590)
    world.now += 3600
    world.tick(0)
    world.tick(55)
    assert world.pending() == []
    world.tick(6)
    assert [a.action for a in world.pending()] == ["nic.restore"]


def test_dead_alerting_brings_nothing_back():
    """When the alert that always fires is gone, silence means nothing; on its return the NIC is measured first."""
    world = failed_over(World(config(SPECIAL.format("alertmanagers: [http://a]\n"))))
    watchdog = alert(name="FabricWatchdog")
    world.poll([alert(), watchdog])
    world.deliver(alert(firing=False))
    world.tick(5)
    world.poll([])
    world.tick(60)
    assert (world.pending(), world.blocked()) == ([], "alerting_dead")
    world.poll([watchdog])
    assert world.pending() == []
    world.tick(9)
    assert world.pending() == []
    world.tick(1.1)
    assert [a.action for a in world.pending()] == ["nic.restore"]


def test_silent_alertmanagers_freeze():
    """Fail static: with no Alertmanager to ask, nothing returns and nothing leaves."""
    world = failed_over(World(config(SPECIAL.format("alertmanagers: [http://a]\n"))))
    world.poll([alert()])
    for _ in range(4):
        world.tick(60)
        world.poll(None)
    world.deliver(alert(firing=False))
    world.tick(1000)
    assert world.blocked() == "alertmanager_lost"
    assert world.phase() == "avoided"
    world.poll([])
    assert world.pending() == []
    world.tick(10.1)
    assert [a.action for a in world.pending()] == ["nic.restore"]


def test_an_action_that_nobody_fetches_expires_and_is_undone():
    """Old decisions are not carried out late."""
    world = World()
    world.deliver(alert())
    (action,) = world.pending()
    world.deliver(alert(firing=False))
    world.tick(121)
    assert world.state.actions[action.op_id].outcome == "expired"
    assert [a.action for a in world.pending()] == ["nic.restore"]


def test_silence_after_sending_is_unknown_not_failure():
    """What may have been done is neither sent again by guess nor forgotten; the agent's late report settles it."""
    world = World()
    world.deliver(alert())
    (action,) = world.pending()
    world.sent([action.op_id])
    world.tick(61)
    assert world.state.actions[action.op_id].outcome == "unknown"
    assert world.pending() == []
    world.result(action, processes=2)
    assert world.state.actions[action.op_id].outcome == "succeeded"
    assert world.phase() == "avoided"


def test_an_agent_speaks_only_for_its_own_host():
    """A result about another host's NIC changes nothing."""
    world = World()
    world.deliver(alert())
    (action,) = world.pending()
    before = deepcopy(world.state)
    from fabricpulse.remediation.protocol import Result

    world.report_result("h1", Result(action.op_id, "applied"))
    assert world.state == before


def test_restart_offers_the_same_operation_again():
    """The op_id, the idempotency key, survives; the epoch rises."""
    world = World()
    world.deliver(alert())
    (action,) = world.pending()
    epoch = world.state.epoch
    world.now += 1
    world.restart()
    world.report()
    assert world.state.epoch > epoch
    assert world.pending() == [action]
    world.settle()
    assert world.phase() == "avoided"


def test_a_lost_journal_learns_from_the_agents():
    """The state that jobs are in counts: a NIC held out by an agent is taken over, held, and brought back."""
    world = World()
    generation = int(world.now * 1000) + 5_000_000
    world.restart()
    world.report(["h0"], held={"rail0": Held("avoid", generation)})
    world.held["h0/rail0"] = Held("avoid", generation)
    assert world.phase() == "avoided"
    world.tick(0)
    world.tick(10.1)
    (action,) = world.pending()
    assert action.action == "nic.restore"
    assert action.generation > generation


def test_generations_rise_with_each_decision():
    """Also when two decisions fall into one millisecond."""
    world = World()
    world.deliver(alert())
    world.settle("refused")
    first, second = world.state.actions.values()
    assert second.generation > first.generation


def test_a_return_that_failed_does_not_forbid_to_leave_again():
    """A NIC that could not be put back everywhere and fires again is taken out."""
    world = failed_over(World(config(SPECIAL.format("guards: {cooldown_s: 0}\n"))))
    world.deliver(alert(firing=False))
    world.tick(0)
    world.tick(10.1)
    world.settle("failed", "pid 9: silent")
    assert world.phase() == "restoring"
    world.deliver(alert(starts_at=world.now))
    assert [a.action for a in world.pending()] == ["nic.avoid"]


def test_an_operator_releases_again_what_did_not_return():
    """A return that came to nothing is ordered once more; one that is under way, or done, is left alone."""
    world = failed_over(World())
    world.deliver(alert(firing=False))
    world.release(Target("h0", "rail0"), "ada")
    (first,) = world.pending()
    world.release(Target("h0", "rail0"), "ada")
    assert world.pending() == [first]
    world.settle("failed", "pid 9: silent")
    world.release(Target("h0", "rail0"), "ada")
    (again,) = world.settle()
    assert (again.action, again.generation > first.generation) == ("nic.restore", True)
    assert world.phase() == "in_service"
    world.release(Target("h0", "rail0"), "ada")
    assert world.pending() == []


@pytest.mark.parametrize(
    ("instance", "device", "reason"),
    [
        ("", "rail0", "label instance is missing"),
        ("h0:9610", "", "label device is missing"),
        ("h0/../h1:9610", "rail0", "not the name"),
        ("h0:9610", "rail0/x", "not the name"),
        ("h0:9610", "rail\n0", "not the name"),
    ],
)
def test_labels_that_name_no_nic_give_no_target(instance, device, reason):
    """An alert without a usable target is an error with a reason, never "all"."""
    from fabricpulse.remediation.receiver.payload import Alert

    labels = {"alertname": "FabricNicFlapping", "instance": instance, "device": device}
    target = World().reconciler.observed.target_of(Alert(True, "f", START, labels))
    assert isinstance(target, str)
    assert reason in target


def test_membership_bounds_the_targets():
    """A label that names a NIC outside the fleet's inventory is turned away."""
    from fabricpulse.remediation.receiver.reconciler import Reconciler

    reconciler = Reconciler(config(), {"h0": frozenset({"rail0"})})
    assert reconciler.observed.target_of(alert()) == Target("h0", "rail0")
    assert isinstance(reconciler.observed.target_of(alert("h9")), str)
    assert isinstance(reconciler.observed.target_of(alert("h0", "rail9")), str)


def test_two_alerts_under_one_fingerprint_are_two():
    """Nothing of one goes over to the other: the host of a drain is no NIC without a name."""
    rules = "rules: [{alert: FabricNicFlapping, mode: auto}, {alert: Down, action: host.drain}]\n"
    world = World(config(rules + "guards: {settle_s: 5}\n"))
    world.deliver(alert())
    world.deliver(replace(alert(name="Down"), fingerprint=alert().fingerprint))
    assert [(e.alert, e.target.key) for e in world.state.episodes.values()] == [("Down", "h0/")]
    world.tick(20)
    assert (world.pending(), world.state.targets) == ([], {})


def test_an_alert_about_a_host_takes_out_no_nic_under_a_new_rule():
    """Its rule was changed while it fired: until it is reported again nobody knows which NIC it is about."""
    world = World(config("rules: [{alert: FabricNicFlapping, action: host.drain, mode: observe}]"))
    world.deliver(alert())
    world.config = config()
    world.reconciler.set_policy(world.config, {})
    world.tick(10)
    assert (world.pending(), world.state.targets) == ([], {})
    world.deliver(alert())
    assert [action.target.key for action in world.pending()] == ["h0/rail0"]


def test_more_alerts_than_are_remembered(monkeypatch):
    """What is known goes on and ends, what is new is left out, and both journal and status say so."""
    monkeypatch.setattr(episode_room, "MAX_EPISODES", 3)
    monkeypatch.setattr(health, "MAX_EPISODES", 3)
    world = World(hosts=2, nics=4)
    world.deliver(*(alert("h9", f"rail{i}") for i in range(5)))
    assert [e.target.device for e in world.state.episodes.values()] == ["rail0", "rail1", "rail2"]
    (line,) = (line for line in world.lines if line.event == "alerts_left_out")
    assert line.detail == {"alerts": 2, "remembered": 3}
    codes = [p.code for p in health.problems(world.config, world.state, world.now, "")]
    assert "too_many_alerts" in codes
    world.deliver(alert("h9", "rail0", firing=False), alert("h9", "rail4"))
    assert world.state.episodes["FabricNicFlapping/h9/rail0"].status == "resolved"
    world.poll([alert("h9", "rail1"), alert("h9", "rail2"), alert("h9", "rail3")])
    assert len(world.state.episodes) == 3
