"""What became of an operation: handed to the agent, carried out, refused, or worse for the jobs than before."""

from collections.abc import Iterable

from fabricpulse.remediation.protocol import STALLED, Result
from fabricpulse.remediation.receiver.failover.decisions import Decisions
from fabricpulse.remediation.receiver.state.model import Action, TargetState
from fabricpulse.remediation.receiver.state.phases import next_phase
from fabricpulse.remediation.receiver.state.transaction import Transaction, with_changes

# An `applied` of the current operation counts also after these: the agent reports late what it has done.
_NOT_YET_APPLIED = ("pending", "refused", "failed", "unknown", "expired")


class OperationResults:
    """Events about operations. They are only taken from the host of the target, and for its newest operation."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def on_sent(self, transaction: Transaction, op_ids: Iterable[str], now: float) -> None:
        """An agent is about to be handed the desired state that these operations ask for."""
        for op_id in op_ids:
            action = transaction.actions.get(op_id)
            if action is not None and not action.sent_at and action.outcome == "pending":
                transaction.put_action(with_changes(action, sent_at=now))
                transaction.log(action.target.key, "sent", op_id=op_id)

    def on_result(self, transaction: Transaction, host: str, result: Result, now: float) -> None:
        """An agent's report on an operation. Another host's, or one of an older operation, is ignored."""
        action = transaction.actions.get(result.op_id)
        if action is None or action.target.host != host:
            return
        current = transaction.targets.get(action.target.key)
        if current is None or current.op_id != action.op_id:
            return
        if action.dry_run:
            self._on_dry_run(transaction, action, result, now)
        elif result.outcome == "applied":
            self._on_applied(transaction, action, current, result, now)
        elif action.outcome in ("pending", "unknown"):
            self._on_failed(transaction, action, current, result, now)
        elif result.outcome == "refused" and action.outcome == "succeeded" and action.desired == "avoid":
            self._on_not_kept(transaction, action, result, now)

    @staticmethod
    def _on_not_kept(transaction: Transaction, action: Action, result: Result, now: float) -> None:
        """An agent that has started anew and has processes that use the NIC again, which it does not take out now: it
        is paused, or has other limits. It is not undone: processes that were there before may have it out."""
        if not action.refused_at:
            transaction.log(action.target.key, "not_kept", op_id=action.op_id, message=result.message)
        if not action.refused_at or action.message != result.message:
            transaction.put_action(
                with_changes(action, refused_at=action.refused_at or now, message=result.message)
            )

    @staticmethod
    def _on_dry_run(transaction: Transaction, action: Action, result: Result, now: float) -> None:
        if action.outcome != "pending":
            return
        transaction.put_action(
            with_changes(
                action, outcome="dry_run", applied_at=now, message=result.message, processes=result.processes
            )
        )
        transaction.log(
            action.target.key, "dry_run", op_id=action.op_id, outcome=result.outcome, message=result.message
        )

    def _on_applied(
        self, transaction: Transaction, action: Action, current: TargetState, result: Result, now: float
    ) -> None:
        key = action.target.key
        if action.outcome in _NOT_YET_APPLIED:
            action = with_changes(
                action,
                outcome="succeeded",
                sent_at=action.sent_at or now,
                applied_at=now,
                verified_at=now,
                message=result.message,
                processes=result.processes,
            )
            transaction.put_action(action)
            phase = next_phase(current.phase, "applied")
            transaction.put_target(with_changes(current, phase=phase, changed_at=now))
            transaction.log(key, "succeeded", op_id=action.op_id, processes=result.processes)
            avoided = transaction.actions.get(current.avoid_op_id)
            if phase == "in_service" and avoided is not None and not avoided.restored_at:
                transaction.put_action(with_changes(avoided, restored_at=now))
        elif action.refused_at:
            action = with_changes(action, refused_at=0.0, message=result.message)
            transaction.put_action(action)
            transaction.log(key, "kept", op_id=action.op_id, processes=result.processes)
        if not result.traffic or action.outcome != "succeeded" or action.traffic == result.traffic:
            return
        action = with_changes(action, traffic=result.traffic, message=result.message)
        transaction.put_action(action)
        transaction.log(key, "traffic", op_id=action.op_id, traffic=result.traffic, message=result.message)
        if result.traffic in STALLED and action.desired == "avoid":
            transaction.put_action(with_changes(action, outcome="rolled_back"))
            transaction.log(key, "rolled_back", op_id=action.op_id, reason="the jobs have stalled since")
            current = transaction.targets[key]
            current = with_changes(current, retry_at=now + self._decisions.retry_after_s(current, now))
            self._decisions.decide(transaction, current, "nic.restore", "rolled back: jobs stalled", now)

    def _on_failed(
        self, transaction: Transaction, action: Action, current: TargetState, result: Result, now: float
    ) -> None:
        outcome = result.outcome
        transaction.put_action(
            with_changes(action, outcome=outcome, message=result.message, processes=result.processes)
        )
        transaction.log(action.target.key, outcome, op_id=action.op_id, message=result.message)
        if action.desired == "avoid":
            if outcome == "refused":  # the NIC was not taken out: no flap, but an attempt
                current = with_changes(current, failovers=current.failovers[:-1])
            current = with_changes(current, retry_at=now + self._decisions.retry_after_s(current, now))
            # Where some process of the host has done it and another has not, all go back to the one known state.
            reason = f"rolled back: {result.message}"[:200]
            self._decisions.decide(transaction, current, "nic.restore", reason, now)
