"""Flap damping. Failover is never delayed; going back is.

A NIC that has flapped once will likely flap again soon, and each return costs the job a stall, while a job on seven of
eight rails loses an eighth. So the hold starts long and doubles.
"""

import random

from fabricpulse.remediation.receiver.rule_config import HoldConfig


def hold_seconds(config: HoldConfig, failovers: tuple[float, ...], now: float, seed: str) -> float:
    """How long the target must be quiet before it may go back, in seconds.

    failovers : times of the target's failovers, the present one included, seconds since 1970. seed : makes the jitter
    the same after a restart.
    """
    recent = sum(1 for when in failovers if now - when <= config.window_s)
    hold = min(config.cap_s, config.initial_s * config.factor ** max(0, recent - 1))
    jitter = random.Random(seed).uniform(-config.jitter, config.jitter)  # noqa: S311 - spreads load, no secret
    return hold * (1 + jitter)


def is_sticky(config: HoldConfig, failovers: tuple[float, ...], now: float) -> bool:
    """True when the target has failed over so often that only a person puts it back."""
    return sum(1 for when in failovers if now - when <= config.sticky_window_s) >= config.sticky_count
