"""The rebalancing controller: one plan at a time, tried, measured, and rolled back unless it has helped. Pure.

    awaiting_approval -> moving -> measuring -> kept
                           ^          | less than was predicted: slow lanes get another path, up to max_tries;
                           +----------+ then all go back to where they had the best gain
                                      | no gain, a loss, or nothing to measure with
                                      v
                                  rolling_back -> rolled_back, or withdrawn where nothing was measured;
                                                  rollback_failed where lanes are not back

One plan at a time in the whole fleet: the effects of two at once could not be separated. This file decides which
plan is begun and takes what agents and operators say; `rebalance_trial` carries it out.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from fabricpulse.remediation.protocol import LaneOrder, Result
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.guards.guards import SETTLING, Guards
from fabricpulse.remediation.receiver.rebalance.history import (
    new_paths,
    operations,
    reached,
    resting,
    unhelpful,
)
from fabricpulse.remediation.receiver.rebalance.lane_evidence import LaneEvidence, LaneSummary
from fabricpulse.remediation.receiver.rebalance.lane_places import Leaves
from fabricpulse.remediation.receiver.rebalance.lane_planner import NO_LEAVES, Proposal, propose
from fabricpulse.remediation.receiver.rebalance.lane_requests import (
    LaneRequest,
    is_answered,
    is_lane_rule,
    lane_requests,
    reports_lanes,
    why_not,
)
from fabricpulse.remediation.receiver.rebalance.trial import Trial, forbidden
from fabricpulse.remediation.receiver.state.in_flight import ACTING, is_paused
from fabricpulse.remediation.receiver.state.model import Rebalance, RebalancePhase
from fabricpulse.remediation.receiver.state.transaction import Transaction, with_changes

_ACTIVE: tuple[RebalancePhase, ...] = ("awaiting_approval", "moving", "measuring", "rolling_back")
_ENDED_KEPT = 200
# Least time between two searches for collisions.
_SEARCH_INTERVAL_S = 2.0
# New paths for each lane of a job, on average, in the quarter of an hour that is remembered.
_SEARCHED = 2
# Alerts that one search looks into.
_AT_ONCE = 20
# The plugin's error code for a connection that is not open any more, as agents pass it on.
_NO_SUCH_LANE = "unknown_lane:"


class Rebalancer:
    """The controller, for one configuration. nics : see Guards."""

    def __init__(
        self,
        config: ReceiverConfig,
        nics: dict[str, frozenset[str]],
        evidence: LaneEvidence,
        leaves: Leaves = NO_LEAVES,
    ) -> None:
        """leaves : where NICs are plugged in, as far as that is known."""
        self._config = config
        self._rebalance = config.rebalance
        self._nics = nics
        self._evidence = evidence
        self._leaves = leaves
        self._trial = Trial(config, evidence)
        self._rules = {rule.alert: rule for rule in config.rules}
        self._searched_at = 0.0
        self._next = 0

    @property
    def is_on(self) -> bool:
        """Whether it needs what lanes do."""
        return reports_lanes(self._config)

    def reconcile(self, transaction: Transaction, now: float) -> None:
        """Goes on with the plan under way, or makes one."""
        active = [plan for plan in transaction.rebalances.values() if plan.phase in _ACTIVE]
        if not active and not self.is_on:
            return
        guards = Guards(self._config, self._nics, transaction, now)
        requests = lane_requests(transaction, self._rules)
        asked = {request.key for request in requests}
        for plan in active:
            if plan.phase == "awaiting_approval" and plan.episode and plan.episode not in asked:
                self._trial.drop(transaction, plan, "no alert asks for it any more", now)
                continue
            if plan.phase != "rolling_back" and not self._acts(plan):
                self._trial.withdraw(transaction, plan, "its rule acts no more", now)
                continue
            self._trial.advance(transaction, guards, plan, now)
        if not active:
            self._propose(transaction, guards, requests, now)
            self._forget(transaction)

    def _acts(self, plan: Rebalance) -> bool:
        """Whether what has led to this plan may still change something."""
        if not plan.alert:
            return self._rebalance.mode in ACTING
        rule = self._rules.get(plan.alert)
        return rule is not None and is_lane_rule(rule) and rule.mode in ACTING

    def orders(self, transaction: Any, host: str, now: float) -> list[LaneOrder]:
        """Operations on a host that have no result so far; none while paused. transaction : or a State."""
        if is_paused(transaction.pause, now):
            return []
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
        """A result of an operation on a lane; another host's, or an older operation's, is ignored. One that comes late
        counts: the lane has moved."""
        outcome = "gone" if result.message.startswith(_NO_SUCH_LANE) else result.outcome
        for plan in transaction.rebalances.values():
            if plan.phase not in ("moving", "measuring", "rolling_back"):
                continue
            moves = tuple(
                with_changes(move, outcome=outcome)
                if (move.op_id, move.host) == (result.op_id, host) and move.outcome in ("pending", "unknown")
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

    def _propose(
        self, transaction: Transaction, guards: Guards, requests: list[LaneRequest], now: float
    ) -> None:
        config = self._rebalance
        if 0 <= now - self._searched_at < _SEARCH_INTERVAL_S:
            return
        self._searched_at = now
        self._forget_blocked(transaction, requests)
        if config.mode == "observe" and not requests:
            return
        stopped = unhelpful(transaction) >= config.max_unhelpful
        lanes = self._evidence.summaries(now - config.window_s, now)
        repathed = self._evidence.repathed(now - max(config.quiet_s, config.window_s), now)
        lanes = {key: lane for key, lane in lanes.items() if key in repathed}
        searched = self._searched(transaction, lanes)
        for key, lane in lanes.items():
            if repathed[key]:
                lanes[key] = replace(lane, repathed=True)
        rests, best = resting(transaction, config.cooldown_s, now), reached(transaction)
        for request in self._next_batch(requests):
            if is_answered(request, transaction.rebalances.values()):
                continue
            if reason := guards.lane_alert(request.episode):
                self._block(transaction, request, reason)
                continue
            proposals = propose(config, lanes, rests, best, request, self._leaves, searched)
            reason = "unhelpful" if stopped else why_not(request, lanes, rests)
            for proposal in [] if stopped else proposals:
                reason = self._refusal(transaction, guards, proposal, now)
                if not reason:
                    self._start(transaction, proposal, lanes, now, request)
                    return
            self._block(transaction, request, reason)
        if stopped or config.mode == "observe":
            return
        for proposal in propose(config, lanes, rests, best, leaves=self._leaves, searched=searched):
            if not self._refusal(transaction, guards, proposal, now):
                self._start(transaction, proposal, lanes, now)
                return

    def _searched(self, transaction: Transaction, lanes: Mapping[str, LaneSummary]) -> set[str]:
        """Jobs for whose lanes the plugin has tried several paths by itself lately: they did not all stay on one link,
        and what the plugin has found for the job a plan for it would undo."""
        moves, ordered = self._evidence.moves(), new_paths(transaction)
        own: Counter[str] = Counter()
        count: Counter[str] = Counter()
        for key, lane in lanes.items():
            own[lane.job] += max(0, moves.get(key, 0) - ordered.get(key, 0))
            count[lane.job] += 1
        return {job for job, tried in own.items() if tried >= _SEARCHED * count[job]}

    def _refusal(self, transaction: Transaction, guards: Guards, proposal: Proposal, now: float) -> str:
        """Why the proposal is not tried, "" if it may be."""
        if proposal.predicted < self._rebalance.min_gain:
            return "no_gain"
        # The operations of the last hour count, and those of a whole plan must still be free.
        left = self._rebalance.operations_per_hour - operations(transaction, now)
        return "rate" if left < len(proposal.moves) else forbidden(guards, proposal.moves)

    def _start(
        self,
        transaction: Transaction,
        proposal: Proposal,
        lanes: Mapping[str, LaneSummary],
        now: float,
        request: LaneRequest | None = None,
    ) -> None:
        mode = self._rebalance.mode if request is None else request.rule.mode
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
            max_tries=proposal.max_tries,
            phase=phase,
            created_at=now,
            changed_at=now,
            hash=hashlib.sha256(msgspec.json.encode(bound)).hexdigest()[:16],
            alert=request.rule.alert if request is not None else "",
            episode=request.key if request is not None else "",
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
            **({"alert": plan.alert} if plan.alert else {}),
        )
        transaction.put_rebalance(plan)
        if phase == "moving":
            self._trial.begin(plan, lanes)
            self._trial.order(transaction, plan, now, {move.key for move in plan.moves})

    def _next_batch(self, requests: list[LaneRequest]) -> list[LaneRequest]:
        """The requests that one search looks into: a storm of alerts must not hold up the others' deliveries."""
        begin = self._next if self._next < len(requests) else 0
        self._next = begin + _AT_ONCE
        return requests[begin : begin + _AT_ONCE]

    @staticmethod
    def _block(transaction: Transaction, request: LaneRequest, reason: str) -> None:
        """Writes once an episode and reason why lanes stay as they are."""
        fingerprint = request.episode.fingerprint
        before = transaction.lanes_blocked.get(fingerprint, "")
        reasons = before.removeprefix(request.key).split() if before.startswith(f"{request.key} ") else []
        # What is measured may be now just below a limit, now above: that is not worth a line each time.
        if reason != SETTLING and reason not in reasons:
            noted = " ".join([request.key, *reasons, reason])
            transaction.set(lanes_blocked={**transaction.lanes_blocked, fingerprint: noted})
            transaction.log(
                request.episode.target.host,
                "blocked",
                reason=reason,
                action=request.rule.action,
                alert=request.rule.alert,
            )

    @staticmethod
    def _forget_blocked(transaction: Transaction, requests: list[LaneRequest]) -> None:
        asked = {request.episode.fingerprint for request in requests}
        if transaction.lanes_blocked.keys() - asked:
            left = {name: noted for name, noted in transaction.lanes_blocked.items() if name in asked}
            transaction.set(lanes_blocked=left)

    @staticmethod
    def _forget(transaction: Transaction) -> None:
        if len(transaction.rebalances) > _ENDED_KEPT:
            by_age = sorted(transaction.rebalances.values(), key=lambda plan: plan.changed_at)
            transaction.drop("rebalances", [plan.id for plan in by_age[:-_ENDED_KEPT]])
