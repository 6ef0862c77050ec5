"""What to do: compares what is known with what is desired, and decides.

Deciding twice on the same knowledge decides nothing new, so duplicates, restarts and lost answers are harmless.

    in_service ── an episode fires, guards allow ──▶ avoiding ── agent: every process shows it ──▶ avoided
        ▲                                              │ refused, failed, or jobs stall: roll back    │ quiet for the
        │                                              ▼                                              │ hold, guards
        └──────────── agent: every process shows it ── restoring ◀────────────────────────────────────┘ allow
    `manual`: failed over too often; it stays out until a person releases it.

`resolved` is only permission to start the hold; a new firing starts it again from zero.
"""

from collections.abc import Callable
from typing import Any

from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.damping import hold_seconds, is_sticky
from fabricpulse.remediation.receiver.guards import PASSING, Guards
from fabricpulse.remediation.receiver.model import (
    Action,
    ActionName,
    Breaker,
    Direction,
    Episode,
    TargetState,
)
from fabricpulse.remediation.receiver.step import Step, with_changes

# Ended episodes and actions that stay in memory; the journal keeps all.
_KEEP_ENDED = 500
_FORGET_AGENT_S = 86_400.0
_MODE_RANK = {"observe": 0, "dry_run": 1, "auto": 2}


class Decisions:
    """The decisions, for one configuration."""

    def __init__(self, config: ReceiverConfig, nics: dict[str, frozenset[str]]) -> None:
        self._config = config
        self._nics = nics
        self._rules = {rule.alert: rule for rule in config.rules}

    def reconcile(self, step: Step, now: float) -> None:
        """Decides whatever is to be decided at `now`."""
        self._expire(step, now)
        self._forget(step, now)
        firing: dict[str, Episode] = {}
        for episode in step.episodes.values():
            if episode.status == "firing":
                key = episode.target.key
                firing[key] = max(firing.get(key, episode), episode, key=self._weight)
        if not firing and not step.targets:
            return
        guards = Guards(self._config, self._nics, step.state, now)
        for key, current in list(step.targets.items()):
            if key not in firing:
                self._quiet(step, guards, current, now)
        # Whoever has waited longest goes first.
        for key, episode in sorted(firing.items(), key=lambda item: item[1].first_seen):
            self._firing(
                step, guards, step.targets.get(key) or TargetState(target=episode.target), episode, now
            )

    def _weight(self, episode: Episode) -> tuple[int, float]:
        rule = self._rules.get(episode.alert)
        return (_MODE_RANK[rule.mode] if rule is not None else -1, -episode.first_seen)

    def _firing(self, step: Step, guards: Guards, current: TargetState, episode: Episode, now: float) -> None:
        if current.quiet_since:
            current = with_changes(current, quiet_since=0.0, blocked="")
            step.put_target(current)
            step.log(current.target.key, "hold_ended", reason="it fires again")
        last = step.actions.get(current.op_id)
        # A return that has gone wrong does not forbid to leave again.
        stuck = current.phase == "restoring" and last is not None and last.outcome != "pending"
        if current.desired != "in_service" or not (current.phase == "in_service" or stuck):
            return
        rule = self._rules.get(episode.alert)
        if rule is None or rule.mode == "observe":
            return
        said = last is not None and last.dry_run and last.created_at >= episode.first_seen
        if rule.mode == "dry_run" and said:
            return
        if reason := guards.failover(current, episode):
            self._block(step, current, reason)
            return
        why = f"{episode.alert} is firing"
        if rule.mode == "dry_run":
            action = self._new_action(current, rule.action, why, now, episode=episode, dry_run=True)
            step.put_action(action)
            step.put_target(
                with_changes(current, generation=action.generation, op_id=action.op_id, blocked="")
            )
            step.log(current.target.key, "would_avoid", op_id=action.op_id, alert=episode.alert)
            return
        if reason := guards.breaker("failover", current.target.host):
            self._trip(step, "failover", reason, now)
            self._block(step, current, "breaker")
            return
        failovers = (*current.failovers, now)
        hold = self._config.hold_of(episode.alert)
        seed = f"{current.target.key}/{len(failovers)}/{now!r}"
        current = with_changes(
            current,
            alert=episode.alert,
            failovers=_newest_times(failovers),
            attempts=_newest_times((*current.attempts, now)),
            hold_s=hold_seconds(hold, failovers, now, seed),
            needs_probe=False,
        )
        self._take(step, guards, "failover", current, now)
        self.decide(step, current, "nic.avoid", why, now, episode=episode)

    def _quiet(self, step: Step, guards: Guards, current: TargetState, now: float) -> None:
        if current.desired != "avoid":
            if not current.generation:
                step.drop("targets", [current.target.key])  # it was never more than blocked
            elif current.blocked:
                step.put_target(with_changes(current, blocked=""))
        elif not current.quiet_since:
            step.put_target(with_changes(current, quiet_since=now, blocked=""))
            step.log(current.target.key, "hold_started", hold_s=round(current.hold_s, 1))
        elif now - current.quiet_since >= current.hold_s and current.phase == "avoided":
            self._end_hold(step, guards, current, now)

    def _end_hold(self, step: Step, guards: Guards, current: TargetState, now: float) -> None:
        if is_sticky(self._config.hold_of(current.alert), current.failovers, now):
            step.put_target(with_changes(current, phase="manual", changed_at=now, blocked="manual"))
            step.log(current.target.key, "manual", reason="failed over too often; release it by hand")
            return
        if reason := guards.failback(current):
            self._block(step, current, reason)
            return
        if reason := guards.breaker("failback", current.target.host):
            self._trip(step, "failback", reason, now)
            self._block(step, current, "breaker")
            return
        self._take(step, guards, "failback", current, now)
        self.decide(step, current, "nic.restore", f"quiet for {now - current.quiet_since:.0f} s", now)

    def decide(
        self,
        step: Step,
        current: TargetState,
        action: ActionName,
        reason: str,
        now: float,
        episode: Episode | None = None,
    ) -> None:
        """Decides on `action`: a new generation of the target, to be carried out by the agent.

        Also without the guards' leave, where something is undone: rolled back, or released by a person.
        """
        pending = step.actions.get(current.op_id)
        if pending is not None and pending.outcome == "pending":
            step.put_action(with_changes(pending, outcome="superseded", message=reason))
            step.log(current.target.key, "superseded", op_id=pending.op_id)
        made = self._new_action(current, action, reason, now, episode=episode)
        step.put_action(made)
        avoid = made.desired == "avoid"
        step.put_target(
            with_changes(
                current,
                desired=made.desired,
                phase="avoiding" if avoid else "restoring",
                generation=made.generation,
                op_id=made.op_id,
                avoid_op_id=made.op_id if avoid else current.avoid_op_id,
                quiet_since=0.0,
                changed_at=now,
                needs_probe=False,
                blocked="",
            )
        )
        step.log(current.target.key, action, op_id=made.op_id, generation=made.generation, reason=reason)

    def _take(
        self, step: Step, guards: Guards, direction: Direction, current: TargetState, now: float
    ) -> None:
        bucket = guards.took(direction, current.target)
        state = step.state
        step.set(
            recent=(*state.recent, (now, direction, current.target.key)),
            buckets={**state.buckets, direction: bucket},
        )

    @staticmethod
    def _new_action(
        current: TargetState,
        action: ActionName,
        reason: str,
        now: float,
        episode: Episode | None = None,
        dry_run: bool = False,
    ) -> Action:
        # From the clock, not from 1: a journal that is lost and begun anew must not be taken for the past.
        generation = max(current.generation + 1, int(now * 1000))
        return Action(
            op_id=f"{current.target.key}#{generation}",
            target=current.target,
            action=action,
            desired="avoid" if action == "nic.avoid" else "in_service",
            generation=generation,
            reason=reason,
            alert=episode.alert if episode is not None else current.alert,
            received_at=episode.first_seen if episode is not None else 0.0,
            created_at=now,
            dry_run=dry_run,
        )

    @staticmethod
    def _trip(step: Step, direction: Direction, reason: str, now: float) -> None:
        breakers = step.state.breakers
        if direction not in breakers:
            breaker = Breaker(direction=direction, tripped_at=now, reason=reason)
            step.set(breakers={**breakers, direction: breaker})
            step.log("fleet", "breaker_tripped", direction=direction, reason=reason)

    @staticmethod
    def _block(step: Step, current: TargetState, reason: str) -> None:
        if current.blocked == reason or (current.blocked in PASSING and reason in PASSING):
            return
        step.put_target(with_changes(current, blocked=reason))
        step.log(current.target.key, "blocked", reason=reason)

    def _expire(self, step: Step, now: float) -> None:
        limits = self._config.guards
        for action in [a for a in step.actions.values() if a.outcome == "pending"]:
            current = step.targets[action.target.key]
            if not action.sent_at and now - action.created_at > limits.intent_ttl_s:
                step.put_action(
                    with_changes(action, outcome="expired", message="no agent fetched it in time")
                )
                step.log(action.target.key, "expired", op_id=action.op_id)
                if current.op_id == action.op_id and action.desired == "avoid" and not action.dry_run:
                    self.decide(step, current, "nic.restore", "no agent fetched it in time", now)
            elif action.sent_at and now - action.sent_at > limits.result_timeout_s:
                # It may have been done. Nothing is sent again by guess: the agent says what is, when it is back.
                step.put_action(
                    with_changes(
                        action, outcome="unknown", message="the agent has not said what became of it"
                    )
                )
                step.log(action.target.key, "unknown", op_id=action.op_id)

    def _forget(self, step: Step, now: float) -> None:
        keep_s = self._config.guards.breaker_window_s
        recent = tuple(entry for entry in step.state.recent if now - entry[0] <= keep_s)
        if len(recent) != len(step.state.recent):
            step.set(recent=recent)
        step.drop(
            "episodes", _oldest(step.episodes, lambda e: e.status != "firing", lambda e: float(e.last_seen))
        )
        current = {op for target in step.targets.values() for op in (target.op_id, target.avoid_op_id)}
        step.drop(
            "actions",
            _oldest(
                step.actions,
                lambda a: a.outcome != "pending" and a.op_id not in current,
                lambda a: float(a.created_at),
            ),
        )
        gone = [host for host, agent in step.agents.items() if now - agent.seen_at > _FORGET_AGENT_S]
        step.drop("agents", gone)


def _oldest(values: Any, ended: Callable[[Any], bool], when: Callable[[Any], float]) -> list[str]:
    """Keys of the ended ones beyond the newest _KEEP_ENDED."""
    if len(values) <= _KEEP_ENDED:
        return []
    keys = sorted((key for key, value in values.items() if ended(value)), key=lambda key: when(values[key]))
    return keys[: max(0, len(keys) - _KEEP_ENDED)]


def _newest_times(times: tuple[float, ...]) -> tuple[float, ...]:
    return times[-32:]
