"""What the failovers of a rule have come to, and whether it goes on acting. Pure."""

from collections.abc import Iterable

from fabricpulse.remediation.receiver.config import GuardConfig
from fabricpulse.remediation.receiver.model import Action, State

_MEASURED = ("recovered", "not_recovered")
_CAME_TO_NOTHING = ("failed", "rolled_back")


def stop_of(alert: str, actions: Iterable[Action], limits: GuardConfig, resumed_at: float) -> str:
    """Why the rule of this alert only observes: `harmful` when jobs stalled after its last failovers, `unhelpful` when
    none of more of them has a proven recovery; "" if it acts. What was before an operator resumed does not count.

    A failover on a host without traffic proves nothing either way, nor does one that nobody could measure.
    """
    tried = sorted(
        (a for a in actions if a.alert == alert and a.desired == "avoid" and a.created_at > resumed_at),
        key=lambda action: action.created_at,
    )
    stalled = [action.traffic == "stalled" for action in tried if action.traffic in ("moved", "stalled")]
    if len(stalled) >= limits.max_harmful and all(stalled[-limits.max_harmful :]):
        return "harmful"
    proven = [
        action.recovery == "recovered"
        for action in tried
        if action.recovery in _MEASURED or action.outcome in _CAME_TO_NOTHING
    ]
    if len(proven) >= limits.max_unproven and not any(proven[-limits.max_unproven :]):
        return "unhelpful"
    return ""


def stopped_rules(alerts: Iterable[str], state: State, limits: GuardConfig) -> dict[str, str]:
    """Rules that only observe, by the name of their alert, and why."""
    acted = {action.alert for action in state.actions.values()}
    found = {
        alert: stop_of(alert, state.actions.values(), limits, state.resumed_at)
        for alert in alerts
        if alert in acted
    }
    return {alert: why for alert, why in found.items() if why}
