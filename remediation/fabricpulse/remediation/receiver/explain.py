"""Why a NIC is where it is, and what would be decided about it now. Reads; changes nothing."""

from typing import Any

from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.guards.guard_words import guard
from fabricpulse.remediation.receiver.guards.guards import SETTLING, Guards
from fabricpulse.remediation.receiver.observed_state import ObservedState
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.reconciler import Inventory
from fabricpulse.remediation.receiver.rule_config import LANE_ACTIONS, MODES, RuleConfig
from fabricpulse.remediation.receiver.state.hold import is_over, is_proven
from fabricpulse.remediation.receiver.state.model import Episode, Plan, State, Target, TargetState
from fabricpulse.remediation.receiver.state.transaction import Transaction


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
    after = explain(config, inventory, transaction.state, target, now)
    return about | {"target": target, "next": after["next"]}


def _waiting(plan: Plan) -> str:
    if plan.approved_at:
        return f"{plan.action} is approved by {plan.approved_by} and waits for its guards"
    return f"{plan.action} waits for approval: fabricpulse remediation approve {plan.hash}"


def _next(
    config: ReceiverConfig, guards: Guards, current: TargetState, episodes: list[Episode], now: float
) -> str:
    if current.phase in ("avoiding", "restoring"):
        return f"the agent is carrying out {current.op_id}"
    if current.phase == "manual":
        return "an operator must release it: it failed over too often"
    rules = {rule.alert: rule for rule in config.rules}
    firing: list[Episode] = []
    asked: list[tuple[Episode, RuleConfig]] = []
    for episode in episodes:
        if episode.status == "firing":
            rule = rules.get(episode.alert)
            if rule is not None and rule.action == "nic.restore":
                asked.append((episode, rule))
            else:
                firing.append(episode)
    if current.phase == "avoided":
        if firing:
            return f"it stays out while {firing[0].alert} fires"
        return _next_of_avoided(guards, current, asked)
    if not firing:
        if asked:
            return f"nothing: {asked[0][0].alert} is for NICs that are out"
        return "nothing: no alert fires"
    for episode in firing:
        rule = rules.get(episode.alert)
        if rule is not None and rule.mode != "observe":
            return _next_by_rule(config, guards, current, episode, rule)
    return f"nothing: the rule of {firing[0].alert} only observes"


def _next_of_avoided(guards: Guards, current: TargetState, asked: list[tuple[Episode, RuleConfig]]) -> str:
    """Of a NIC that is out and for which no alert fires but those in `asked`, which want it back."""
    asks = max((rule.mode for _, rule in asked), key=MODES.index, default="observe")
    if not is_over(current) and (asks == "observe" or not is_proven(current)):
        stopped = f", stopped: {current.blocked}" if current.blocked else ""
        early = f"; {asked[0][0].alert} may end it early, mode {asks}" if asks != "observe" else ""
        return f"hold: {current.healthy_s:.0f} s of {current.hold_s:.0f} s observed healthy{stopped}{early}"
    if reason := guards.failback(current):
        return f"it is kept out by the {guard(reason)}"
    if not is_over(current) and asks == "dry_run":
        return f"{asked[0][0].alert}: dry run; the hold goes on"
    return _waiting(current.plan) if current.plan is not None else "it goes back into service"


def _next_by_rule(
    config: ReceiverConfig, guards: Guards, current: TargetState, episode: Episode, rule: RuleConfig
) -> str:
    if rule.action in LANE_ACTIONS:
        reason = guards.lane_alert(episode)
        if reason and reason != SETTLING:
            return f"{episode.alert} is not acted on: {guard(reason)}"
        return f"{episode.alert}: {rule.action} for its lanes that are measured to be slow, mode {rule.mode}"
    if rule.action == "host.drain":
        reason = guards.host(current.target.host, episode)
        if reason and reason != SETTLING:
            return f"{episode.alert}: {guard(reason)}"
        return f"{episode.alert}: the host is left, mode {rule.mode}"
    reason = guards.failover(current, episode)
    if reason == SETTLING:
        return f"{episode.alert} is acted on once it is {config.guards.settle_s:g} s old, mode {rule.mode}"
    if reason:
        return f"{episode.alert} is not acted on: {guard(reason)}"
    if rule.mode == "approve":
        return _waiting(current.plan) if current.plan is not None else f"{episode.alert}: a plan is made"
    return f"{episode.alert}: " + ("it is taken out of service" if rule.mode == "auto" else "dry run")
