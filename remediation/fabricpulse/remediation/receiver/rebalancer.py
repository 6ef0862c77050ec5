"""The rebalancing controller: one plan at a time, tried, measured, and rolled back unless it has helped. Pure.

    awaiting_approval -> moving -> measuring -> kept
                           ^          | less than was predicted: slow lanes get another path, up to max_tries;
                           +----------+ then all go back to where they had the best gain
                                      | no gain, a loss, or nothing to measure with
                                      v
                                  rolling_back -> rolled_back

One plan at a time in the whole fleet: two at once could not be told apart by what they change. This file decides which
plan is begun and takes what agents and operators say; `rebalance_trial` carries it out.
"""

import hashlib
from dataclasses import replace
from typing import Any

import msgspec

from fabricpulse.remediation.protocol import LaneOrder, Result
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.guards import Guards
from fabricpulse.remediation.receiver.lane_evidence import LaneEvidence
from fabricpulse.remediation.receiver.lane_planner import Proposal, propose
from fabricpulse.remediation.receiver.model import Rebalance, RebalancePhase
from fabricpulse.remediation.receiver.rebalance_history import operations, reached, resting, unhelpful
from fabricpulse.remediation.receiver.rebalance_trial import Trial, forbidden
from fabricpulse.remediation.receiver.transaction import Transaction, with_changes

_ACTIVE: tuple[RebalancePhase, ...] = ("awaiting_approval", "moving", "measuring", "rolling_back")
_ENDED_KEPT = 200
# Least time between two searches for collisions.
_SEARCH_INTERVAL_S = 2.0


class Rebalancer:
    """The controller, for one configuration. nics : see Guards."""

    def __init__(
        self, config: ReceiverConfig, nics: dict[str, frozenset[str]], evidence: LaneEvidence
    ) -> None:
        self._config = config
        self._rebalance = config.rebalance
        self._nics = nics
        self._evidence = evidence
        self._trial = Trial(config, evidence)
        self._searched_at = 0.0

    @property
    def is_on(self) -> bool:
        """Whether it wants to know what lanes do."""
        return self._rebalance.mode != "observe"

    def reconcile(self, transaction: Transaction, now: float) -> None:
        """Goes on with the plan under way, or makes one."""
        active = [plan for plan in transaction.rebalances.values() if plan.phase in _ACTIVE]
        if not active and not self.is_on:
            return
        guards = Guards(self._config, self._nics, transaction, now)
        for plan in active:
            self._trial.advance(transaction, guards, plan, now)
        if not active:
            self._propose(transaction, guards, now)
            self._forget(transaction)

    def orders(self, transaction: Any, host: str) -> list[LaneOrder]:
        """Operations on a host that have no result so far. transaction : or a State."""
        return [
            LaneOrder(
                move.process,
                move.connection,
                move.lane,
                move.device,
                move.operation,
                move.value,
                move.generation,
                move.op_id,
            )
            for plan in transaction.rebalances.values()
            if plan.phase in ("moving", "rolling_back")
            for move in plan.moves
            if move.host == host and move.outcome == "pending"
        ]

    def on_result(self, transaction: Transaction, host: str, result: Result, now: float) -> None:
        """A result of an operation on a lane; another host's, or an older operation's, is ignored."""
        for plan in transaction.rebalances.values():
            if plan.phase not in ("moving", "rolling_back"):
                continue
            moves = tuple(
                with_changes(move, outcome=result.outcome)
                if (move.op_id, move.host, move.outcome) == (result.op_id, host, "pending")
                else move
                for move in plan.moves
            )
            if moves != plan.moves:
                transaction.put_rebalance(with_changes(plan, moves=moves, changed_at=now))
                if result.outcome != "applied":
                    transaction.log(plan.workload, "lane_refused", op_id=result.op_id, reason=result.message)

    def approve(self, transaction: Transaction, plan_hash: str, owner: str, now: float) -> bool:
        """Approves the plan with this hash. False when no such plan waits."""
        for plan in transaction.rebalances.values():
            if plan.hash == plan_hash and plan.phase == "awaiting_approval" and not plan.approved_at:
                transaction.put_rebalance(with_changes(plan, approved_at=now, approved_by=owner))
                transaction.log(plan.workload, "approved", plan=plan_hash, action="rebalance", owner=owner)
                return True
        return False

    def _propose(self, transaction: Transaction, guards: Guards, now: float) -> None:
        config = self._rebalance
        # The operations of the last hour count, and those of a whole plan must still be free.
        if unhelpful(transaction) >= config.max_unhelpful:
            return
        if 0 <= now - self._searched_at < _SEARCH_INTERVAL_S:
            return
        self._searched_at = now
        lanes = self._evidence.summaries(now - config.window_s, now)
        if not lanes:
            return
        quiet = self._evidence.summaries(now - max(config.quiet_s, config.window_s), now)
        lanes = {key: lane for key, lane in lanes.items() if key in quiet}
        for key in lanes:
            if quiet[key].repathed:
                lanes[key] = replace(lanes[key], repathed=True)
        for proposal in propose(
            config, lanes, resting(transaction, config.cooldown_s, now), reached(transaction)
        ):
            left = config.operations_per_hour - operations(transaction, now)
            if proposal.predicted < config.min_gain or left < len(proposal.moves):
                continue
            if forbidden(guards, proposal.moves):
                continue
            self._start(transaction, proposal, now)
            return

    def _start(self, transaction: Transaction, proposal: Proposal, now: float) -> None:
        mode = self._rebalance.mode
        number = int(now * 1000)
        bound = [proposal.workload, number, [move.key for move in proposal.moves]]
        phase: RebalancePhase = (
            "dry_run" if mode == "dry_run" else "awaiting_approval" if mode == "approve" else "moving"
        )
        plan = Rebalance(
            id=f"rebalance/{proposal.workload}#{number}",
            workload=proposal.workload,
            scope=proposal.scope,
            moves=proposal.moves,
            before=proposal.before,
            predicted=proposal.predicted,
            reason=proposal.reason,
            phase=phase,
            created_at=now,
            changed_at=now,
            hash=hashlib.sha256(msgspec.json.encode(bound)).hexdigest()[:16],
        )
        event = {"dry_run": "would_rebalance", "awaiting_approval": "awaiting_approval"}.get(
            phase, "rebalance"
        )
        transaction.log(
            plan.workload,
            event,
            plan=plan.hash,
            action=proposal.moves[0].operation,
            lanes=len(plan.moves),
            scope=list(plan.scope),
            predicted=round(plan.predicted, 3),
            reason=plan.reason,
        )
        transaction.put_rebalance(plan)
        if phase == "moving":
            self._trial.order(transaction, plan, now, {move.key for move in plan.moves})

    @staticmethod
    def _forget(transaction: Transaction) -> None:
        if len(transaction.rebalances) > _ENDED_KEPT:
            by_age = sorted(transaction.rebalances.values(), key=lambda plan: plan.changed_at)
            transaction.drop("rebalances", [plan.id for plan in by_age[:-_ENDED_KEPT]])
