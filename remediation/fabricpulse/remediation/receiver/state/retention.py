"""What is forgotten: the journal keeps all, memory the ended ones that are new."""

from collections.abc import Callable
from typing import Any

from fabricpulse.remediation.receiver.state.transaction import Transaction

# Ended episodes and actions that stay in memory.
_KEEP_ENDED = 500
_FORGET_AGENT_S = 86_400.0


def forget(transaction: Transaction, recent_s: float, now: float) -> None:
    """Drops what is too old. recent_s : how long the times of actions count."""
    recent = tuple(entry for entry in transaction.recent if now - entry[0] <= recent_s)
    if len(recent) != len(transaction.recent):
        transaction.set(recent=recent)
    transaction.drop(
        "episodes",
        _oldest(transaction.episodes, lambda e: e.status != "firing", lambda e: float(e.last_seen)),
    )
    current = {op for target in transaction.targets.values() for op in (target.op_id, target.avoid_op_id)}
    transaction.drop(
        "actions",
        _oldest(
            transaction.actions,
            lambda a: a.outcome != "pending" and a.op_id not in current,
            lambda a: float(a.created_at),
        ),
    )
    gone = [host for host, agent in transaction.agents.items() if now - agent.seen_at > _FORGET_AGENT_S]
    transaction.drop("agents", gone)


def _oldest(values: Any, ended: Callable[[Any], bool], when: Callable[[Any], float]) -> list[str]:
    """Keys of the ended ones beyond the newest _KEEP_ENDED."""
    if len(values) <= _KEEP_ENDED:
        return []
    keys = sorted((key for key, value in values.items() if ended(value)), key=lambda key: when(values[key]))
    return keys[: max(0, len(keys) - _KEEP_ENDED)]
