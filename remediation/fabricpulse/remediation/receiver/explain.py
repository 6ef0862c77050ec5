"""Why a NIC is where it is, and what would be decided about it now. Reads; changes nothing."""

from typing import Any

import msgspec

from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.failover.decisions import Decisions
from fabricpulse.remediation.receiver.failover.host_traffic import HostTraffic
from fabricpulse.remediation.receiver.failover.recovery import RecoveryJudge
from fabricpulse.remediation.receiver.guards.guard_words import guard
from fabricpulse.remediation.receiver.guards.guards import Guards
from fabricpulse.remediation.receiver.observed_state import ObservedState
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.reconciler import Inventory
from fabricpulse.remediation.receiver.rule_config import LANE_ACTIONS, RuleConfig
from fabricpulse.remediation.receiver.state.hold import STOPPED, is_over, is_proven
from fabricpulse.remediation.receiver.state.in_flight import has_no_result, reports
from fabricpulse.remediation.receiver.state.model import Episode, Plan, State, Target, TargetState
from fabricpulse.remediation.receiver.state.transaction import Transaction


def explain(
    config: ReceiverConfig, inventory: Inventory, state: State, target: Target, now: float
) -> dict[str, Any]:
    """The target, its episodes and actions, and `next`: what is decided next, or what it waits for."""
    current = state.targets.get(target.key) or TargetState(target=target)
    episodes = sorted(
        (e for e in state.episodes.values() if e.target == target), key=lambda e: e.first_seen, reverse=True
    )
    actions = sorted(
        (a for a in state.actions.values() if a.target == target), key=lambda a: a.generation, reverse=True
    )
    agent = state.agents.get(target.host)
    return {
        "target": current,
        "health": agent.health.get(target.device, "not_observed") if agent is not None else "not_observed",
        "episodes": episodes,
        "actions": actions[:10],
        "next": _not_kept(state, current) + _next(config, inventory, state, target, now),
    }


def _not_kept(state: State, current: TargetState) -> str:
    last = state.actions.get(current.op_id)
    if last is None or not last.refused_at:
        return ""
    return f"jobs that came later use it, its agent refuses to take it out of them ({last.message}); "


def explain_alert(
    config: ReceiverConfig, inventory: Inventory, state: State, alert: Alert, now: float
) -> dict[str, Any]:
    """What an alert would come to if it were delivered now, alone: its target and `next`, or why it has none."""
    observed = ObservedState(config, inventory)
    target = observed.target_of(alert)
    about = {"alert": alert.name, "labels": alert.labels}
    if not isinstance(target, Target):
        if cause := observed.shared_by_nics(alert):
            why = f"no NIC with {cause} is taken out while it fires"
        else:
            why = f"no target: {target}" if target else "nothing: no rule names this alert"
        return about | {"target": None, "next": why}
    if any(rule.alert == alert.name and rule.action == "notify" for rule in config.rules):
        return about | {"target": target, "next": "the destinations of `notify` get an event"}
    transaction = Transaction(state)
    observed.on_alerts(transaction, [alert], now)
    episode = transaction.episodes.get(alert.fingerprint)
    rule = next(rule for rule in config.rules if rule.alert == alert.name)
    if target.device or episode is None or episode.status != "firing":
        return about | {"target": target, "next": _next(config, inventory, transaction.state, target, now)}
    old_enough = _without_settling(config)
    guards = Guards(old_enough, inventory, transaction, now)
    return about | {"target": target, "next": _next_of_host(guards, target, episode, rule)}


def _without_settling(config: ReceiverConfig) -> ReceiverConfig:
    """For which every alert is old enough: what forbids to act on a young one is known before its time."""
    guards = msgspec.structs.replace(config.guards, settle_s=0.0)
    changed: ReceiverConfig = msgspec.structs.replace(config, guards=guards)
    return changed


def _waiting(plan: Plan) -> str:
    if plan.approved_at:
        return f"{plan.action} is approved by {plan.approved_by} and waits for its guards"
    return f"{plan.action} waits for approval: fabricpulse remediation approve {plan.hash}"


def _next(config: ReceiverConfig, inventory: Inventory, state: State, target: Target, now: float) -> str:
    """What the decisions come to now, on a copy of the state; an alert that is too young is taken for old enough."""
    current = state.targets.get(target.key) or TargetState(target=target)
    last = state.actions.get(current.op_id)
    if last is not None and last.outcome == "pending" and not last.dry_run:
        return f"the agent is carrying out {current.op_id}"
    if current.phase == "avoiding":
        return _next_of_unknown(config, state, current, now)
    if current.phase == "manual":
        return "an operator must release it: it failed over too often"
    old_enough = _without_settling(config)
    transaction = Transaction(state)
    if current.blocked and current.blocked not in STOPPED:
        # What forbade it then is not what does now.
        transaction.put_target(msgspec.structs.replace(current, blocked=""))
    decisions = Decisions(old_enough, inventory, RecoveryJudge(old_enough, HostTraffic()))
    episode, asked = decisions.try_one(transaction, target, now)
    after = transaction.targets.get(target.key) or TargetState(target=target)
    done = {line.event for line in transaction.transitions if line.subject == target.key}
    if episode is not None:
        return _next_of_firing(config, current, after, episode, done, now)
    if current.phase == "restoring":
        why = f": {last.outcome}, {last.message}" if last is not None else ""
        silent = last is None or last.outcome in ("expired", "unknown")
        if silent and not reports(state, target.host, config.guards.agent_timeout_s, now):
            return f"its return is not known to be done{why}: {_no_agent(target.host)}"
        return f"its return came to nothing and counts as out{why}; the agent tries again, `release` orders it again"
    if current.phase != "avoided":
        return (
            f"nothing: {asked.alert} is for NICs that are out"
            if asked is not None
            else "nothing: no alert fires"
        )
    return _next_of_avoided(config, after, asked, done)


def _next_of_unknown(config: ReceiverConfig, state: State, current: TargetState, now: float) -> str:
    """Of a failover whose result has not come."""
    op_id, last = current.op_id, state.actions.get(current.op_id)
    if not reports(state, current.target.host, config.guards.agent_timeout_s, now):
        return f"nobody knows whether {op_id} is carried out: {_no_agent(current.target.host)}"
    if last is not None and has_no_result(Transaction(state), last, config.guards.agent_timeout_s, now):
        return (
            f"the agent has {op_id} and has not reported its result: it is undone after its hold, "
            "`release` undoes it now"
        )
    return f"nobody knows whether the agent has {op_id}: its next report shows that"


def _no_agent(host: str) -> str:
    return f"no agent reports from {host}; `forget {host}` if the host was retired"


def _next_of_firing(
    config: ReceiverConfig,
    current: TargetState,
    after: TargetState,
    episode: Episode,
    done: set[str],
    now: float,
) -> str:
    """Of a NIC about which an alert fires. after, done : its state and lines after the decision."""
    if current.phase == "avoided":
        return f"it stays out while {episode.alert} fires"
    mode = _mode_of(config, episode)
    if mode == "observe":
        return f"nothing: the rule of {episode.alert} only observes"
    if after.blocked:
        return f"{episode.alert} is not acted on: {guard(after.blocked)}"
    if now - episode.first_seen < config.guards.settle_s:
        return f"{episode.alert} is acted on once it is {config.guards.settle_s:g} s old, mode {mode}"
    if "awaiting_approval" in done:
        return f"{episode.alert}: a plan is made"
    if mode == "approve" and after.plan is not None:
        return _waiting(after.plan)
    return f"{episode.alert}: " + ("it is taken out of service" if "nic.avoid" in done else "dry run")


def _mode_of(config: ReceiverConfig, episode: Episode | None) -> str:
    """The mode of the rule of an alert; that of one that none names any more changes nothing."""
    return next(
        (rule.mode for rule in config.rules if episode is not None and rule.alert == episode.alert), "observe"
    )


def _next_of_avoided(
    config: ReceiverConfig, after: TargetState, asked: Episode | None, done: set[str]
) -> str:
    """Of a NIC that is out and for which no alert fires but one that wants it back."""
    if "nic.restore" in done:
        return "it goes back into service"
    if "manual" in done:
        return "an operator must release it: it failed over too often"
    if after.plan is not None and not after.blocked:
        return _waiting(after.plan)
    mode = _mode_of(config, asked)
    early = asked is not None and mode != "observe"
    if not is_over(after) and not (early and is_proven(after)):
        stopped = f", stopped: {after.blocked}" if after.blocked in STOPPED else ""
        may = f"; {asked.alert} may end it early, mode {mode}" if asked is not None and early else ""
        return f"hold: {after.healthy_s:.0f} s of {after.hold_s:.0f} s observed healthy{stopped}{may}"
    if asked is not None and mode == "dry_run" and not after.blocked:
        return f"{asked.alert}: dry run; the hold goes on"
    return f"it is kept out by the {guard(after.blocked)}" if after.blocked else "nothing"


def _next_of_host(guards: Guards, target: Target, episode: Episode, rule: RuleConfig) -> str:
    """Of an alert about a host or its lanes."""
    if rule.mode == "observe":
        return f"nothing: the rule of {episode.alert} only observes"
    if rule.action in LANE_ACTIONS:
        if reason := guards.lane_alert(episode):
            return f"{episode.alert} is not acted on: {guard(reason)}"
        return f"{episode.alert}: {rule.action} for its lanes that are measured to be slow, mode {rule.mode}"
    if reason := guards.host(target.host, episode):
        return f"{episode.alert}: {guard(reason)}"
    return f"{episode.alert}: the host is left, mode {rule.mode}"
