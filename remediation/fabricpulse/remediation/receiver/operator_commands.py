"""What operators order: pause (the kill switch), resume, approve, release, forget."""

from fabricpulse.remediation.receiver.drains import Drains
from fabricpulse.remediation.receiver.failover.decisions import Decisions
from fabricpulse.remediation.receiver.rebalance.rebalancer import Rebalancer
from fabricpulse.remediation.receiver.state.model import Pause, Target
from fabricpulse.remediation.receiver.state.transaction import Transaction, with_changes


class OperatorCommands:
    """Events that an operator causes; each leaves a line with its owner."""

    def __init__(self, decisions: Decisions, rebalancer: Rebalancer, drains: Drains) -> None:
        self._decisions = decisions
        self._rebalancer = rebalancer
        self._drains = drains

    def pause(
        self, transaction: Transaction, reason: str, owner: str, now: float, duration_s: float = 0.0
    ) -> None:
        """Sets the kill switch. duration_s 0 : until resumed."""
        until = now + duration_s if duration_s else 0.0
        transaction.set(pause=Pause(reason=reason, owner=owner, since=now, until=until))
        transaction.log("fleet", "paused", reason=reason, owner=owner, until=until)

    def resume(self, transaction: Transaction, owner: str, now: float) -> None:
        """Ends a pause and resets tripped breakers. Only what fires now is decided on."""
        transaction.set(pause=None, breakers={}, recent=(), resumed_at=now)
        transaction.log("fleet", "resumed", owner=owner)

    def approve(self, transaction: Transaction, plan: str, owner: str, now: float) -> bool:
        """Approves the plan with this hash; the guards still apply. False when no such plan waits."""
        for current in transaction.targets.values():
            if current.plan is not None and current.plan.hash == plan and not current.plan.approved_at:
                approved = with_changes(current.plan, approved_at=now, approved_by=owner)
                transaction.put_target(with_changes(current, plan=approved))
                transaction.log(
                    current.target.key, "approved", plan=plan, action=approved.action, owner=owner
                )
                return True
        return self._rebalancer.approve(transaction, plan, owner, now) or self._drains.approve(
            transaction, plan, owner, now
        )

    def release_host(self, transaction: Transaction, host: str, owner: str, now: float) -> bool:
        """Brings back a host that was drained. False when it was not."""
        return self._drains.release(transaction, host, owner, now)

    def release(self, transaction: Transaction, target: Target, owner: str, now: float) -> bool:
        """Puts a target back into service without waiting for its hold, and tells the agent again where its return has
        come to nothing. False, and nothing done, for one that is in service, or on its way."""
        current = transaction.targets.get(target.key)
        if current is None or current.phase == "in_service":
            return False
        last = transaction.actions.get(current.op_id)
        if current.phase == "restoring" and last is not None and last.outcome == "pending":
            return False
        transaction.log(target.key, "released", owner=owner)
        current = with_changes(current, failovers=(), attempts=(), retry_at=0.0)
        self._decisions.decide(transaction, current, "nic.restore", f"released by {owner}", now)
        return True

    def forget(self, transaction: Transaction, host: str, owner: str, now: float) -> None:
        """Drops everything about a host that was retired. If it comes back its agent reports what it holds."""
        targets = [target for target in transaction.targets.values() if target.target.host == host]
        keys = {target.target.key for target in targets}
        transaction.log(host, "forgotten", owner=owner, targets=sorted(keys))
        self._drains.forget(transaction, host, owner, now)
        episodes = [key for key, e in transaction.episodes.items() if e.target.host == host]
        actions = [op_id for op_id, action in transaction.actions.items() if action.target.host == host]
        transaction.drop("episodes", episodes)
        transaction.drop("actions", actions)
        transaction.drop("targets", sorted(keys))
        transaction.drop("agents", [host] if host in transaction.agents else [])
