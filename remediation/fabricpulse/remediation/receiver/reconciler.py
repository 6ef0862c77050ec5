"""From episodes to desired state. Pure: `(state, event, now)` in, a new state and the transitions out.

Theory of operation. Alertmanager delivers at least once, late, out of order, and forgets; so nothing is done because a
message came. Messages only change what is known (episodes); `reconcile` then compares what is known with what is
desired and decides. Deciding twice on the same knowledge decides nothing new, so duplicates, restarts and a lost
answer are harmless.

    in_service ── episode fires, guards allow ──▶ avoiding ── agent: applied and verified ──▶ avoided
        ▲                                            │ refused or failed: rolled back             │ quiet for the hold,
        └──────────── agent: applied ── restoring ◀──┴────────────────────────────────────────────┘ guards allow
    `manual`: failed over too often; stays avoided until a person releases it.

`resolved` is only permission to start the hold; a new firing starts it again from zero.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fabricpulse.remediation.receiver import guards
from fabricpulse.remediation.receiver.config import ReceiverConfig, RuleConfig
from fabricpulse.remediation.receiver.damping import hold_seconds, is_sticky
from fabricpulse.remediation.receiver.model import (
    Action,
    AgentState,
    Breaker,
    Episode,
    Outcome,
    Pause,
    State,
    Target,
    TargetState,
)
from fabricpulse.remediation.receiver.payload import Alert

# Ended episodes and actions that stay in memory; the journal keeps all.
_KEEP_ENDED = 500


@dataclass(frozen=True)
class Transition:
    """One line of the journal: what changed, and why."""

    subject: str
    event: str
    detail: dict[str, Any]


@dataclass
class Step:
    """The result of an event: the new state and the lines for the journal."""

    state: State
    transitions: list[Transition] = field(default_factory=list)

    def log(self, subject: str, event: str, **detail: Any) -> None:
        """Adds a line."""
        self.transitions.append(Transition(subject, event, detail))

    def put_target(self, target: TargetState) -> None:
        """Replaces a target's state."""
        self.state = _with(self.state, targets={**self.state.targets, target.target.key: target})

    def put_action(self, action: Action) -> None:
        """Replaces or adds an action."""
        self.state = _with(self.state, actions={**self.state.actions, action.op_id: action})

    def put_episode(self, episode: Episode) -> None:
        """Replaces or adds an episode."""
        self.state = _with(self.state, episodes={**self.state.episodes, episode.fingerprint: episode})


def _with(value: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(value, **changes)


class Reconciler:
    """The decisions, for one configuration."""

    def __init__(self, config: ReceiverConfig) -> None:
        self._config = config
        self._rules = {rule.alert: rule for rule in config.rules}

    # --- what is known -------------------------------------------------------------------------------------------

    def target_of(self, alert: Alert) -> tuple[RuleConfig, Target] | None:
        """The rule and the target of an alert, or None when no rule or no usable label names one."""
        rule = self._rules.get(alert.name)
        if rule is None:
            return None
        host = alert.labels.get(rule.host_label, "").partition(":")[0]
        device = alert.labels.get(rule.device_label, "")
        if not host or not device or "/" in host or "/" in device:
            return None
        return rule, Target(host, device)

    def on_alerts(self, state: State, alerts: Iterable[Alert], now: float) -> Step:
        """Alerts of a webhook notification."""
        step = Step(state)
        for alert in alerts:
            self._on_alert(step, alert, now)
        return self._reconcile(step, now)

    def on_truth(self, state: State, active: Iterable[Alert], now: float, complete: bool) -> Step:
        """What the Alertmanagers say is active now. complete : all of them answered.

        Heals lost notifications both ways: an alert that we never heard of begins an episode; a firing episode that
        none of them knows any more has expired (which is not the same as healthy, but is quiet).
        """
        step = Step(state)
        seen = set()
        for alert in active:
            seen.add(alert.fingerprint)
            self._on_alert(step, alert, now)
        if complete:
            for episode in list(step.state.episodes.values()):
                if (
                    episode.status == "firing"
                    and episode.fingerprint not in seen
                    and now - episode.last_seen > self._config.expire_s
                ):
                    step.put_episode(_with(episode, status="expired", ended_at=now))
                    step.log(episode.target.key, "episode_expired", fingerprint=episode.fingerprint)
        return self._reconcile(step, now)

    def _on_alert(self, step: Step, alert: Alert, now: float) -> None:
        found = self.target_of(alert)
        if found is None:
            return
        _, target = found
        known = step.state.episodes.get(alert.fingerprint)
        if alert.firing:
            if known is not None and known.status != "firing" and alert.starts_at <= known.starts_at:
                # Same start as an episode that has ended: a stale repeat of an Alertmanager that was cut off, or the
                # end was false. The caller asks the Alertmanagers (`is_suspect`); here it counts as what it says,
                # because taking a sick NIC out late is worse than holding a well one out longer.
                step.log(target.key, "episode_refired", fingerprint=alert.fingerprint, alert=alert.name)
            if known is None or known.status != "firing":
                step.put_episode(
                    Episode(
                        fingerprint=alert.fingerprint,
                        alert=alert.name,
                        target=target,
                        starts_at=alert.starts_at,
                        first_seen=now,
                        last_seen=now,
                        status="firing",
                    )
                )
                step.log(target.key, "episode_firing", fingerprint=alert.fingerprint, alert=alert.name)
            else:
                step.put_episode(
                    _with(
                        known, last_seen=now, starts_at=min(known.starts_at, alert.starts_at), target=target
                    )
                )
        elif known is not None and known.status == "firing":
            step.put_episode(_with(known, status="resolved", last_seen=now, ended_at=now))
            step.log(target.key, "episode_resolved", fingerprint=alert.fingerprint, alert=alert.name)

    @staticmethod
    def is_suspect(state: State, alert: Alert) -> bool:
        """True for a `firing` with the start of an episode that has ended: ask before believing it."""
        known = state.episodes.get(alert.fingerprint)
        return (
            alert.firing
            and known is not None
            and known.status != "firing"
            and alert.starts_at <= known.starts_at
        )

    def on_agent(self, state: State, agent: AgentState, now: float) -> Step:
        """A report of an agent: alive, and what its host looks like."""
        known = state.agents.get(agent.host)
        step = Step(_with(state, agents={**state.agents, agent.host: _with(agent, seen_at=now)}))
        if known is None:
            step.log(agent.host, "agent_joined")
        for device, connected in agent.connected.items():
            self._on_probe(step, Target(agent.host, device), connected, now)
        return self._reconcile(step, now)

    def _on_probe(self, step: Step, target: Target, connected: bool, now: float) -> None:
        """The mesh's own word on a NIC: a breach during the hold starts the hold again."""
        current = step.state.targets.get(target.key)
        if current is not None and not connected and current.quiet_since:
            step.put_target(_with(current, quiet_since=now))
            step.log(target.key, "hold_restarted", reason="probes do not get through")

    def on_sent(self, state: State, op_id: str, now: float) -> Step:
        """An agent has been handed the desired state that `op_id` asks for."""
        step = Step(state)
        action = state.actions.get(op_id)
        if action is not None and not action.sent_at:
            step.put_action(_with(action, sent_at=now))
            step.log(action.target.key, "sent", op_id=op_id)
        return step

    def on_result(
        self, state: State, op_id: str, outcome: str, verified: bool, processes: int, message: str, now: float
    ) -> Step:
        """An agent's word on an operation. outcome : applied | refused | failed."""
        step = Step(state)
        action = state.actions.get(op_id)
        if action is None or action.outcome not in ("pending", "applied"):
            return step
        current = state.targets[action.target.key]
        if current.op_id != op_id:
            step.put_action(_with(action, outcome="superseded", message=message))
            return step
        if action.dry_run:
            step.put_action(
                _with(action, outcome="dry_run", applied_at=now, message=message, processes=processes)
            )
            step.log(action.target.key, "dry_run", op_id=op_id, outcome=outcome, message=message)
            return step
        if outcome == "applied":
            settled: Outcome = "succeeded" if verified else "applied"
            changed = _with(
                action,
                applied_at=action.applied_at or now,
                verified_at=now if verified else 0.0,
                outcome=settled,
                message=message,
                processes=processes,
            )
            if changed != action:
                step.put_action(changed)
                step.log(
                    action.target.key, "verified" if verified else "applied", op_id=op_id, processes=processes
                )
            if verified:
                phase = current.phase
                if phase == "avoiding":
                    phase = "avoided"
                elif phase == "restoring":
                    phase = "in_service"
                step.put_target(_with(current, phase=phase, changed_at=now))
        else:
            self._roll_back(step, action, outcome, message, now)
        return self._reconcile(step, now)

    def _roll_back(self, step: Step, action: Action, outcome: str, message: str, now: float) -> None:
        settled: Outcome = "refused" if outcome == "refused" else "failed"
        step.put_action(_with(action, outcome=settled, message=message))
        step.log(action.target.key, settled, op_id=action.op_id, message=message)
        current = step.state.targets[action.target.key]
        if action.desired == "avoid":
            # Where some process of the host has done it and another refused, all go back to the one known state.
            self._decide(step, current, "nic.restore", f"rolled back: {message}", now)
        else:
            step.put_target(_with(current, phase="manual", changed_at=now))
            step.log(action.target.key, "manual", reason="could not be put back into service")

    # --- what a person says --------------------------------------------------------------------------------------

    def on_pause(self, state: State, reason: str, owner: str, now: float, duration_s: float = 0.0) -> Step:
        """The kill switch. duration_s 0 : until resumed."""
        until = now + duration_s if duration_s else 0.0
        step = Step(_with(state, pause=Pause(reason=reason, owner=owner, since=now, until=until)))
        step.log("fleet", "paused", reason=reason, owner=owner, until=until)
        return step

    def on_resume(self, state: State, owner: str, now: float) -> Step:
        """Ends a pause and resets tripped breakers; what fires now is decided anew, old decisions are not caught up."""
        step = Step(_with(state, pause=None, breakers={}, recent=()))
        step.log("fleet", "resumed", owner=owner)
        return self._reconcile(step, now)

    def on_release(self, state: State, target: Target, owner: str, now: float) -> Step:
        """A person puts a target back into service, whatever the hold says. Does nothing for one that is in service."""
        step = Step(state)
        current = state.targets.get(target.key)
        if current is None or current.desired == "in_service":
            return step
        step.log(target.key, "released", owner=owner)
        self._decide(
            step, _with(current, failovers=(), attempts=()), "nic.restore", f"released by {owner}", now
        )
        return step

    def on_tick(self, state: State, now: float) -> Step:
        """Time passes: holds end, pauses end, intents grow too old."""
        step = Step(state)
        if state.pause is not None and state.pause.until and now >= state.pause.until:
            step.state = _with(step.state, pause=None)
            step.log("fleet", "resumed", owner="timer")
        return self._reconcile(step, now)

    def on_start(self, state: State, now: float) -> Step:
        """A new start: the epoch rises, and what was under way is offered to the agents again under the same op_id."""
        step = Step(_with(state, epoch=state.epoch + 1, agents={}))
        step.log("fleet", "started", epoch=step.state.epoch)
        return step

    # --- what to do ----------------------------------------------------------------------------------------------

    def _reconcile(self, step: Step, now: float) -> Step:
        self._expire_intents(step, now)
        for key in sorted({e.target.key for e in step.state.episodes.values()} | set(step.state.targets)):
            self._reconcile_target(step, key, now)
        self._forget(step, now)
        return step

    def _expire_intents(self, step: Step, now: float) -> None:
        for action in list(step.state.actions.values()):
            if (
                action.outcome == "pending"
                and not action.sent_at
                and now - action.created_at > self._config.guards.intent_ttl_s
            ):
                current = step.state.targets[action.target.key]
                step.put_action(_with(action, outcome="failed", message="no agent fetched it in time"))
                step.log(action.target.key, "expired", op_id=action.op_id)
                if current.op_id == action.op_id and action.desired == "avoid":
                    self._decide(
                        step, current, "nic.restore", "rolled back: no agent fetched it in time", now
                    )

    def _reconcile_target(self, step: Step, key: str, now: float) -> None:
        firing = [e for e in step.state.episodes.values() if e.target.key == key and e.status == "firing"]
        current = step.state.targets.get(key)
        if firing:
            current = current or TargetState(target=firing[0].target)
            if current.quiet_since:
                current = _with(current, quiet_since=0.0)
                step.put_target(current)
            if current.desired == "in_service" and current.phase == "in_service":
                self._consider_failover(step, current, firing[0], now)
        elif current is not None and current.desired == "avoid":
            if not current.quiet_since:
                step.put_target(_with(current, quiet_since=now))
                step.log(key, "hold_started", hold_s=round(current.hold_s, 1))
            elif now - current.quiet_since >= current.hold_s and current.phase == "avoided":
                self._consider_failback(step, current, now)

    def _consider_failover(self, step: Step, current: TargetState, episode: Episode, now: float) -> None:
        rule = self._rules.get(episode.alert)
        if rule is None or rule.mode == "observe":
            return
        if rule.mode == "dry_run" and any(
            a.dry_run and a.target == current.target and a.created_at >= episode.first_seen
            for a in step.state.actions.values()
        ):
            return  # said once per episode
        reason = guards.check_failover(self._config.guards, step.state, current.target, now)
        if reason:
            self._block(step, current, reason)
            return
        if rule.mode == "dry_run":
            action = self._new_action(
                current, rule.action, "avoid", f"{episode.alert} is firing", now, dry_run=True
            )
            step.put_action(action)
            step.put_target(_with(current, generation=action.generation, op_id=action.op_id, blocked=""))
            step.log(current.target.key, "would_avoid", op_id=action.op_id, alert=episode.alert)
            return
        failovers = (*current.failovers, now)
        current = _with(
            current,
            failovers=failovers,
            attempts=(*current.attempts, now),
            hold_s=hold_seconds(
                self._config.hold, failovers, now, f"{current.target.key}/{current.generation}"
            ),
        )
        self._decide(step, current, "nic.avoid", f"{episode.alert} is firing", now)
        if is_sticky(self._config.hold, failovers, now):
            # It is taken out as always; that it stays out is decided when the hold would end.
            step.log(current.target.key, "sticky", failovers=len(failovers))
        self._trip(step, "failover", now)

    def _consider_failback(self, step: Step, current: TargetState, now: float) -> None:
        if is_sticky(self._config.hold, current.failovers, now):
            step.put_target(_with(current, phase="manual", changed_at=now))
            step.log(current.target.key, "manual", reason="failed over too often; release it by hand")
            return
        reason = guards.check_failback(self._config.guards, step.state, current.target, now)
        if reason:
            self._block(step, current, reason)
            return
        self._decide(step, current, "nic.restore", f"quiet for {now - current.quiet_since:.0f} s", now)
        self._trip(step, "failback", now)

    def _block(self, step: Step, current: TargetState, reason: str) -> None:
        if current.blocked != reason:
            step.put_target(_with(current, blocked=reason))
            step.log(current.target.key, "blocked", reason=reason)

    def _decide(self, step: Step, current: TargetState, action: Any, reason: str, now: float) -> None:
        desired = "avoid" if action == "nic.avoid" else "in_service"
        made = self._new_action(current, action, desired, reason, now)
        step.put_action(made)
        step.put_target(
            _with(
                current,
                desired=desired,
                phase="avoiding" if desired == "avoid" else "restoring",
                generation=made.generation,
                op_id=made.op_id,
                quiet_since=0.0,
                changed_at=now,
                blocked="",
            )
        )
        direction = "failover" if desired == "avoid" else "failback"
        step.state = _with(step.state, recent=(*step.state.recent, (now, direction, current.target.key)))
        step.log(current.target.key, action, op_id=made.op_id, generation=made.generation, reason=reason)

    @staticmethod
    def _new_action(
        current: TargetState, action: Any, desired: Any, reason: str, now: float, dry_run: bool = False
    ) -> Action:
        # From the clock, so that a journal begun anew is not older than what a running job has accepted.
        generation = max(current.generation + 1, int(now * 1000))
        return Action(
            op_id=f"{current.target.key}#{generation}",
            target=current.target,
            action=action,
            desired=desired,
            generation=generation,
            reason=reason,
            created_at=now,
            dry_run=dry_run,
        )

    def _trip(self, step: Step, direction: Any, now: float) -> None:
        reason = guards.check_breaker(self._config.guards, step.state, direction, now)
        if reason and direction not in step.state.breakers:
            breaker = Breaker(direction=direction, tripped_at=now, reason=reason)
            step.state = _with(step.state, breakers={**step.state.breakers, direction: breaker})
            step.log("fleet", "breaker_tripped", direction=direction, reason=reason)

    def _forget(self, step: Step, now: float) -> None:
        keep_s = max(self._config.guards.breaker_window_s, 60)
        recent = tuple(entry for entry in step.state.recent if now - entry[0] <= keep_s)
        if len(recent) != len(step.state.recent):
            step.state = _with(step.state, recent=recent)
        step.state = _with(
            step.state,
            episodes=_newest(step.state.episodes, lambda e: e.status == "firing", lambda e: e.last_seen),
            actions=_newest(step.state.actions, lambda a: a.outcome == "pending", lambda a: a.created_at),
        )


def _newest(
    values: dict[str, Any], always: Callable[[Any], bool], when: Callable[[Any], float]
) -> dict[str, Any]:
    """`values` without the oldest ended ones above _KEEP_ENDED."""
    if len(values) <= _KEEP_ENDED:
        return values
    ended = sorted(
        (key for key, value in values.items() if not always(value)), key=lambda key: when(values[key])
    )
    drop = set(ended[: max(0, len(ended) - _KEEP_ENDED)])
    return {key: value for key, value in values.items() if key not in drop}
