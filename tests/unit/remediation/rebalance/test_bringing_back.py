"""Undoing a plan: it has ended when its lanes are back, and says so when they are not."""

from collections.abc import Callable

import pytest
from tests.unit.remediation.rebalance.test_rebalancer import collided
from tests.unit.remediation.simulation.fabric_model import Fabric, Lane

from fabricpulse.remediation.protocol import LaneOrder, Result
from fabricpulse.remediation.receiver.state.model import Rebalance

# One link: no plan can help. One try, and no second plan.
TEXT = "rules: []\nrebalance: {mode: auto, cooldown_s: 9999, max_tries: 1}\n"


def hopeless(lanes: int = 2, carry_out: Callable[[Fabric, str, LaneOrder], bool] | None = None) -> Fabric:
    """carry_out : what an agent does with an order instead of carrying it out; it returns whether it does both."""
    fabric = collided(lanes=lanes, spines=1, text=TEXT)
    real = fabric._carry_out

    def hook(host: str, order: LaneOrder) -> None:
        if carry_out is None or carry_out(fabric, host, order):
            real(host, order)

    fabric._carry_out = hook  # type: ignore[method-assign]
    return fabric


def ended(fabric: Fabric) -> Rebalance:
    """The first plan, once it has ended."""
    for _ in range(2_000):
        fabric.run(1)
        plans = fabric.plans()
        if plans and plans[0].phase not in ("moving", "measuring", "rolling_back"):
            return plans[0]
    raise AssertionError("the plan does not end")


def is_undoing(fabric: Fabric) -> bool:
    """Whether the plan goes back."""
    return fabric.plans()[0].phase == "rolling_back"


def ports(fabric: Fabric) -> list[int]:
    """Of all lanes."""
    return [lane.entropy for lane in fabric.lanes]


def test_a_move_that_was_not_answered_in_time_is_undone_as_well():
    """Its agent carried it out, and the answer never came, or later: the lane stayed where the plan had put it, and the
    plan ended as rolled_back."""
    lost: list[str] = []

    def first_answer_is_lost(fabric: Fabric, host: str, order: LaneOrder) -> bool:
        if lost:
            return True
        lost.append(host)
        lane = next(lane for lane in fabric.lanes if lane.host == host)
        lane.entropy, lane.repaths = fabric._port_to(lane), lane.repaths + 1
        return False

    fabric = hopeless(carry_out=first_answer_is_lost)
    before = ports(fabric)
    plan = ended(fabric)
    assert plan.phase == "rolled_back"
    assert ports(fabric) == before


def test_an_answer_that_comes_late_counts():
    """After the time of an operation, while the other lanes are measured: the lane has moved."""
    late: list[tuple[str, Result]] = []

    def first_answer_is_late(fabric: Fabric, host: str, order: LaneOrder) -> bool:
        if not late:
            late.append((host, Result(order.op_id, "applied", 1)))
            return False
        return True

    fabric = hopeless(carry_out=first_answer_is_late)
    while "expired" not in fabric.events():
        fabric.run(1)
    assert {move.outcome for move in fabric.plans()[0].moves} == {"unknown", "applied"}
    host, result = late[0]
    fabric._change(lambda t: fabric.reconciler.rebalancer.on_result(t, host, result, fabric.now))
    assert {move.outcome for move in fabric.plans()[0].moves} == {"applied"}


def test_an_undo_that_is_refused_is_ordered_again():
    """A host that is paused by its file for a moment: its lanes are back before the plan ends."""
    refused: list[str] = []

    def refuse_once(fabric: Fabric, host: str, order: LaneOrder) -> bool:
        if is_undoing(fabric) and host not in refused:
            refused.append(host)
            fabric._post(host, Result(order.op_id, "refused", 0, "paused on this host"))
            return False
        return True

    fabric = hopeless(carry_out=refuse_once)
    before = ports(fabric)
    plan = ended(fabric)
    assert len(refused) == 2
    assert (plan.phase, {move.undone for move in plan.moves}) == ("rolled_back", {2})
    assert ports(fabric) == before


@pytest.mark.parametrize("outcome", ["refused", "applied", ""])
def test_lanes_that_do_not_come_back_are_no_rollback(outcome):
    """Refused for good, taken and not done, or not answered: after four orders the plan has failed to be undone, and
    names the lanes."""

    def never(fabric: Fabric, host: str, order: LaneOrder) -> bool:
        if not is_undoing(fabric):
            return True
        if outcome:
            fabric._post(host, Result(order.op_id, outcome, 0, "denied"))
        return False

    fabric = hopeless(carry_out=never)
    plan = ended(fabric)
    assert (plan.phase, {move.undone for move in plan.moves}) == ("rollback_failed", {4})
    assert plan.moves[0].key in plan.reason
    assert "rebalance_rollback_failed" in fabric.events()


@pytest.mark.parametrize(
    ("outcome", "message"), [("refused", "unknown_lane: not open"), ("failed", "pid 1: gone")]
)
def test_lanes_of_a_job_that_has_ended_are_not_missed(outcome, message):
    """The process has no such connection any more, or is gone and no longer in the agent's report."""

    def end(fabric: Fabric, host: str, order: LaneOrder) -> bool:
        if not is_undoing(fabric):
            return True
        for lane in [lane for lane in fabric.lanes if lane.workload == fabric.plans()[0].workload]:
            fabric.lanes.remove(lane)
            # Its host reports on, of another job.
            fabric.lanes.append(type(lane)("other", lane.host, "f" * 16, lane.spread))
        fabric._post(host, Result(order.op_id, outcome, 0, message))
        return False

    fabric = hopeless(lanes=1, carry_out=end)
    plan = ended(fabric)
    assert (plan.phase, {move.undone for move in plan.moves}) == ("rolled_back", {1})


def test_lanes_of_a_host_that_is_off_are_gone_with_it():
    """They were ordered back four times, for ten minutes, and counted as not helped."""
    fabric = hopeless()
    while not fabric.plans() or fabric.plans()[0].phase != "measuring":
        fabric.run(1)
    (plan,) = fabric.plans()
    off = plan.moves[0].host
    # The job ends with the host; the others go on with another one.
    fabric.lanes = [
        Lane("later", lane.host, f"{i + 900:016x}", i)
        for i, lane in enumerate(fabric.lanes)
        if lane.host != off
    ]

    def none_left(host: str, order: LaneOrder) -> None:
        if host != off:
            fabric._post(host, Result(order.op_id, "failed", 0, "pid 1: gone"))

    fabric._carry_out = none_left
    plan = ended(fabric)
    assert (plan.phase, max(move.undone for move in plan.moves)) == ("withdrawn", 1)
    assert plan.reason.endswith(f"lost with its agent: {off}")
