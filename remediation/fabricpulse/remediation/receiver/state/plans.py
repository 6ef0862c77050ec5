"""Plans: what a rule with `mode: approve` would do, until an operator approves it.

An approval names the plan by its hash, which covers what would be done, to what, for which alert, in which hold, and
the target's generation: after any other decision about the target, for another episode of the alert, or once the hold
has begun anew, it approves nothing.
"""

import hashlib

import msgspec

from fabricpulse.remediation.receiver.state.model import ActionName, Episode, Plan, TargetState

# An approval that the guards have not let through by then counts no more.
APPROVAL_VALID_S = 900.0


def plan_of(
    current: TargetState, action: ActionName, episode: Episode | None, reason: str, now: float
) -> Plan:
    """The plan to do `action` to a target now."""
    because = [episode.alert, episode.fingerprint, episode.first_seen] if episode is not None else []
    bound = [current.target.key, action, current.generation, current.quiet_since, because]
    return Plan(
        hash=hashlib.sha256(msgspec.json.encode(bound)).hexdigest()[:16],
        action=action,
        alert=episode.alert if episode is not None else current.alert,
        reason=reason,
        created_at=now,
    )


def is_approved(plan: Plan, now: float) -> bool:
    """Whether an operator has approved it, lately enough."""
    return bool(plan.approved_at) and now - plan.approved_at <= APPROVAL_VALID_S
