"""Decisions: compares observed with desired state. Deciding twice on the same state decides nothing new.

A firing episode takes its NIC out of service as soon as the guards allow; `resolved` only starts the hold, and a new
firing starts it again from zero. The phases of a target are in `phases.py`.
"""

from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.failover.damping import hold_seconds, is_sticky
from fabricpulse.remediation.receiver.failover.firing_targets import FiringTargets
from fabricpulse.remediation.receiver.failover.recovery import RecoveryJudge
from fabricpulse.remediation.receiver.guards.guards import SETTLING, TRANSIENT, Guards
from fabricpulse.remediation.receiver.guards.shared_cause import SharedCauses
from fabricpulse.remediation.receiver.rule_config import keeps_out
from fabricpulse.remediation.receiver.state.hold import (
    check_observed,
    is_over,
    is_proven,
    start_hold,
    stop_hold,
)
from fabricpulse.remediation.receiver.state.in_flight import ACTING, has_no_result, never_arrived
from fabricpulse.remediation.receiver.state.model import (
    Action,
    ActionName,
    Breaker,
    Direction,
    Episode,
    State,
    Target,
    TargetState,
)
from fabricpulse.remediation.receiver.state.phases import DESIRED, next_phase
from fabricpulse.remediation.receiver.state.plans import is_approved, plan_of
from fabricpulse.remediation.receiver.state.retention import (
    EPISODES_EVERY_S,
    forget,
    forget_ended,
)
from fabricpulse.remediation.receiver.state.transaction import Transaction, with_changes

# Firing targets that one cycle decides on.
_AT_ONCE = 500


class Decisions:
    """The decisions, for one configuration."""

    def __init__(
        self, config: ReceiverConfig, nics: dict[str, frozenset[str]], recovery: RecoveryJudge
    ) -> None:
        self._config = config
        self._recovery = recovery
        self._nics = nics
        self._rules = {rule.alert: rule for rule in config.rules}
        self._shared = SharedCauses(config.guards)
        self._firing_targets = FiringTargets(self._rules)
        self._next = 0
        self._forgot_at = 0.0

    def reconcile(self, transaction: Transaction, now: float) -> None:
        """Decides on the state at `now`: new faults, ended holds, ended pauses, intents grown too old."""
        pause = transaction.pause
        if pause is not None and pause.until and now >= pause.until:
            transaction.set(pause=None)
            transaction.log("fleet", "resumed", owner="timer")
        self._expire(transaction, now)
        self._recovery.reconcile(transaction, now)
        forget(transaction, self._config.guards.breaker_window_s, now)
        if not 0 <= now - self._forgot_at < EPISODES_EVERY_S:
            self._forgot_at = now
            forget_ended(transaction, self._config.guards.shared_cause_memory_s, now)
        firing = self._firing_targets.of(transaction)
        if not firing and not transaction.targets:
            return
        guards = Guards(self._config, self._nics, transaction, now, self._shared)
        for key in [key for key in transaction.targets if key not in firing]:
            self._quiet(transaction, guards, transaction.targets[key], now)
        for key in self._next_batch(list(firing)):
            self._firing_of(transaction, guards, transaction.episodes[firing[key]], now)

    def try_one(
        self, transaction: Transaction, target: Target, now: float
    ) -> tuple[Episode | None, Episode | None]:
        """Decides about one target as a cycle does, in a transaction that is thrown away, with decisions of its own.

        Returns the firing episode that counts for it, and the one that asks for its return.
        """
        own = {key: episode for key, episode in transaction.episodes.items() if episode.target == target}
        firing = self._firing_targets.of(Transaction(State(episodes=own)))
        guards = Guards(self._config, self._nics, transaction, now, self._shared)
        if target.key in firing:
            self._firing_of(transaction, guards, own[firing[target.key]], now)
        elif target.key in transaction.targets:
            self._quiet(transaction, guards, transaction.targets[target.key], now)
        asked = self._firing_targets.asked_back.get(target.key, "")
        return own.get(firing.get(target.key, "")), own.get(asked)

    def _firing_of(self, transaction: Transaction, guards: Guards, episode: Episode, now: float) -> None:
        current = transaction.targets.get(episode.target.key) or TargetState(target=episode.target)
        self._firing(transaction, guards, current, episode, now)

    def _next_batch(self, keys: list[str]) -> list[str]:
        """The targets to decide on in this cycle: all, or in a storm the next ones, first come first served.

        A cycle holds up deliveries; and the limits let through a few actions a minute anyway.
        """
        if len(keys) <= _AT_ONCE:
            return keys
        begin = self._next if self._next < len(keys) else 0
        self._next = begin + _AT_ONCE
        return keys[begin : begin + _AT_ONCE]

    def _firing(
        self, transaction: Transaction, guards: Guards, current: TargetState, episode: Episode, now: float
    ) -> None:
        if current.quiet_since:
            current = stop_hold(current)
            transaction.put_target(current)
            transaction.log(current.target.key, "hold_ended", reason="it fires again")
        last = transaction.actions.get(current.op_id)
        # A failed return does not forbid a new failover.
        stuck = current.phase == "restoring" and last is not None and last.outcome != "pending"
        if current.desired != "in_service" or not (current.phase == "in_service" or stuck):
            return
        rule = self._rules.get(episode.alert)
        if rule is None or rule.mode not in ACTING or rule.action != "nic.avoid":
            current = self._drop_plan(transaction, current, "its rule acts no more")
        if rule is None or rule.mode == "observe" or rule.action != "nic.avoid":
            return
        announced = last is not None and last.dry_run and last.created_at >= episode.first_seen
        if rule.mode == "dry_run" and announced:
            return
        if reason := guards.failover(current, episode):
            if reason != SETTLING:
                self._block(transaction, current, reason)
            return
        why = f"{episode.alert} is firing"
        if rule.mode == "dry_run":
            action = self._new_action(current, "nic.avoid", why, now, episode=episode, dry_run=True)
            action = self._recovery.foresee(transaction, action, now)
            transaction.put_action(action)
            transaction.put_target(
                with_changes(current, generation=action.generation, op_id=action.op_id, blocked="")
            )
            transaction.log(current.target.key, "would_avoid", op_id=action.op_id, alert=episode.alert)
            return
        if rule.mode == "approve":
            approval = self._approval(transaction, current, "nic.avoid", episode, why, now)
            if not approval:
                return
            why = f"{why}, {approval}"
        if reason := guards.breaker("failover", current.target.host):
            self._trip(transaction, "failover", reason, now)
            self._block(transaction, current, "breaker")
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
            workloads=transaction.agents[current.target.host].workloads,
        )
        self._take(transaction, guards, "failover", current, now)
        self.decide(transaction, current, "nic.avoid", why, now, episode=episode)

    def _quiet(self, transaction: Transaction, guards: Guards, current: TargetState, now: float) -> None:
        if current.desired != "avoid":
            current = self._drop_plan(transaction, current, "no alert fires")
            if not current.generation:
                transaction.drop("targets", [current.target.key])  # it was never more than blocked
            elif current.blocked:
                transaction.put_target(with_changes(current, blocked=""))
        elif not current.quiet_since:
            transaction.put_target(start_hold(current, now))
            transaction.log(current.target.key, "hold_started", hold_s=round(current.hold_s, 1))
        elif current.phase == "avoided" or self._has_no_result(transaction, current, now):
            observed = check_observed(current, now, self._config.guards.agent_timeout_s)
            if observed != current:
                transaction.put_target(observed)
                if observed.blocked != current.blocked:
                    transaction.log(current.target.key, "hold_stopped", reason=observed.blocked)
            else:
                self._end_hold(transaction, guards, current, now)

    def _has_no_result(self, transaction: Transaction, current: TargetState, now: float) -> bool:
        """Whether it waits for a result that may never come: what may be out has its hold as well, and would
        count as out for ever."""
        last, timeout_s = transaction.actions.get(current.op_id), self._config.guards.agent_timeout_s
        return last is not None and has_no_result(transaction, last, timeout_s, now)

    def _end_hold(self, transaction: Transaction, guards: Guards, current: TargetState, now: float) -> None:
        """Brings a NIC back whose hold is over, or of which an alert says that it need not wait for that."""
        rule, asked = self._rules.get(current.alert), None
        may_return = not current.alert or (rule is not None and rule.mode in ACTING)
        if not (is_over(current) and may_return):
            asked = self._asked(transaction, current)
            if asked is None:
                if current.plan is not None and not keeps_out(self._rules, current.plan.alert):
                    current = self._drop_plan(transaction, current, "no alert asks for it any more")
                elif not may_return:
                    current = self._drop_plan(transaction, current, "its rule acts no more")
                if is_over(current):
                    # The rule that took it out is in dry-run mode by now: an operator releases it.
                    self._block(transaction, current, "not_acting")
                return
            rule = self._rules[asked.alert]
            # Until then it could not leave again if it flapped as it came back.
            if current.failovers and now - current.failovers[-1] < self._config.guards.cooldown_s:
                self._block(transaction, current, "cooldown")
                return
        if is_sticky(self._config.hold_of(current.alert), current.failovers, now):
            if asked is not None or current.phase != "avoided":
                self._block(transaction, current, "manual")
                return
            transaction.put_target(
                with_changes(
                    current,
                    phase=next_phase(current.phase, "failover_limit"),
                    changed_at=now,
                    blocked="manual",
                )
            )
            transaction.log(
                current.target.key,
                "manual",
                reason="too many failovers; an operator must release it",
            )
            return
        if reason := guards.failback(current):
            self._block(transaction, current, reason)
            return
        why = f"healthy for {current.healthy_s:.0f} s" + (f", {asked.alert} is firing" if asked else "")
        if asked is not None and rule is not None and rule.mode == "dry_run":
            current = self._drop_plan(transaction, current, "its rule acts no more")
            noted = f"{asked.fingerprint} {asked.first_seen!r}"
            if current.would_restore != noted:
                transaction.put_target(with_changes(current, would_restore=noted, blocked=""))
                transaction.log(current.target.key, "would_restore", alert=asked.alert, reason=why)
            return
        if rule is not None and rule.mode == "approve":
            approval = self._approval(transaction, current, "nic.restore", asked, why, now)
            if not approval:
                return
            why = f"{why}, {approval}"
        if reason := guards.breaker("failback", current.target.host):
            self._trip(transaction, "failback", reason, now)
            self._block(transaction, current, "breaker")
            return
        self._take(transaction, guards, "failback", current, now)
        self.decide(transaction, current, "nic.restore", why, now, episode=asked)

    def _asked(self, transaction: Transaction, current: TargetState) -> Episode | None:
        """The episode of a rule with nic.restore that may bring this NIC back now, None without one."""
        episode = transaction.episodes.get(self._firing_targets.asked_back.get(current.target.key, ""))
        if episode is None or not is_proven(current) or self._rules[episode.alert].mode == "observe":
            return None
        return episode

    def decide(
        self,
        transaction: Transaction,
        current: TargetState,
        action: ActionName,
        reason: str,
        now: float,
        episode: Episode | None = None,
    ) -> None:
        """Decides on `action`: a new generation of the target, to be carried out by the agent.

        The guards do not apply where something is undone: rolled back, or released by an operator.
        """
        pending = transaction.actions.get(current.op_id)
        if pending is not None and pending.outcome == "pending":
            transaction.put_action(with_changes(pending, outcome="superseded", message=reason))
            transaction.log(current.target.key, "superseded", op_id=pending.op_id)
        made = self._new_action(current, action, reason, now, episode=episode)
        avoid = made.desired == "avoid"
        if avoid:
            agent = transaction.agents.get(current.target.host)
            made = with_changes(made, users=agent.users if agent is not None else ())
            made = self._recovery.foresee(transaction, made, now)
        more = {"predicted": round(made.predicted, 3)} if made.predicted else {}
        transaction.put_action(made)
        phase = next_phase(current.phase, action)
        transaction.put_target(
            with_changes(
                current,
                desired=DESIRED[phase],
                phase=phase,
                generation=made.generation,
                op_id=made.op_id,
                avoid_op_id=made.op_id if avoid else current.avoid_op_id,
                quiet_since=0.0,
                changed_at=now,
                needs_probe=False,
                blocked="",
                plan=None,
            )
        )
        transaction.log(
            current.target.key, action, op_id=made.op_id, generation=made.generation, reason=reason, **more
        )

    @staticmethod
    def _approval(
        transaction: Transaction,
        current: TargetState,
        action: ActionName,
        episode: Episode | None,
        why: str,
        now: float,
    ) -> str:
        """By whom the action was approved; "" while it was not, and then its plan is there to be approved."""
        key, known = current.target.key, current.plan
        plan = plan_of(current, action, episode, why, now)
        if known is not None and known.hash == plan.hash:
            if not known.approved_at:
                return ""
            if is_approved(known, now):
                return f"approved by {known.approved_by}"
            transaction.log(key, "approval_expired", plan=known.hash, owner=known.approved_by)
        transaction.put_target(with_changes(current, plan=plan, blocked=""))
        transaction.log(key, "awaiting_approval", plan=plan.hash, action=action, reason=why)
        return ""

    @staticmethod
    def _drop_plan(transaction: Transaction, current: TargetState, reason: str) -> TargetState:
        if current.plan is None:
            return current
        transaction.log(current.target.key, "plan_dropped", plan=current.plan.hash, reason=reason)
        after: TargetState = with_changes(current, plan=None)
        transaction.put_target(after)
        return after

    def retry_after_s(self, current: TargetState, now: float) -> float:
        """How long to wait after a failover that came to nothing, by how many there were."""
        limits = self._config.guards
        recent = sum(1 for when in current.attempts if now - when <= limits.attempts_window_s)
        return min(limits.retry_cap_s, limits.retry_initial_s * 2.0 ** max(0, recent - 1))

    def _take(
        self, transaction: Transaction, guards: Guards, direction: Direction, current: TargetState, now: float
    ) -> None:
        bucket = guards.took(direction, current.target)
        transaction.set(
            recent=(*transaction.recent, (now, direction, current.target.key)),
            buckets={**transaction.buckets, direction: bucket},
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
    def _trip(transaction: Transaction, direction: Direction, reason: str, now: float) -> None:
        breakers = transaction.breakers
        if direction not in breakers:
            breaker = Breaker(direction=direction, tripped_at=now, reason=reason)
            transaction.set(breakers={**breakers, direction: breaker})
            transaction.log("fleet", "breaker_tripped", direction=direction, reason=reason)

    @staticmethod
    def _block(transaction: Transaction, current: TargetState, reason: str) -> None:
        if current.blocked == reason or (current.blocked in TRANSIENT and reason in TRANSIENT):
            return
        transaction.put_target(with_changes(current, blocked=reason))
        transaction.log(current.target.key, "blocked", reason=reason)

    def _expire(self, transaction: Transaction, now: float) -> None:
        limits = self._config.guards
        for action in [a for a in transaction.actions.values() if a.outcome == "pending"]:
            current = transaction.targets.get(action.target.key)
            if current is None:
                # Of a target that was dropped, or a journal that another version has written: nobody waits for it.
                transaction.put_action(
                    with_changes(action, outcome="superseded", message="its target is not known any more")
                )
                transaction.log(action.target.key, "superseded", op_id=action.op_id)
            elif not action.sent_at and now - action.created_at > limits.intent_ttl_s:
                transaction.put_action(
                    with_changes(action, outcome="expired", message="no agent fetched it in time")
                )
                transaction.log(action.target.key, "expired", op_id=action.op_id)
                if current.op_id == action.op_id and action.desired == "avoid" and not action.dry_run:
                    current = with_changes(current, retry_at=now + self.retry_after_s(current, now))
                    self.decide(transaction, current, "nic.restore", "no agent fetched it in time", now)
            elif action.sent_at and now - action.sent_at > limits.result_timeout_s:
                # It may have been carried out. It is not sent again: the agent reports what is, when it is back.
                transaction.put_action(
                    with_changes(action, outcome="unknown", message="the agent has not reported the result")
                )
                transaction.log(action.target.key, "unknown", op_id=action.op_id)
        for action in [a for a in transaction.actions.values() if a.outcome == "unknown"]:
            target = transaction.targets.get(action.target.key)
            is_newest = target is not None and target.op_id == action.op_id
            if (
                target is not None
                and is_newest
                and never_arrived(transaction, action, limits.result_timeout_s)
            ):
                current = with_changes(target, retry_at=now + self.retry_after_s(target, now))
                self.decide(transaction, current, "nic.restore", "it never reached its agent", now)


def _newest_times(times: tuple[float, ...]) -> tuple[float, ...]:
    return times[-32:]
