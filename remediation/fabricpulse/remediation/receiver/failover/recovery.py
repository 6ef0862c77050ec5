"""Whether a failover has helped: what its host's jobs carry afterwards, by what the NICs that are left allow. Pure.

What they allow is the most that the host carried lately, times the part of its NICs that is left: what a job gets at
least that is bounded by them. One that waits for something else most of the time gets more.
"""

from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.failover.host_traffic import SPACING_S, HostTraffic
from fabricpulse.remediation.receiver.state.model import Action, Recovery
from fabricpulse.remediation.receiver.state.transaction import Transaction, with_changes

# A host that carries less than this is idle: there is nothing to lose and nothing to prove.
_IDLE_BYTES_S = 1e5
_SETTLE_S = 2.0
_KEEP_EVERY_S = 60.0


class RecoveryJudge:
    """Predicts and judges failovers, for one configuration."""

    def __init__(self, config: ReceiverConfig, traffic: HostTraffic) -> None:
        self._limits = config.guards
        self._traffic = traffic
        self._kept_at = 0.0

    def foresee(self, transaction: Transaction, action: Action, now: float) -> Action:
        """The failover, with what it should come to."""
        window_s, agent = self._limits.recovery_window_s, transaction.agents.get(action.target.host)
        before = self._traffic.rate(action.target.host, now - window_s, now)
        best = self._traffic.best(action.target.host, window_s, now)
        if agent is None or before is None or best is None:
            return action
        nics = {device for device, usable in agent.devices.items() if usable} | {action.target.device}
        allowed = best * (len(nics) - 1) / len(nics)
        foreseen: Action = with_changes(
            action,
            goodput_before=before,
            goodput_allowed=allowed,
            predicted=allowed / before if before >= _IDLE_BYTES_S else 0.0,
        )
        return foreseen

    def reconcile(self, transaction: Transaction, now: float) -> None:
        """Judges the failovers whose time has come."""
        if now - self._kept_at > _KEEP_EVERY_S:
            self._kept_at = now
            self._traffic.keep(transaction.agents)
        for action in list(transaction.actions.values()):
            waits = action.outcome == "succeeded" and action.action == "nic.avoid" and not action.recovery
            if waits and (recovery := self._outcome(transaction, action, now)):
                self._note(transaction, action, *recovery)

    def _outcome(self, transaction: Transaction, action: Action, now: float) -> tuple[Recovery, float] | None:
        """What came of it, and bytes per second afterwards; None while it is too early to tell."""
        since = action.verified_at + _SETTLE_S
        until = since + self._limits.recovery_window_s
        current = transaction.targets.get(action.target.key)
        if current is None or (current.op_id != action.op_id and current.changed_at < until):
            return "unknown", 0.0
        if now < until:
            return None
        after = self._traffic.rate(action.target.host, since, until)
        if after is None:
            late = now > until + self._limits.agent_timeout_s + SPACING_S
            return ("unknown", 0.0) if late else None
        if max(after, action.goodput_allowed) < _IDLE_BYTES_S:
            return "idle", after
        if not action.goodput_allowed:
            return "unknown", after
        return (
            "recovered" if after >= self._limits.recovery_share * action.goodput_allowed else "not_recovered"
        ), after

    @staticmethod
    def _note(transaction: Transaction, action: Action, recovery: Recovery, after: float) -> None:
        before = action.goodput_before
        measured = after / before if before >= _IDLE_BYTES_S and recovery != "unknown" else 0.0
        transaction.put_action(
            with_changes(action, recovery=recovery, goodput_after=after, measured=measured)
        )
        transaction.log(
            action.target.key,
            "judged",
            op_id=action.op_id,
            alert=action.alert,
            recovery=recovery,
            predicted=round(action.predicted, 3),
            measured=round(measured, 3),
        )
