"""The hold of a NIC that is out of service: it ends after so many seconds in which the NIC was observed healthy.

Seconds without an observation do not count: an agent that does not report, a mesh exporter that does not answer,
alerting that is dead. After such an outage of the observers the last part of the hold is measured again, however much
was counted before. One observation of an unhealthy NIC starts the hold from zero.
"""

from typing import Literal

import msgspec

from fabricpulse.remediation.receiver.state.model import TargetState

Observation = Literal["healthy", "unhealthy", "not_observed", "alertmanager_lost", "alerting_dead"]

# What is measured again after an outage of the observers, at most.
REVALIDATE_S = 60.0
# Why a target is blocked while its hold does not advance.
STOPPED: tuple[Observation, ...] = ("unhealthy", "not_observed", "alertmanager_lost", "alerting_dead")


def start_hold(target: TargetState, now: float) -> TargetState:
    """The hold begins, with nothing counted."""
    return msgspec.structs.replace(target, quiet_since=now, healthy_s=0.0, healthy_at=0.0, blocked="")


def stop_hold(target: TargetState) -> TargetState:
    """It fires again: there is no hold any more, and no plan to end it."""
    return msgspec.structs.replace(
        target, quiet_since=0.0, healthy_s=0.0, healthy_at=0.0, blocked="", plan=None
    )


def observe(target: TargetState, observation: Observation, now: float, max_gap_s: float) -> TargetState:
    """One observation of a target in its hold. max_gap_s : between two healthy ones the time counts up to this gap."""
    if observation == "unhealthy":
        # Who has approved its return has seen it healthy.
        return msgspec.structs.replace(
            target, quiet_since=now, healthy_s=0.0, healthy_at=0.0, blocked=observation, plan=None
        )
    if observation != "healthy":
        return _unobserved(target, observation)
    if target.healthy_at and now - target.healthy_at > max_gap_s:
        target = _unobserved(target, "not_observed")
    counted = max(0.0, now - target.healthy_at) if target.healthy_at else 0.0
    blocked = "" if target.blocked in STOPPED else target.blocked
    return msgspec.structs.replace(
        target, healthy_s=target.healthy_s + counted, healthy_at=now, blocked=blocked
    )


def check_observed(target: TargetState, now: float, max_gap_s: float) -> TargetState:
    """Notices that the last observation is too long ago."""
    if target.healthy_at:
        return _unobserved(target, "not_observed") if now - target.healthy_at > max_gap_s else target
    if target.blocked in STOPPED or now - target.quiet_since <= max_gap_s:
        return target
    return _unobserved(target, "not_observed")


def is_over(target: TargetState) -> bool:
    """Whether the NIC was observed healthy for long enough, and is observed now."""
    return target.healthy_at > 0 and target.healthy_s >= target.hold_s


def is_proven(target: TargetState) -> bool:
    """Whether it was observed healthy for as long as anything needs to bring it back early, and is observed now."""
    return target.healthy_at > 0 and target.healthy_s >= min(REVALIDATE_S, target.hold_s)


def _unobserved(target: TargetState, reason: Observation) -> TargetState:
    left = min(REVALIDATE_S, target.hold_s)
    return msgspec.structs.replace(
        target,
        healthy_s=min(target.healthy_s, max(0.0, target.hold_s - left)),
        healthy_at=0.0,
        blocked=reason,
    )
