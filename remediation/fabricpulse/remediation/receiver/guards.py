"""The guard rails: may this action be taken now? A pure function of state and time.

Each guard answers with a reason of a small closed set, which is also the label of
`fabricpulse_remediation_blocked_total`.
"""

from fabricpulse.remediation.receiver.config import GuardConfig
from fabricpulse.remediation.receiver.model import Breaker, State, Target, TargetState

REASONS = (
    "paused",
    "breaker",
    "frozen",
    "agent_lost",
    "last_nic",
    "capacity",
    "cooldown",
    "attempts",
    "in_flight",
    "rate",
    "shared_cause",
    "manual",
)


def check_failover(config: GuardConfig, state: State, target: Target, now: float) -> str:
    """The reason that forbids taking `target` out of service, or "" if nothing does."""
    current = state.targets.get(target.key) or TargetState(target=target)
    if reason := _common(config, state, target, now, "failover"):
        return reason
    if current.attempts and now - current.changed_at < config.cooldown_s:
        return "cooldown"
    if sum(1 for when in current.attempts if now - when <= config.attempts_window_s) >= config.max_attempts:
        return "attempts"
    if _shared_cause(config, state, target, now):
        return "shared_cause"
    return _capacity(config, state, target)


def check_failback(config: GuardConfig, state: State, target: Target, now: float) -> str:
    """The reason that forbids putting `target` back into service, or ""."""
    current = state.targets[target.key]
    if current.phase == "manual":
        return "manual"
    return _common(config, state, target, now, "failback")


def check_breaker(config: GuardConfig, state: State, direction: str, now: float) -> str:
    """Why the breaker of `direction` must trip now, or "".

    It trips on more hosts than both the absolute and the relative bound allow within the window: in a small fleet a
    fraction alone would trip at the first host, in a large one a count alone would trip at noise.
    """
    hosts = {
        key.partition("/")[0]
        for when, past, key in state.recent
        if past == direction and now - when <= config.breaker_window_s
    }
    limit = max(config.breaker_hosts, config.breaker_fraction * len(state.agents))
    if len(hosts) > limit:
        return (
            f"{direction} on {len(hosts)} hosts within {config.breaker_window_s:.0f} s, {limit:.0f} allowed"
        )
    return ""


def tripped(state: State, direction: str) -> Breaker | None:
    """The breaker of `direction` if it is tripped."""
    return state.breakers.get(direction)


def _common(config: GuardConfig, state: State, target: Target, now: float, direction: str) -> str:
    if state.pause is not None and (state.pause.until == 0 or now < state.pause.until):
        return "paused"
    if direction in state.breakers:
        return "breaker"
    lost = [agent for agent in state.agents.values() if now - agent.seen_at > config.agent_timeout_s]
    # When many agents are gone at once, it is the receiver that is cut off: hold still.
    if len(state.agents) > 2 and len(lost) / len(state.agents) > config.lost_agents_fraction:
        return "frozen"
    agent = state.agents.get(target.host)
    if agent is None or now - agent.seen_at > config.agent_timeout_s:
        return "agent_lost"
    if any(
        action.outcome == "pending" and action.target.host == target.host and not action.dry_run
        for action in state.actions.values()
    ):
        return "in_flight"
    recent = sum(1 for when, _, _ in state.recent if now - when <= 60)
    if recent >= max(config.burst, config.actions_per_minute):
        return "rate"
    return ""


def _shared_cause(config: GuardConfig, state: State, target: Target, now: float) -> bool:
    """Many hosts at once on one rail: a switch, not a NIC; moving every host's traffic would not mend it."""
    hosts = {
        episode.target.host
        for episode in state.episodes.values()
        if episode.status == "firing"
        and episode.target.device == target.device
        and now - episode.first_seen <= config.shared_cause_window_s
    }
    return len(hosts) >= config.shared_cause_count


def _capacity(config: GuardConfig, state: State, target: Target) -> str:
    """Never the last NIC, and never below the fraction; checked again by the agent and by the plugin."""
    devices = state.agents[target.host].devices
    if not devices:
        return ""  # no job there: nothing to lose, and the agent applies it to jobs that come
    remaining = [
        device
        for device, usable in devices.items()
        if device != target.device and usable and not _is_avoided(state, Target(target.host, device))
    ]
    if not remaining:
        return "last_nic"
    if len(remaining) < config.min_nics_in_service:
        return "capacity"
    if len(remaining) / len(devices.keys() | {target.device}) < config.min_fraction_in_service:
        return "capacity"
    return ""


def _is_avoided(state: State, target: Target) -> bool:
    current = state.targets.get(target.key)
    return current is not None and current.desired == "avoid"
