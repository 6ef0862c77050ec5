"""Why a NIC is where it is, and what would be decided about it now. Reads; changes nothing."""

from collections.abc import Iterable
from typing import Any

from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.guards import SETTLING, Guards
from fabricpulse.remediation.receiver.hold import is_over, is_proven
from fabricpulse.remediation.receiver.model import Episode, Plan, State, Target, TargetState
from fabricpulse.remediation.receiver.observed_state import ObservedState
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.reconciler import Inventory
from fabricpulse.remediation.receiver.rule_config import LANE_ACTIONS, MODES
from fabricpulse.remediation.receiver.transaction import Transaction


def explain(
    config: ReceiverConfig, inventory: Inventory, state: State, target: Target, now: float
) -> dict[str, Any]:
    """The target, its episodes and actions, and `next`: what is decided next, or what it waits for."""
    transaction = Transaction(state)
    guards = Guards(config, inventory, transaction, now)
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
        "next": _next(config, guards, current, episodes, now),
    }


def explain_alerts(
    config: ReceiverConfig, inventory: Inventory, state: State, alerts: Iterable[Alert], now: float
) -> list[dict[str, Any]]:
    """What each alert would come to if it were delivered now, alone: its target and `next`, or why it has none."""
    observed = ObservedState(config, inventory)
    found: list[dict[str, Any]] = []
    for alert in alerts:
        target = observed.target_of(alert)
        about = {"alert": alert.name, "labels": alert.labels}
        if not isinstance(target, Target):
            if cause := observed.shared_by_nics(alert):
                why = f"no NIC with {cause} is taken out while it fires"
            else:
                why = f"no target: {target}" if target else "nothing: no rule names this alert"
            found.append(about | {"target": None, "next": why})
            continue
        if any(rule.alert == alert.name and rule.action == "notify" for rule in config.rules):
            found.append(about | {"target": target, "next": "those in `notify` are told"})
            continue
        transaction = Transaction(state)
        observed.on_alerts(transaction, [alert], now)
        after = explain(config, inventory, transaction.state, target, now)
        found.append(about | {"target": target, "next": after["next"]})
    return found


def _waiting(plan: Plan) -> str:
    if plan.approved_at:
        return f"{plan.action} is approved by {plan.approved_by} and waits for its guards"
    return f"{plan.action} waits for approval: fabricpulse remediation approve {plan.hash}"


def _next(
    config: ReceiverConfig, guards: Guards, current: TargetState, episodes: list[Episode], now: float
) -> str:
    rules = {rule.alert: rule for rule in config.rules}
    firing: list[Episode] = []
    asked: list[Episode] = []
    for episode in episodes:
        if episode.status == "firing":
            rule = rules.get(episode.alert)
            (asked if rule is not None and rule.action == "nic.restore" else firing).append(episode)
    if current.phase in ("avoiding", "restoring"):
        return f"the agent is carrying out {current.op_id}"
    if current.phase == "manual":
        return "an operator must release it: it failed over too often"
    if current.phase == "avoided":
        if firing:
            return f"it stays out while {firing[0].alert} fires"
        modes = [rules[episode.alert].mode for episode in asked]
        asks = max(modes, key=MODES.index, default="observe")
        if not is_over(current) and (asks == "observe" or not is_proven(current)):
            stopped = f", stopped: {current.blocked}" if current.blocked else ""
            early = f"; {asked[0].alert} may end it early, mode {asks}" if asks != "observe" else ""
            return (
                f"hold: {current.healthy_s:.0f} s of {current.hold_s:.0f} s observed healthy{stopped}{early}"
            )
        reason = guards.failback(current)
        if not is_over(current) and asks == "dry_run" and not reason:
            return f"{asked[0].alert}: dry run; the hold goes on"
        if not reason and current.plan is not None:
            return _waiting(current.plan)
        return f"it is kept out by the guard {reason}" if reason else "it goes back into service"
    if not firing:
        return f"nothing: {asked[0].alert} is for NICs that are out" if asked else "nothing: no alert fires"
    for episode in firing:
        rule = rules.get(episode.alert)
        mode = rule.mode if rule is not None else "observe"
        if rule is None or mode == "observe":
            continue
        if rule.action in LANE_ACTIONS:
            reason = guards.lane_alert(episode)
            if reason and reason != SETTLING:
                return f"{episode.alert} is not acted on: guard {reason}"
            return f"{episode.alert}: {rule.action} for its lanes that are measured to be slow, mode {mode}"
        if rule.action == "host.drain":
            reason = guards.host(current.target.host, episode)
            what = f"guard {reason}" if reason and reason != SETTLING else f"the host is left, mode {mode}"
            return f"{episode.alert}: {what}"
        reason = guards.failover(current, episode)
        if reason == SETTLING:
            return f"{episode.alert} is acted on once it is {config.guards.settle_s:g} s old"
        if reason:
            return f"{episode.alert} is not acted on: guard {reason}"
        if mode == "approve":
            return _waiting(current.plan) if current.plan is not None else f"{episode.alert}: a plan is made"
        return (
            f"{episode.alert}: it is taken out of service" if mode == "auto" else f"{episode.alert}: dry run"
        )
    return f"nothing: the rule of {firing[0].alert} only observes"
