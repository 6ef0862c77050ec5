"""Repairs a state from the future: the clock was far ahead once, and the journal has kept its times."""

from typing import Any

import msgspec

from fabricpulse.remediation.receiver.state.model import Pause
from fabricpulse.remediation.receiver.state.transaction import Transaction

_TIMES = {
    "targets": ("quiet_since", "healthy_at", "changed_at", "retry_at"),
    "episodes": ("starts_at", "first_seen", "last_seen", "ended_at", "began_at"),
    "actions": (
        *("received_at", "created_at", "sent_at", "applied_at", "verified_at", "restored_at"),
        "refused_at",
    ),
    "rebalances": ("created_at", "changed_at", "approved_at"),
    "drains": ("created_at", "changed_at", "approved_at", "retry_at", "handed_off_at"),
}
_LISTS = {"targets": ("failovers", "attempts")}


def rebase(transaction: Transaction, now: float) -> int:
    """Moves every time after `now` to `now`; returns how many entries had one. Durations measured from them start anew.

    Without this a hold, cooldown or limit that began 400 days ahead would last for 400 days.
    """
    changed = 0
    for collection, put in (
        ("targets", transaction.put_target),
        ("episodes", transaction.put_episode),
        ("actions", transaction.put_action),
        ("rebalances", transaction.put_rebalance),
        ("drains", transaction.put_drain),
    ):
        for value in list(getattr(transaction, collection).values()):
            fixed: dict[str, Any] = {name: now for name in _TIMES[collection] if getattr(value, name) > now}
            for name in _LISTS.get(collection, ()):
                times = getattr(value, name)
                if any(time > now for time in times):
                    fixed[name] = tuple(min(time, now) for time in times)
            if fixed:
                put(msgspec.structs.replace(value, **fixed))
                changed += 1
    recent = tuple((min(at, now), direction, key) for at, direction, key in transaction.recent)
    buckets = {
        name: msgspec.structs.replace(bucket, at=min(bucket.at, now))
        for name, bucket in transaction.buckets.items()
    }
    pause: Pause | None = transaction.pause
    if pause is not None and pause.since > now:
        until = now + (pause.until - pause.since) if pause.until else 0.0
        pause = msgspec.structs.replace(pause, since=now, until=until)
    resumed_at = min(transaction.resumed_at, now)
    for name, value in (
        ("recent", recent), ("buckets", buckets), ("pause", pause), ("resumed_at", resumed_at),
    ):  # fmt: skip
        if value != getattr(transaction, name):
            transaction.set(**{name: value})
            changed += 1
    return changed
