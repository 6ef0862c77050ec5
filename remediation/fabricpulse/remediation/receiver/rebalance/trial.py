"""The rebalancing plan under way: moved, measured, tried again, kept or rolled back. Pure.

What a plan has to show is goodput of the jobs in its scope, over a window after the last operation settled; the agents'
reports may come late, so a window begins when the result of the last operation was reported, and ends with samples of
its last third.
"""

from collections.abc import Mapping

import msgspec

from fabricpulse.remediation.protocol import LaneSample
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.guards.guards import Guards
from fabricpulse.remediation.receiver.rebalance.comparison import compared, goodput_by_process
from fabricpulse.remediation.receiver.rebalance.history import DONE, did_not_help, operations, unhelpful
from fabricpulse.remediation.receiver.rebalance.lane_evidence import (
    LaneEvidence,
    LaneSummary,
    goodput_by_job,
)
from fabricpulse.remediation.receiver.rebalance.lane_planner import slow_lanes
from fabricpulse.remediation.receiver.rebalance.lane_requests import reports_lanes
from fabricpulse.remediation.receiver.state.model import LaneMove, Rebalance, RebalancePhase, Target
from fabricpulse.remediation.receiver.state.plans import APPROVAL_VALID_S
from fabricpulse.remediation.receiver.state.transaction import Transaction, with_changes

# Measurements of one plan that begin anew because the plugin has re-pathed lanes of it.
_MOST_DISTURBED = 3
# How long a lane that was ordered back may take until its telemetry shows it, and how often it is ordered back: an
# agent that is started anew, or paused on its host for a moment, carries the next order out.
_SHOWN_S = 30.0
_MOST_UNDONE = 4


class Trial:
    """Carries a plan out, for one configuration. The plan itself is all its state."""

    def __init__(self, config: ReceiverConfig, evidence: LaneEvidence) -> None:
        self._config = config
        self._rebalance = config.rebalance
        self._evidence = evidence

    def advance(self, transaction: Transaction, guards: Guards, plan: Rebalance, now: float) -> None:
        """Goes on with the plan."""
        reason = forbidden(guards, plan.moves)
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
        if any(move.outcome == "pending" for move in plan.moves):
            if now - plan.changed_at <= self._config.guards.intent_ttl_s:
                return
            moves = tuple(
                with_changes(move, outcome="unknown") if move.outcome == "pending" else move
                for move in plan.moves
            )
            plan = with_changes(plan, moves=moves)
            transaction.put_rebalance(plan)
            transaction.log(
                plan.workload, "expired", plan=plan.hash, reason="an agent did not answer in time"
            )
        if plan.phase == "rolling_back":
            self._bring_back(transaction, plan, now)
        elif not any(self._may_have_moved(move, now) for move in plan.moves):
            self._end(transaction, plan, "dropped", "no lane could be moved", now)
        elif not any(move.outcome == "applied" for move in plan.moves):
            self.withdraw(transaction, plan, "no agent says that it has moved a lane", now)
        else:
            transaction.put_rebalance(with_changes(plan, phase="measuring", changed_at=now))

    def begin(self, plan: Rebalance, lanes: Mapping[str, LaneSummary]) -> None:
        """Keeps what the plan is measured against: what lanes do before it moves the first one."""
        self._evidence.keep_before(plan.id, goodput_by_process(lanes))

    def drop(self, transaction: Transaction, plan: Rebalance, reason: str, now: float) -> None:
        """Ends a plan that has moved nothing."""
        self._end(transaction, plan, "dropped", reason, now)

    def withdraw(self, transaction: Transaction, plan: Rebalance, reason: str, now: float) -> None:
        """Ends a plan that must not go on: what it has moved, or may have, goes back."""
        if plan.phase == "awaiting_approval":
            self.drop(transaction, plan, reason, now)
        else:
            self._roll_back(transaction, with_changes(plan, withdrawn=True), reason, now)

    def _await(self, transaction: Transaction, plan: Rebalance, refusal: str, now: float) -> None:
        waited = now - (plan.approved_at or plan.created_at)
        if waited > APPROVAL_VALID_S:
            self._end(transaction, plan, "dropped", "not approved in time", now)
        elif plan.approved_at and not refusal:
            # What it is measured against is what is now, not what was when it was proposed.
            lanes = self._evidence.summaries(now - self._rebalance.window_s, now)
            moves = tuple(_as_now(move, lanes[move.key]) for move in plan.moves if move.key in lanes)
            if not moves:
                return
            plan = with_changes(plan, moves=moves, before=goodput_by_job(lanes), changed_at=now)
            self.begin(plan, lanes)
            transaction.log(plan.workload, "rebalance", plan=plan.hash, owner=plan.approved_by)
            self.order(transaction, plan, now, {move.key for move in plan.moves})

    def _measure(self, transaction: Transaction, plan: Rebalance, now: float) -> None:
        config = self._rebalance
        since = plan.changed_at + config.settle_s
        until = since + config.window_s
        if now < until:
            return
        lanes = self._evidence.summaries(since, until)
        seen = [move for move in plan.moves if move.key in lanes]
        jobs = compared(self._evidence.before(plan.id), goodput_by_process(lanes))
        if not seen or not jobs.keys() & set(plan.scope):
            # Reports may be late; without any the jobs have ended, or no agent sees them, or this receiver has started
            # meanwhile: then nothing is proven, neither for the plan nor against it.
            if now - until > self._config.guards.intent_ttl_s:
                self.withdraw(transaction, plan, "nothing could be measured", now)
            return
        if plan.disturbed < _MOST_DISTURBED and any(_is_moved_on(move, lanes) for move in plan.moves):
            self._measure_anew(transaction, plan, lanes, now)
            return
        gain = _gain(jobs, plan.scope)
        plan = with_changes(plan, measured=gain)
        lost = [job for job, (before, after) in jobs.items() if after < (1 - config.max_loss) * before]
        if plan.workload in lost and self._had_more(plan, jobs, lanes):
            lost.remove(plan.workload)
        if not lost and gain > plan.best:
            plan = _as_best(plan, lanes, gain)
        slow = {lane.key for lane in slow_lanes(config, [lanes[move.key] for move in seen])}
        enough = plan.returning or gain >= DONE * plan.predicted or not slow
        most = min(plan.max_tries or config.max_tries, config.max_tries)
        last = plan.tries >= most or plan.moves[0].operation == "lane.weight"
        if not lost and gain >= config.min_gain and (enough or (last and gain >= plan.best)):
            self._end(transaction, plan, "kept", "goodput has risen", now)
        elif not last and not plan.returning and (not lost or self._may_lose_yet(plan, lost)):
            self._try_again(transaction, plan, lanes, slow, now)
        else:
            self._give_up(
                transaction, plan, f"{lost[0]} lost goodput" if lost else "goodput has not risen", now
            )

    def _may_lose_yet(self, plan: Rebalance, lost: list[str]) -> bool:
        """Whether another path is tried though jobs have lost: only those that are to gain by the plan, which has found
        nothing better so far."""
        return set(lost) <= set(plan.scope) and plan.best < self._rebalance.min_gain

    def _had_more(
        self, plan: Rebalance, jobs: Mapping[str, tuple[float, float]], lanes: Mapping[str, LaneSummary]
    ) -> bool:
        """Whether what the job that was moved has lost is what it had more than the others of the plan: by NIC it still
        has as much as each of them."""
        nics: dict[str, set[tuple[str, str]]] = {}
        for lane in lanes.values():
            nics.setdefault(lane.job, set()).add((lane.host, lane.last.device))
        now = {job: jobs[job][1] / len(nics[job]) for job in plan.scope if job in jobs and job in nics}
        own = now.pop(plan.workload, 0.0)
        return bool(now) and own >= (1 - self._rebalance.max_loss) * max(now.values())

    @staticmethod
    def _measure_anew(
        transaction: Transaction, plan: Rebalance, lanes: Mapping[str, LaneSummary], now: float
    ) -> None:
        """The plugin has re-pathed lanes of the plan by itself: they are left to it, where they are, and what all of
        that has come to is measured. To undo the rest at once would undo what it may have gained by that."""
        moves = tuple(
            with_changes(move, outcome="left") if _is_moved_on(move, lanes) else move for move in plan.moves
        )
        transaction.put_rebalance(
            with_changes(plan, moves=moves, disturbed=plan.disturbed + 1, changed_at=now)
        )
        count = sum(move.outcome == "left" for move in moves)
        transaction.log(plan.workload, "rebalance_disturbed", plan=plan.hash, lanes_left=count)

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
        self.order(transaction, with_changes(plan, moves=moves, returning=True), now, away)

    def _try_again(
        self,
        transaction: Transaction,
        plan: Rebalance,
        lanes: Mapping[str, LaneSummary],
        slow: set[str],
        now: float,
    ) -> None:
        """Another path for the lanes that have not gained or are slow; the others stay where they are, and those of
        which that was not measured since."""
        gained = self._rebalance.min_gain
        moves = tuple(
            with_changes(
                move,
                kept=move.key in lanes
                and move.key not in slow
                and not 0 < lanes[move.key].capacity < gained * move.capacity_before,
            )
            for move in plan.moves
        )
        again = {move.key for move in moves if not move.kept and move.outcome == "applied"}
        # None of them is known to lack room now and the job has not gained: something else bounds it, or how they fell.
        again = again or {move.key for move in moves if move.outcome == "applied"}
        if not again:
            self._give_up(transaction, plan, "the plugin re-paths its lanes by itself", now)
            return
        if operations(transaction, now) + len(again) > self._rebalance.operations_per_hour:
            self._give_up(transaction, plan, "no operations left in this hour", now)
            return
        self.order(transaction, with_changes(plan, moves=moves), now, again)

    def order(self, transaction: Transaction, plan: Rebalance, now: float, keys: set[str]) -> None:
        """Has the agents carry out the moves with these keys."""
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
        away = {move.key for move in plan.moves if self._may_have_moved(move, now)}
        transaction.log(
            plan.workload, "rebalance_undone", plan=plan.hash, reason=reason, measured=round(plan.measured, 3)
        )
        self._order_back(transaction, with_changes(plan, reason=reason), away, now)

    def _order_back(self, transaction: Transaction, plan: Rebalance, away: set[str], now: float) -> None:
        number = max(int(now * 1000), *(move.generation + 1 for move in plan.moves))
        moves = tuple(
            msgspec.structs.replace(
                move,
                generation=number,
                op_id=f"lane-{number}-{index}",
                outcome="pending",
                # A port below 1024, or a flow label, cannot be named again.
                value=_port(move.entropy_before) if move.operation == "lane.repath" else None,
                undone=move.undone + 1,
            )
            if move.key in away
            else move
            for index, move in enumerate(plan.moves)
        )
        transaction.put_rebalance(with_changes(plan, moves=moves, phase="rolling_back", changed_at=now))
        self._log_orders(transaction, plan.hash, moves, number)

    def _bring_back(self, transaction: Transaction, plan: Rebalance, now: float) -> None:
        """Ends the plan once telemetry shows its lanes where they were, or nothing of them is left; orders back again
        what is not."""
        last_try = now - plan.changed_at > _SHOWN_S
        away = {move.key for move in plan.moves if self._is_away(transaction, move, plan, now, last_try)}
        lost = {
            move.host for move in plan.moves if move.key in away and self._is_lost(transaction, move, now)
        }
        away = {move.key for move in plan.moves if move.key in away and move.host not in lost}
        if away and not last_try:
            return
        if away and max(move.undone for move in plan.moves) < _MOST_UNDONE:
            self._order_back(transaction, plan, away, now)
            return
        if away:
            reason = f"{plan.reason}; not known to be back: {', '.join(sorted(away)[:3])}"
            reason += f" and {len(away) - 3} more" if len(away) > 3 else ""
            self._end(transaction, plan, "rollback_failed", reason, now)
        else:
            reason = plan.reason + (f"; lost with its agent: {', '.join(sorted(lost)[:3])}" if lost else "")
            self._end(transaction, plan, "withdrawn" if plan.withdrawn else "rolled_back", reason, now)

    def _is_lost(self, transaction: Transaction, move: LaneMove, now: float) -> bool:
        """Whether its agent is lost for so long that nobody carries out an order: the host is off, its jobs with it. Of
        an agent that has not reported since the receiver started, that is known once others have for as long."""
        lost_s = self._config.guards.agent_timeout_s + self._config.guards.intent_ttl_s
        agent = transaction.agents.get(move.host)
        if agent is not None:
            return now - agent.seen_at > lost_s
        return any(now - other.first_seen > lost_s for other in transaction.agents.values())

    def _may_have_moved(self, move: LaneMove, now: float) -> bool:
        """Whether the lane may be elsewhere than before the plan, also where its agent or process has not answered."""
        if move.outcome in ("unknown", "failed"):
            sample = self._evidence.latest(move.key, now - self._config.guards.agent_timeout_s)
            return sample is None or not _is_back(move, sample)
        return move.outcome in ("applied", "pending")

    def _is_away(
        self, transaction: Transaction, move: LaneMove, plan: Rebalance, now: float, last_try: bool
    ) -> bool:
        """Whether the lane is not known to be back. last_try : a new path had time to show in its telemetry."""
        if not move.undone:
            return self._may_have_moved(move, now)  # its answer came after the others were ordered back
        if move.outcome == "gone":
            return False
        sample = self._evidence.latest(move.key, plan.changed_at)
        if sample is not None and move.operation == "lane.repath":
            return not _is_back(move, sample) and (move.value is not None or move.outcome != "applied")
        if move.outcome == "applied":
            # The process has taken it. A weight is in force at once; a path may show later, or the job has ended.
            return move.operation == "lane.repath" and not last_try
        # What an agent that reports lanes no longer reports is not there any more.
        agent = transaction.agents.get(move.host)
        reports = agent is not None and now - agent.seen_at <= self._config.guards.agent_timeout_s
        return not (last_try and sample is None and reports and reports_lanes(self._config))

    def _end(
        self, transaction: Transaction, plan: Rebalance, phase: RebalancePhase, reason: str, now: float
    ) -> None:
        plan = with_changes(plan, phase=phase, reason=reason, changed_at=now)
        transaction.put_rebalance(plan)
        transaction.log(
            plan.workload,
            f"rebalance_{phase}",
            plan=plan.hash,
            reason=reason,
            predicted=round(plan.predicted, 3),
            measured=round(plan.measured, 3),
            **({"alert": plan.alert} if plan.alert else {}),
            **({"withdrawn": True} if plan.withdrawn else {}),
        )

        if did_not_help(plan) and unhelpful(transaction) >= self._rebalance.max_unhelpful:
            transaction.log("fleet", "blocked", reason="unhelpful")


def forbidden(guards: Guards, moves: tuple[LaneMove, ...]) -> str:
    """The reason why a guard refuses one of the moves; "" when none does."""
    for host, device in sorted({(move.host, move.device) for move in moves}):
        if reason := guards.lane(Target(host, device)):
            return reason
    return ""


def _is_back(move: LaneMove, sample: LaneSample) -> bool:
    """Whether the lane has the port that it had before the plan, or another path than those that the plan has given
    it: the port was not free, or the plugin has re-pathed the lane by itself."""
    if move.operation != "lane.repath":
        return False  # an automatic weight does not show whether one is fixed
    return sample.entropy == move.entropy_before or sample.repaths > move.repaths + move.tries


def _is_moved_on(move: LaneMove, lanes: Mapping[str, LaneSummary]) -> bool:
    """Whether the plugin has re-pathed the lane by itself since the plan was made."""
    lane = lanes.get(move.key)
    return lane is not None and move.outcome != "left" and lane.last.repaths > move.repaths + move.tries


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


def _gain(jobs: Mapping[str, tuple[float, float]], scope: tuple[str, ...]) -> float:
    """Goodput of the jobs of the scope that are still there, afterwards by before."""
    there = [jobs[job] for job in scope if job in jobs]
    return sum(after for _, after in there) / sum(before for before, _ in there)
