"""What was decided and is not on its way yet: it waits while people have stopped what led to it. Pure."""

from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.state.model import Action, Pause, State

# Modes in which a rule changes something.
ACTING = ("approve", "auto")


def is_paused(pause: Pause | None, now: float) -> bool:
    """Whether an operator has paused remediation, and the time that was said is not over."""
    return pause is not None and (pause.until == 0 or now < pause.until)


def withheld(config: ReceiverConfig, state: State, action: Action, now: float) -> bool:
    """Whether an agent is not handed this operation now: a failover that none has fetched, while an operator has paused
    or its rule acts no more. It expires if that takes long.

    A return is handed out always: it is what undoes. So is what an agent may have already.
    """
    if action.outcome != "pending" or action.sent_at or action.desired != "avoid" or action.dry_run:
        return False
    acts = any(
        rule.alert == action.alert and rule.action == "nic.avoid" and rule.mode in ACTING
        for rule in config.rules
    )
    return is_paused(state.pause, now) or not acts
