"""From events to decisions. Pure: `(state, event, now)` in, a new state and the lines of the journal out.

Events change what is known (`knowledge`), or say what became of an operation (here); `on_tick` then decides
(`decisions`). The engine ticks after each batch of events, before the commit.
"""

from collections.abc import Iterable, Sequence

from fabricpulse.remediation.protocol import Result
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.decisions import Decisions
from fabricpulse.remediation.receiver.knowledge import Knowledge
from fabricpulse.remediation.receiver.model import Action, AgentState, Pause, State, Target, TargetState
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.step import Step, with_changes

__all__ = ["Reconciler", "Step"]


class Reconciler:
    """The receiver's mind, for one configuration."""

    def __init__(self, config: ReceiverConfig, nics: dict[str, frozenset[str]] | None = None) -> None:
        """nics : the devices of each host, where a membership file names them."""
        self._config = config
        self.knowledge = Knowledge(config, nics or {})
        self._decisions = Decisions(config, nics or {})

    def on_start(self, state: State, now: float) -> Step:
        """A new start: the epoch rises, and what was under way is offered to the agents again under the same op_id."""
        step = Step(state)
        # From the clock as well: agents must not take a receiver with a new journal for one out of the past.
        epoch = max(state.epoch + 1, int(now))
        step.set(epoch=epoch, agents={}, truth_at=0.0, contact_at=0.0)
        step.log("fleet", "started", epoch=epoch)
        return step

    def on_tick(self, state: State, now: float) -> Step:
        """Decides on what is known at `now`: new faults, ended holds, ended pauses, intents grown too old."""
        step = Step(state)
        if state.pause is not None and state.pause.until and now >= state.pause.until:
            step.set(pause=None)
            step.log("fleet", "resumed", owner="timer")
        self._decisions.reconcile(step, now)
        return step

    def on_alerts(self, state: State, alerts: Iterable[Alert], now: float) -> tuple[Step, bool]:
        """See Knowledge.on_alerts."""
        return self.knowledge.on_alerts(state, alerts, now)

    def on_truth(self, state: State, answers: Sequence[Sequence[Alert] | None], now: float) -> Step:
        """See Knowledge.on_truth."""
        return self.knowledge.on_truth(state, answers, now)

    def on_agent(self, state: State, agent: AgentState, now: float) -> Step:
        """See Knowledge.on_agent."""
        return self.knowledge.on_agent(state, agent, now)

    # --- what became of an operation -----------------------------------------------------------------------------

    def on_sent(self, state: State, op_ids: Iterable[str], now: float) -> Step:
        """An agent is about to be handed the desired state that these operations ask for."""
        step = Step(state)
        for op_id in op_ids:
            action = step.actions.get(op_id)
            if action is not None and not action.sent_at and action.outcome == "pending":
                step.put_action(with_changes(action, sent_at=now))
                step.log(action.target.key, "sent", op_id=op_id)
        return step

    def on_result(self, state: State, host: str, result: Result, now: float) -> Step:
        """An agent's word on an operation. It is only heard about its own host, and about the newest operation."""
        step = Step(state)
        action = state.actions.get(result.op_id)
        if action is None or action.target.host != host:
            return step
        current = state.targets[action.target.key]
        if current.op_id != action.op_id:
            return step
        if action.dry_run:
            self._on_dry_run(step, action, result, now)
        elif result.outcome == "applied":
            self._on_applied(step, action, current, result, now)
        elif action.outcome in ("pending", "unknown"):
            self._on_failed(step, action, current, result, now)
        return step

    @staticmethod
    def _on_dry_run(step: Step, action: Action, result: Result, now: float) -> None:
        if action.outcome == "pending":
            step.put_action(
                with_changes(
                    action,
                    outcome="dry_run",
                    applied_at=now,
                    message=result.message,
                    processes=result.processes,
                )
            )
            step.log(
                action.target.key,
                "dry_run",
                op_id=action.op_id,
                outcome=result.outcome,
                message=result.message,
            )

    def _on_applied(
        self, step: Step, action: Action, current: TargetState, result: Result, now: float
    ) -> None:
        if action.outcome in ("pending", "refused", "failed", "unknown", "expired"):
            action = with_changes(
                action,
                outcome="succeeded",
                sent_at=action.sent_at or now,
                applied_at=now,
                verified_at=now,
                message=result.message,
                processes=result.processes,
            )
            step.put_action(action)
            phase = "avoided" if action.desired == "avoid" else "in_service"
            step.put_target(with_changes(current, phase=phase, changed_at=now))
            step.log(action.target.key, "succeeded", op_id=action.op_id, processes=result.processes)
            avoided = step.actions.get(current.avoid_op_id)
            if phase == "in_service" and avoided is not None and not avoided.restored_at:
                step.put_action(with_changes(avoided, restored_at=now))
        if result.traffic and action.outcome == "succeeded" and action.traffic != result.traffic:
            action = with_changes(action, traffic=result.traffic, message=result.message)
            step.put_action(action)
            step.log(
                action.target.key,
                "traffic",
                op_id=action.op_id,
                traffic=result.traffic,
                message=result.message,
            )
            if result.traffic == "stalled" and action.desired == "avoid":
                step.put_action(with_changes(action, outcome="rolled_back"))
                step.log(
                    action.target.key, "rolled_back", op_id=action.op_id, reason="the jobs stand still since"
                )
                self._decisions.decide(
                    step,
                    step.targets[current.target.key],
                    "nic.restore",
                    "rolled back: jobs stand still",
                    now,
                )

    def _on_failed(
        self, step: Step, action: Action, current: TargetState, result: Result, now: float
    ) -> None:
        outcome = result.outcome
        step.put_action(
            with_changes(action, outcome=outcome, message=result.message, processes=result.processes)
        )
        step.log(action.target.key, outcome, op_id=action.op_id, message=result.message)
        if action.desired == "avoid":
            if outcome == "refused":  # nothing was tried that could have worn anything out
                current = with_changes(
                    current, attempts=current.attempts[:-1], failovers=current.failovers[:-1]
                )
            # Where some process of the host has done it and another has not, all go back to the one known state.
            self._decisions.decide(step, current, "nic.restore", f"rolled back: {result.message}"[:200], now)

    # --- what a person says --------------------------------------------------------------------------------------

    def on_pause(self, state: State, reason: str, owner: str, now: float, duration_s: float = 0.0) -> Step:
        """The kill switch. duration_s 0 : until resumed."""
        until = now + duration_s if duration_s else 0.0
        step = Step(state)
        step.set(pause=Pause(reason=reason, owner=owner, since=now, until=until))
        step.log("fleet", "paused", reason=reason, owner=owner, until=until)
        return step

    def on_resume(self, state: State, owner: str, now: float) -> Step:
        """Ends a pause and resets tripped breakers. What fires now is decided anew; nothing old is caught up with."""
        step = Step(state)
        step.set(pause=None, breakers={}, recent=())
        step.log("fleet", "resumed", owner=owner)
        return step

    def on_release(self, state: State, target: Target, owner: str, now: float) -> Step:
        """A person puts a target back into service, whatever the hold says. Does nothing for one that is in service."""
        step = Step(state)
        current = state.targets.get(target.key)
        if current is None or current.desired == "in_service":
            return step
        step.log(target.key, "released", owner=owner)
        current = with_changes(current, failovers=(), attempts=())
        self._decisions.decide(step, current, "nic.restore", f"released by {owner}", now)
        return step
