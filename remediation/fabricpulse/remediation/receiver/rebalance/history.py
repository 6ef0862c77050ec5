"""What the plans of the past say about the next one: who rests, what was reached, what is left of the limits. Pure."""

from typing import Literal

from fabricpulse.remediation.receiver.state.model import Rebalance
from fabricpulse.remediation.receiver.state.transaction import Transaction

_DAY_S = 86_400.0
# A plan that has reached so much of what was predicted is done.
DONE = 1 / 1.15
# Ends of plans that were measured and have not helped.
_ENDS = ("rolled_back", "rollback_failed")


def did_not_help(plan: Rebalance) -> bool:
    """Whether a plan was measured and has not helped. One that was withdrawn proves nothing, also where lanes are not
    known to be back."""
    return plan.phase in _ENDS and not plan.withdrawn


def is_short(plan: Rebalance) -> bool:
    """Whether a plan has helped, and by much less than was predicted: its new paths were the ones that chance gave."""
    return plan.phase == "kept" and plan.measured < DONE * plan.predicted


def resting(
    transaction: Transaction, cooldown_s: float, now: float
) -> dict[str, Literal["cooldown", "no_new_path"]]:
    """Jobs that had a plan lately, and what they must not have now: any plan, or one with new paths.

    The cooldown doubles with each plan in a row that was rolled back or fell short. If the last one was rolled back
    and took new paths, only a weight may be tried after it.
    """
    found: dict[str, Literal["cooldown", "no_new_path"]] = {}
    # What an alert's dry run would do delays no other plan.
    known = [p for p in transaction.rebalances.values() if not (p.phase == "dry_run" and p.alert)]
    for workload in {plan.workload for plan in known}:
        plans = sorted((p for p in known if p.workload == workload), key=lambda p: p.created_at)
        measured = [plan for plan in plans if plan.phase != "withdrawn" and not plan.withdrawn]
        in_a_row = 0
        for plan in reversed(measured):
            if not did_not_help(plan) and not is_short(plan):
                break
            in_a_row += 1
        pause_s = min(_DAY_S, cooldown_s * 2.0 ** min(20, in_a_row))
        if now - plans[-1].changed_at < pause_s:
            found[workload] = "cooldown"
        elif in_a_row and did_not_help(measured[-1]) and measured[-1].moves[0].operation == "lane.repath":
            found[workload] = "no_new_path"
    return found


def unhelpful(transaction: Transaction) -> int:
    """Plans in a row, the last ones since an operator resumed, that were measured and did not help. That jobs end, or
    that the policy changes, says nothing about what plans are worth."""
    count = 0
    for plan in sorted(transaction.rebalances.values(), key=lambda p: p.changed_at, reverse=True):
        if plan.phase == "kept" or plan.changed_at <= transaction.resumed_at:
            break
        count += did_not_help(plan)
    return count


def operations(transaction: Transaction, now: float) -> int:
    """Operations of the plans of the last hour."""
    return sum(p.operations for p in transaction.rebalances.values() if now - p.changed_at <= 3600.0)


def new_paths(transaction: Transaction) -> dict[str, int]:
    """Lane -> new paths that plans have ordered for it, as far as plans are remembered."""
    found: dict[str, int] = {}
    for plan in transaction.rebalances.values():
        for move in plan.moves:
            if move.operation == "lane.repath":
                found[move.key] = found.get(move.key, 0) + move.tries + move.undone
    return found


def reached(transaction: Transaction) -> dict[tuple[str, ...], float]:
    """Scope of plans that helped -> goodput that it had afterwards: so much can be had.

    One that fell short does not count until another one for the same jobs has ended: a second draw of paths may do
    better, and each costs goodput while it is tried. Of exactly these jobs: a plan takes one of them apart from the
    others, and says nothing about a part of them, which may still be on one link.
    """
    found: dict[tuple[str, ...], float] = {}
    short: dict[tuple[str, ...], float] = {}
    for plan in sorted(transaction.rebalances.values(), key=lambda plan: plan.changed_at):
        if plan.phase != "kept" and not did_not_help(plan):
            continue
        before = short.pop(plan.scope, 0.0)
        had = plan.measured * sum(plan.before.get(w, 0.0) for w in plan.scope)
        if is_short(plan) and not before and plan.scope not in found:
            short[plan.scope] = had
        elif plan.phase == "kept" or before:
            found[plan.scope] = had if plan.phase == "kept" else before
    return found
