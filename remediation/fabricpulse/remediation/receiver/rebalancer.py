"""The rebalancing controller: one plan at a time, tried, measured, and rolled back unless it has helped. Pure.

    awaiting_approval -> moving -> measuring -> kept
                           ^          | less than was predicted: slow lanes get another path, up to max_tries;
                           +----------+ then all go back to where they had the best gain
                                      | no gain, a loss, or nothing to measure with
                                      v
                                  rolling_back -> rolled_back

One plan at a time in the whole fleet: two at once could not be told apart by what they change. What a plan has to show
is goodput of the jobs in its scope, over a window after the last operation settled; the agents' reports may come late,
so a window begins when the result of the last operation was reported, and ends with samples of its last third.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from fabricpulse.remediation.protocol import LaneOrder, Result
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.guards import Guards
from fabricpulse.remediation.receiver.lane_evidence import LaneEvidence, LaneSummary, goodput_by_workload
from fabricpulse.remediation.receiver.lane_planner import Proposal, propose, slow_lanes
from fabricpulse.remediation.receiver.model import LaneMove, Rebalance, RebalancePhase, Target
from fabricpulse.remediation.receiver.plans import APPROVAL_VALID_S
from fabricpulse.remediation.receiver.transaction import Transaction, with_changes

_ACTIVE: tuple[RebalancePhase, ...] = ("awaiting_approval", "moving", "measuring", "rolling_back")
_ENDED_KEPT = 200
# Between two looks for collisions.
_LOOK_S = 2.0
_DAY_S = 86_400.0
# A plan that has reached so much of what was predicted is done.
_DONE = 1 / 1.15


class Rebalancer:
    """The controller, for one configuration. nics : see Guards."""

    def __init__(
        self, config: ReceiverConfig, nics: dict[str, frozenset[str]], evidence: LaneEvidence
    ) -> None:
        self._config = config
        self._rebalance = config.rebalance
        self._nics = nics
        self._evidence = evidence
        self._looked_at = 0.0

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
            self._step(transaction, guards, plan, now)
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

    # --- a new plan ------------------------------------------------------------------------------------------------

    def _propose(self, transaction: Transaction, guards: Guards, now: float) -> None:
        config = self._rebalance
        # The operations of the last hour count, and those of a whole plan must still be free.
        if self._unhelpful(transaction) >= config.max_unhelpful:
            return
        if 0 <= now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        lanes = self._evidence.summaries(now - config.window_s, now)
        if not lanes:
            return
        quiet = self._evidence.summaries(now - max(config.quiet_s, config.window_s), now)
        lanes = {key: lane for key, lane in lanes.items() if key in quiet}
        for key in lanes:
            if quiet[key].repathed:
                lanes[key] = _repathed(lanes[key])
        for proposal in propose(config, lanes, self._resting(transaction, now), _reached(transaction)):
            left = config.operations_per_hour - self._operations(transaction, now)
            if proposal.predicted < config.min_gain or left < len(proposal.moves):
                continue
            if self._forbidden(guards, proposal.moves):
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
            self._order(transaction, plan, now, {move.key for move in plan.moves})

    def _forbidden(self, guards: Guards, moves: tuple[LaneMove, ...]) -> str:
        for host, device in sorted({(move.host, move.device) for move in moves}):
            if reason := guards.lane(Target(host, device)):
                return reason
        return ""

    def _resting(self, transaction: Transaction, now: float) -> dict[str, Literal["cooldown", "no_new_path"]]:
        """Jobs that had a plan lately. After new paths in vain a weight may be tried, once the cooldown is over."""
        resting: dict[str, Literal["cooldown", "no_new_path"]] = {}
        for workload in {plan.workload for plan in transaction.rebalances.values()}:
            plans = sorted(
                (p for p in transaction.rebalances.values() if p.workload == workload),
                key=lambda p: p.created_at,
            )
            in_vain = 0
            for plan in reversed(plans):
                if plan.phase != "rolled_back":
                    break
                in_vain += 1
            pause_s = min(_DAY_S, self._rebalance.cooldown_s * 2.0 ** min(20, in_vain))
            if now - plans[-1].changed_at < pause_s:
                resting[workload] = "cooldown"
            elif in_vain and plans[-1].moves[0].operation == "lane.repath":
                resting[workload] = "no_new_path"
        return resting

    @staticmethod
    def _unhelpful(transaction: Transaction) -> int:
        """Plans in a row, the last ones since an operator resumed, that did not help."""
        count = 0
        for plan in sorted(transaction.rebalances.values(), key=lambda p: p.changed_at, reverse=True):
            if plan.phase == "kept" or plan.changed_at <= transaction.resumed_at:
                break
            count += plan.phase == "rolled_back"
        return count

    @staticmethod
    def _operations(transaction: Transaction, now: float) -> int:
        return sum(p.operations for p in transaction.rebalances.values() if now - p.changed_at <= 3600.0)

    # --- the plan under way ----------------------------------------------------------------------------------------

    def _step(self, transaction: Transaction, guards: Guards, plan: Rebalance, now: float) -> None:
        reason = self._forbidden(guards, plan.moves)
        if plan.phase == "awaiting_approval":
            self._await(transaction, plan, reason, now)
            return
        if reason in ("paused", "maintenance", "breaker", "frozen"):
            # Nothing is decided; afterwards it is judged by what is measured then.
            if reason != plan.blocked:
                transaction.put_rebalance(with_changes(plan, blocked=reason, changed_at=now))
                transaction.log(plan.workload, "blocked", reason=reason)
            return
        if plan.blocked:
            plan = with_changes(plan, blocked="", changed_at=now)
            transaction.put_rebalance(plan)
        if plan.phase == "measuring":
            self._measure(transaction, plan, now)
            return
        limits = self._config.guards
        if any(move.outcome == "pending" for move in plan.moves):
            if now - plan.changed_at <= limits.intent_ttl_s:
                return
            moves = tuple(
                with_changes(move, outcome="failed") if move.outcome == "pending" else move
                for move in plan.moves
            )
            plan = with_changes(plan, moves=moves, changed_at=now)
            transaction.log(
                plan.workload, "expired", plan=plan.hash, reason="an agent did not answer in time"
            )
        if plan.phase == "rolling_back":
            self._end(transaction, plan, "rolled_back", plan.reason, now)
        elif not any(move.outcome == "applied" for move in plan.moves):
            self._end(transaction, plan, "dropped", "no lane could be moved", now)
        else:
            transaction.put_rebalance(with_changes(plan, phase="measuring", changed_at=now))

    def _await(self, transaction: Transaction, plan: Rebalance, forbidden: str, now: float) -> None:
        waited = now - (plan.approved_at or plan.created_at)
        if waited > APPROVAL_VALID_S:
            self._end(transaction, plan, "dropped", "not approved in time", now)
        elif plan.approved_at and not forbidden:
            # What it is measured against is what is now, not what was when it was proposed.
            lanes = self._evidence.summaries(now - self._rebalance.window_s, now)
            moves = tuple(_as_now(move, lanes[move.key]) for move in plan.moves if move.key in lanes)
            if not moves:
                return
            plan = with_changes(plan, moves=moves, before=goodput_by_workload(lanes), changed_at=now)
            transaction.log(plan.workload, "rebalance", plan=plan.hash, owner=plan.approved_by)
            self._order(transaction, plan, now, {move.key for move in plan.moves})

    def _measure(self, transaction: Transaction, plan: Rebalance, now: float) -> None:
        config = self._rebalance
        since = plan.changed_at + config.settle_s
        until = since + config.window_s
        if now < until:
            return
        lanes = self._evidence.summaries(since, until)
        seen = [move for move in plan.moves if move.key in lanes]
        if not seen:
            # Reports may be late; without any the jobs have ended, or nobody sees them: then nothing is proven.
            if now - until > self._config.guards.intent_ttl_s:
                self._roll_back(transaction, plan, "nothing could be measured", now)
            return
        if any(lanes[move.key].last.repaths > move.repaths + move.tries for move in seen):
            self._roll_back(transaction, plan, "the plugin has re-pathed a lane of it by itself", now)
            return
        after = goodput_by_workload(lanes)
        gain = _ratio(plan.before, after, plan.scope)
        plan = with_changes(plan, measured=gain)
        lost = [w for w in plan.before if w in after and after[w] < (1 - config.max_loss) * plan.before[w]]
        if not lost and gain > plan.best:
            plan = _as_best(plan, lanes, gain)
        slow = {lane.key for lane in slow_lanes(config, [lanes[move.key] for move in seen])}
        enough = plan.returning or gain >= _DONE * plan.predicted or not slow
        last = plan.tries >= config.max_tries or plan.moves[0].operation == "lane.weight"
        if not lost and gain >= config.min_gain and (enough or (last and gain >= plan.best)):
            self._end(transaction, plan, "kept", "goodput has risen", now)
        elif not last and not lost and not plan.returning:
            self._try_again(transaction, plan, lanes, slow, now)
        else:
            self._give_up(
                transaction, plan, f"{lost[0]} lost goodput" if lost else "goodput has not risen", now
            )

    def _give_up(self, transaction: Transaction, plan: Rebalance, reason: str, now: float) -> None:
        """Back to where the lanes had the best gain, if it was one; else to where they were before."""
        away = {
            move.key
            for move in plan.moves
            if move.outcome == "applied" and move.entropy_best and move.operation == "lane.repath"
        }
        nameable = all(_port(move.entropy_best) for move in plan.moves if move.key in away)
        if plan.returning or plan.best < self._rebalance.min_gain or not away or not nameable:
            self._roll_back(transaction, plan, reason, now)
            return
        moves = tuple(
            msgspec.structs.replace(move, value=_port(move.entropy_best)) if move.key in away else move
            for move in plan.moves
        )
        transaction.log(
            plan.workload, "rebalance_returns", plan=plan.hash, reason=reason, best=round(plan.best, 3)
        )
        self._order(transaction, with_changes(plan, moves=moves, returning=True), now, away)

    def _try_again(
        self,
        transaction: Transaction,
        plan: Rebalance,
        lanes: Mapping[str, LaneSummary],
        slow: set[str],
        now: float,
    ) -> None:
        """Another path for the lanes that have not gained or are slow; the others stay where they are."""
        gained = self._rebalance.min_gain
        moves = tuple(
            with_changes(
                move,
                kept=move.key in lanes
                and move.key not in slow
                and lanes[move.key].capacity >= gained * move.capacity_before,
            )
            for move in plan.moves
        )
        again = {move.key for move in moves if not move.kept and move.outcome == "applied"}
        # All of them have room now and the job has not gained: it is bounded by something else, or by how they fell.
        again = again or {move.key for move in moves if move.outcome == "applied"}
        if self._operations(transaction, now) + len(again) > self._rebalance.operations_per_hour:
            self._give_up(transaction, plan, "no operations left in this hour", now)
            return
        self._order(transaction, with_changes(plan, moves=moves), now, again)

    def _order(self, transaction: Transaction, plan: Rebalance, now: float, keys: set[str]) -> None:
        number = max(int(now * 1000), *(move.generation + 1 for move in plan.moves))
        moves = tuple(
            with_changes(
                move,
                generation=number,
                op_id=f"lane-{number}-{index}",
                outcome="pending",
                tries=move.tries + (move.operation == "lane.repath"),
            )
            if move.key in keys
            else move
            for index, move in enumerate(plan.moves)
        )
        transaction.put_rebalance(
            with_changes(
                plan,
                moves=moves,
                phase="moving",
                tries=plan.tries + 1,
                operations=plan.operations + len(keys),
                changed_at=now,
            )
        )
        self._log_orders(transaction, plan.hash, moves, number)

    @staticmethod
    def _log_orders(transaction: Transaction, plan: str, moves: tuple[LaneMove, ...], number: int) -> None:
        """A line for each operation; its subject wakes the agent of the host."""
        for move in moves:
            if move.generation == number:
                transaction.log(
                    move.key, move.operation, op_id=move.op_id, generation=number, plan=plan, value=move.value
                )

    def _roll_back(self, transaction: Transaction, plan: Rebalance, reason: str, now: float) -> None:
        number = max(int(now * 1000), *(move.generation + 1 for move in plan.moves))
        moves = tuple(
            msgspec.structs.replace(
                move,
                generation=number,
                op_id=f"lane-{number}-{index}",
                outcome="pending",
                # A port below 1024, or a flow label, cannot be named again.
                value=_port(move.entropy_before) if move.operation == "lane.repath" else None,
            )
            if move.outcome == "applied"
            else move
            for index, move in enumerate(plan.moves)
        )
        transaction.put_rebalance(
            with_changes(plan, moves=moves, phase="rolling_back", reason=reason, changed_at=now)
        )
        transaction.log(
            plan.workload, "rebalance_undone", plan=plan.hash, reason=reason, measured=round(plan.measured, 3)
        )
        self._log_orders(transaction, plan.hash, moves, number)

    def _end(
        self, transaction: Transaction, plan: Rebalance, phase: RebalancePhase, reason: str, now: float
    ) -> None:
        transaction.put_rebalance(with_changes(plan, phase=phase, reason=reason, changed_at=now))
        transaction.log(
            plan.workload,
            f"rebalance_{phase}",
            plan=plan.hash,
            reason=reason,
            predicted=round(plan.predicted, 3),
            measured=round(plan.measured, 3),
        )

        if phase == "rolled_back" and self._unhelpful(transaction) >= self._rebalance.max_unhelpful:
            transaction.log("fleet", "blocked", reason="unhelpful")

    @staticmethod
    def _forget(transaction: Transaction) -> None:
        if len(transaction.rebalances) > _ENDED_KEPT:
            by_age = sorted(transaction.rebalances.values(), key=lambda plan: plan.changed_at)
            transaction.drop("rebalances", [plan.id for plan in by_age[:-_ENDED_KEPT]])


def _repathed(lane: LaneSummary) -> LaneSummary:
    return replace(lane, repathed=True)


def _reached(transaction: Transaction) -> dict[tuple[str, ...], float]:
    """Scope of plans that helped -> goodput that it had afterwards."""
    plans = sorted(transaction.rebalances.values(), key=lambda plan: plan.changed_at)
    return {
        plan.scope: plan.measured * sum(plan.before.get(w, 0.0) for w in plan.scope)
        for plan in plans
        if plan.phase == "kept"
    }


def _as_best(plan: Rebalance, lanes: Mapping[str, LaneSummary], gain: float) -> Rebalance:
    """The plan, with where its lanes are now as the best that was measured."""
    moves = tuple(
        with_changes(move, entropy_best=lanes[move.key].last.entropy if move.key in lanes else 0)
        for move in plan.moves
    )
    best: Rebalance = with_changes(plan, moves=moves, best=gain)
    return best


def _as_now(move: LaneMove, lane: LaneSummary) -> LaneMove:
    last = lane.last
    now: LaneMove = with_changes(
        move, entropy_before=last.entropy, capacity_before=lane.capacity, repaths=last.repaths
    )
    return now


def _port(entropy: int) -> int | None:
    return entropy if 1024 <= entropy <= 65535 else None


def _ratio(before: Mapping[str, float], after: Mapping[str, float], scope: tuple[str, ...]) -> float:
    """Goodput of the jobs of the scope that are still there, afterwards by before."""
    there = [w for w in scope if w in before and w in after]
    total = sum(before[w] for w in there)
    return sum(after[w] for w in there) / total if total > 0 else 0.0
