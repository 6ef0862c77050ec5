"""What was decided and is not on its way yet: it waits while people have stopped what led to it. Pure."""

from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.state.model import Action, Pause, State
from fabricpulse.remediation.receiver.state.transaction import Transaction

# Modes in which a rule changes something.
ACTING = ("approve", "auto")
# What is not valid for so long any more would be void before an agent has it, seconds.
_LEAST_VALID_S = 1.0


def is_paused(pause: Pause | None, now: float) -> bool:
    """Whether an operator has paused remediation, and the time that was said is not over."""
    return pause is not None and (pause.until == 0 or now < pause.until)


def valid_until(config: ReceiverConfig, action: Action) -> float:
    """The end of what a decision to take a NIC out is good for, whenever an agent fetches it; inf for any other one,
    which undoes, and for what is done and only kept up."""
    if action.desired != "avoid" or action.dry_run or action.outcome != "pending":
        return float("inf")
    return action.created_at + config.guards.intent_ttl_s


def withheld(config: ReceiverConfig, state: State, action: Action, now: float) -> bool:
    """Whether an agent is not handed this operation now: a failover without a result, once its alert has ended or its
    time is over, and while an operator has paused or its rule acts no more. Each ends if that takes long.

    An agent that has it keeps it, and reports what came of it; one whose answer was lost must not get it any more. A
    return is handed out always: it is what undoes.
    """
    if action.desired != "avoid" or action.dry_run:
        return False
    if action.outcome == "unknown":
        # The agent has it, or must not be given it any more: it was decided for what was then.
        return True
    if action.outcome != "pending":
        return False
    target = state.targets.get(action.target.key)
    least_s = min(_LEAST_VALID_S, config.guards.intent_ttl_s / 2)
    if (target is not None and target.quiet_since) or now >= valid_until(config, action) - least_s:
        return True
    acts = any(
        rule.alert == action.alert and rule.action == "nic.avoid" and rule.mode in ACTING
        for rule in config.rules
    )
    return is_paused(state.pause, now) or not acts


def never_arrived(state: Transaction, action: Action, result_timeout_s: float) -> bool:
    """Whether a failover without a result never reached its agent: the journal of an agent that reports does not have
    it. Without a report nobody knows."""
    if action.outcome != "unknown" or action.desired != "avoid" or action.dry_run:
        return False
    agent = state.agents.get(action.target.host)
    if agent is None or agent.seen_at - action.sent_at <= result_timeout_s:
        return False
    held = agent.held.get(action.target.device)
    return held is None or held.generation < action.generation


def reports(state: State | Transaction, host: str, agent_timeout_s: float, now: float) -> bool:
    """Whether the agent of this host reports now."""
    agent = state.agents.get(host)
    return agent is not None and now - agent.seen_at <= agent_timeout_s


def has_no_result(state: Transaction, action: Action, agent_timeout_s: float, now: float) -> bool:
    """Whether an agent that reports has a failover in its journal and says nothing of what came of it."""
    if action.outcome != "unknown" or action.desired != "avoid" or action.dry_run:
        return False
    if not reports(state, action.target.host, agent_timeout_s, now):
        return False
    held = state.agents[action.target.host].held.get(action.target.device)
    return held is not None and held.generation == action.generation
