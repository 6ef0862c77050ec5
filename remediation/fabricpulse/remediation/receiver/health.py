"""What is wrong with remediation as a whole: shown by `fabricpulse remediation status`, which exits with 3 on it."""

import msgspec

from fabricpulse.core.output import printable
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.guards.rule_record import FLEET, stopped_rules
from fabricpulse.remediation.receiver.rebalance.history import unhelpful
from fabricpulse.remediation.receiver.rule_config import LANE_ACTIONS
from fabricpulse.remediation.receiver.state.episode_room import MAX_EPISODES
from fabricpulse.remediation.receiver.state.in_flight import ACTING, reports
from fabricpulse.remediation.receiver.state.model import Drain, Outcome, Rebalance, State
from fabricpulse.remediation.receiver.state.retention import adoption_full
from fabricpulse.remediation.receiver.state.transaction import Transaction

# A return that has come to this is not under way any more. Of the silent ones nobody was there to do it, which is
# another problem, or to say so: an agent that reports is handed them again.
_ENDED: tuple[Outcome, ...] = ("refused", "failed")
_SILENT: tuple[Outcome, ...] = ("expired", "unknown")


# Of the problems that a state can have; beside them there is `not_ready`.
CODES = (
    "adoption_full",
    "agents_gone",
    "agents_lost",
    "alerting_dead",
    "alertmanager_lost",
    "awaiting_approval",
    "breaker_tripped",
    "drain_failed",
    "journal_edited",
    "manual",
    "no_agents",
    "not_kept",
    "not_returned",
    "paused",
    "rebalancing_stopped",
    "result_unknown",
    "rollback_failed",
    "rule_stopped",
    "too_many_alerts",
)


class Problem(msgspec.Struct, frozen=True):
    """code : of a closed set, for scripts. message : one clause for people."""

    code: str
    message: str


def problems(
    config: ReceiverConfig, state: State, now: float, not_ready: str, edited: str = ""
) -> list[Problem]:
    """Everything that keeps remediation from acting, or that waits for an operator; [] if nothing does."""
    found = []
    if not_ready:
        found.append(Problem("not_ready", not_ready))
    if edited:
        found.append(Problem("journal_edited", f"the journal was edited: {edited}"))
    if state.pause is not None:
        found.append(Problem("paused", f"paused by {state.pause.owner}: {state.pause.reason}"))
    found += [
        Problem("breaker_tripped", f"the {breaker.direction} breaker is tripped: {breaker.reason}")
        for breaker in state.breakers.values()
    ]
    if not state.agents:
        found.append(Problem("no_agents", "no agent has reported: nothing can be carried out"))
    lost = [a.host for a in state.agents.values() if now - a.seen_at > config.guards.agent_timeout_s]
    # Of hosts that nobody remembers any more there is only what was decided.
    absent = {t.target.host for t in state.targets.values() if t.phase in ("avoiding", "restoring")}
    absent -= state.agents.keys()
    retired = "; fabricpulse remediation forget HOST if one was retired"
    if absent and state.agents and _is_long_up(config, state, now):
        text = f"no agent reports from {_some(list(absent))}, of which NICs count as out or are to return{retired}"
        found.append(Problem("agents_gone", text))
    if lost:
        found.append(
            Problem(
                "agents_lost",
                f"{len(lost)} of {len(state.agents)} agents do not report: {_some(lost)}{retired}",
            )
        )
    if len(state.episodes) >= MAX_EPISODES:
        text = f"{len(state.episodes)} alerts are remembered, and new ones left out: who sends so many?"
        found.append(Problem("too_many_alerts", text))
    if full := adoption_full(state):
        text = f"{full} are taken over, and no more: after a loss of the journal others would go unnoticed"
        found.append(Problem("adoption_full", text))
    if config.alertmanagers and now - state.polled_at > config.poll_timeout_s:
        found.append(Problem("alertmanager_lost", "the Alertmanagers do not answer"))
    if state.watchdog == "lost":
        found.append(Problem("alerting_dead", f"the alert {config.watchdog} that always fires is gone"))
    alerts = [rule.alert for rule in config.rules if rule.action == "nic.avoid"]
    for alert, stops in stopped_rules(alerts, state, config.guards).items():
        harm = "jobs stalled after its last failovers"
        why, where = stops.get(FLEET, ""), ""
        if not why:
            why, where = stops[min(stops)], f" on {_some(list(stops))}"
        what = harm if why == "harmful" else "none of its last failovers has a proven recovery"
        text = f"{alert} only observes{where}: {what} there" if where else f"{alert} only observes: {what}"
        text += "; correct the rule, then fabricpulse remediation resume"
        found.append(Problem("rule_stopped", text))
    manual = [t.target.key for t in state.targets.values() if t.phase == "manual"]
    if manual:
        found.append(Problem("manual", f"an operator must release {_some(manual)}"))
    waiting = [t.target.key for t in state.targets.values() if t.plan is not None and not t.plan.approved_at]
    plans: list[Drain | Rebalance] = [*state.drains.values(), *state.rebalances.values()]
    waiting += [
        plan.host if isinstance(plan, Drain) else f"lanes of {printable(plan.workload)}"
        for plan in plans
        if plan.phase == "awaiting_approval" and not plan.approved_at
    ]
    if waiting:
        found.append(Problem("awaiting_approval", f"plans wait for approval: {_some(waiting)}"))
    timeout_s = config.guards.agent_timeout_s
    stuck = [
        target.target.key
        for target in state.targets.values()
        if target.phase == "restoring"
        and (last := state.actions.get(target.op_id))
        and (
            last.outcome in _ENDED
            or (last.outcome in _SILENT and reports(state, target.target.host, timeout_s, now))
        )
    ]
    if stuck:
        text = f"not back in service, though ordered, and counted as out: {_some(stuck)}; see explain, or release"
        found.append(Problem("not_returned", text))
    unknown = [
        target.target.key
        for target in state.targets.values()
        if target.phase == "avoiding"
        and (last := state.actions.get(target.op_id))
        and last.outcome == "unknown"
    ]
    if unknown:
        text = (
            f"not known whether they are out, and counted as out: {_some(unknown)}; see explain, or release"
        )
        found.append(Problem("result_unknown", text))
    used = [
        f"{key} ({printable(last.message)})"
        for key, target in state.targets.items()
        if target.desired == "avoid" and (last := state.actions.get(target.op_id)) and last.refused_at
    ]
    if used:
        found.append(Problem("not_kept", f"ordered out, and in use by jobs that came later: {_some(used)}"))
    failed = [drain.host for drain in state.drains.values() if drain.phase == "failed"]
    if failed:
        text = f"the command to drain has failed, and they count as drained: {_some(failed)}; release or forget them"
        found.append(Problem("drain_failed", text))
    away = [
        printable(plan.workload)
        for plan in state.rebalances.values()
        if plan.phase == "rollback_failed" and plan.changed_at > state.resumed_at
    ]
    if away:
        text = f"lanes are not known to be back on their paths: {_some(list(set(away)))}; re-path them by hand or "
        text += "restart the job, then fabricpulse remediation resume"
        found.append(Problem("rollback_failed", text))
    moves = config.rebalance.mode in ACTING or any(
        rule.action in LANE_ACTIONS and rule.mode in ACTING for rule in config.rules
    )
    if moves and unhelpful(Transaction(state)) >= config.rebalance.max_unhelpful:
        text = "no lanes are moved: the last plans did not help; fabricpulse remediation resume"
        found.append(Problem("rebalancing_stopped", text))
    return found


def _is_long_up(config: ReceiverConfig, state: State, now: float) -> bool:
    """Whether every agent that runs had the time to report since this receiver started."""
    return any(now - agent.first_seen > config.guards.agent_timeout_s for agent in state.agents.values())


def _some(names: list[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
