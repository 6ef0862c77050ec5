"""Whom slow lanes hold up, against every assignment of two rings' lanes to links: exact, by trying all of them."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from msgspec.structs import replace as changed
from tests.unit.remediation.simulation.ring_model import JOBS, KEYS, LINK, Places, Rings, rings, total

from fabricpulse.core.config import parse_config
from fabricpulse.remediation.protocol import LaneSample
from fabricpulse.remediation.receiver.config import RebalanceConfig, ReceiverConfig
from fabricpulse.remediation.receiver.rebalance.lane_evidence import LaneEvidence, LaneSummary
from fabricpulse.remediation.receiver.rebalance.lane_neighbours import neighbours
from fabricpulse.remediation.receiver.rebalance.lane_planner import Proposal, _move, propose
from fabricpulse.remediation.receiver.rebalance.trial import Trial
from fabricpulse.remediation.receiver.state.model import Rebalance, State
from fabricpulse.remediation.receiver.state.transaction import Transaction


def plans(links: int) -> Iterator[tuple[Places, Proposal | None, list[float]]]:
    """Every assignment, the plan for it where the plugin has searched already, and goodput for every landing of the
    lanes that it moves, by what it was."""
    config = RebalanceConfig(min_gain=1.05)
    for choice in product(range(links), repeat=len(KEYS)):
        places = dict(zip(KEYS, choice, strict=True))
        _, lanes = rings(places)
        found = propose(config, {lane.key: lane for lane in lanes.values()}, {}, searched=JOBS)
        plan = next((plan for plan in found if plan.predicted >= config.min_gain), None)
        names = {lane.key: key for key, lane in lanes.items()}
        moved = [names[move.key] for move in plan.moves] if plan else []
        before = total(places)
        landings = [
            total({**places, **dict(zip(moved, landing, strict=True))}) / before
            for landing in product(range(links), repeat=len(moved))
        ]
        yield places, plan, landings


@pytest.mark.parametrize("links", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_what_the_landings_of_plans_come_to(links):
    """Of all assignments of two rings. Three of four plans have a landing that wins, on two links all. Of all plans on
    two links, and of those for both rings on three, none has a landing that is worse for the jobs together, and what is
    predicted is about what the best one wins. Of those for one ring on three, two of nine have a landing that is worse,
    by half at most, which the trial has to measure and undo; and most promise too much: here no ring fills more than
    one link, so that a connection that has one for itself wins nothing by another one."""
    count = useful = alone = worse = 0
    for places, plan, landings in plans(links):
        if plan is None:
            continue
        count += 1
        useful += max(landings) >= 1.05
        if links > 2 and plan.scope != JOBS:
            alone += 1
            worse += min(landings) < 0.999
            assert min(landings) >= 0.499, places
            continue
        assert min(landings) >= 0.999, places
        assert plan.predicted <= 1.2 * max(landings), places
    assert count >= 150
    assert useful >= (1.0 if links == 2 else 0.75) * count
    assert worse * 9 <= alone * 2


def test_the_best_assignment_is_reached_and_left_alone():
    """On two links, from everywhere but where all lanes of both directions are on one link (there all look alike): with
    each plan's best landing the rings come to the optimum in three plans at most. There is no plan for an optimum."""
    after: dict[tuple[int, ...], tuple[int, ...] | None] = {}
    best = 2.0
    found = {tuple(places.values()): (places, plan) for places, plan, _ in plans(2)}
    for choice, (places, plan) in found.items():
        if total(places) > 0.99 * best:
            assert plan is None, places
        if plan is None:
            after[choice] = None
            continue
        _, lanes = rings(places)
        moved = [key for move in plan.moves for key, lane in lanes.items() if lane.key == move.key]
        landings = [
            {**places, **dict(zip(moved, landing, strict=True))}
            for landing in product(range(2), repeat=len(moved))
        ]
        after[choice] = tuple(max(landings, key=total).values())
    for choice, (places, _) in found.items():
        if all(len({places[job, way, lane] for job in range(2) for lane in range(2)}) == 1 for way in (0, 1)):
            continue
        now: tuple[int, ...] | None = choice
        for _ in range(3):
            now = after[now] or now
        assert total(dict(zip(KEYS, now, strict=True))) == pytest.approx(best), choice


def measured(places: Places) -> dict[str, LaneSummary]:
    return {lane.key: lane for lane in rings(places)[1].values()}


# job0 has a lane on each link, job1 both of one direction on link 1.
HELD_UP = dict(zip(KEYS, (0, 1, 0, 1, 0, 1, 1, 1), strict=True))


def test_the_lane_that_holds_up_another_job_moves():
    """Not the whole job, and not the one that is held up: its lanes are all slow, and one that leaves may land worse.
    Both are measured."""
    (plan,) = propose(RebalanceConfig(min_gain=1.05), measured(HELD_UP), {}, searched=JOBS)
    assert (plan.workload, plan.scope) == ("job0", JOBS)
    assert [(move.host, move.lane) for move in plan.moves] == [("h1", 1)]
    assert plan.predicted == pytest.approx(1.2, rel=0.05)
    assert "hold up job1" in plan.reason


@pytest.mark.parametrize("host", ["h1", "h2", "h3"])
def test_connections_of_which_a_lane_was_moved_just_now_are_left_alone(host):
    """By the plugin, or by hand: what is measured of them is of two paths. Of the job that is held up none may have
    moved: it may have been held up by that one."""
    lanes = measured(HELD_UP)
    for key, lane in lanes.items():
        if lane.host == host and lane.last.lane == 0:
            lanes[key] = replace(lane, repathed=True)
    assert propose(RebalanceConfig(min_gain=1.05), lanes, {}, searched=JOBS) == []


def test_the_lanes_of_a_connection_that_share_a_link_move_together():
    """Both rings have all lanes of one direction on one link, where the plugins have ended their search. One lane that
    leaves is for its own ring; the best is that both do."""
    places = dict(zip(KEYS, (0, 0, 0, 0, 0, 0, 1, 1), strict=True))
    plan = propose(RebalanceConfig(), measured(places), {}, searched=JOBS)[0]
    assert {(move.host, move.lane) for move in plan.moves} == {("h0", 0), ("h0", 1)}
    one = {**places, (0, 0, 0): 1}
    both = {**one, (0, 0, 1): 1}
    assert (total(one), total(both)) == (pytest.approx(5 / 3), 2.0)
    assert plan.predicted == pytest.approx(1.84, abs=0.01)
    moved = measured(places)
    for key, lane in moved.items():
        if lane.host == "h0" and lane.last.lane == 0:
            moved[key] = replace(lane, repathed=True)
    other = propose(RebalanceConfig(), moved, {}, searched=JOBS)
    assert all(move.host != "h0" for found in other for move in found.moves), "the plugin searches there"


@pytest.mark.parametrize(("goodput", "capacity"), [(0.0, LINK), (2e6, 0.0), (0.0, 0.0)])
def test_a_lane_that_is_idle_or_not_measured_is_not_known_to_be_slow(goodput, capacity):
    """Only what carries something at a known rate was looked at: a connection with a third lane that was idle, or had
    sent nothing that measures it, was taken for one of which all lanes are slow, where the plugin searches."""
    places = dict(zip(KEYS, (0, 0, 0, 0, 0, 0, 1, 1), strict=True))
    lanes = measured(places)
    first = next(lane for lane in lanes.values() if lane.host == "h0")
    third = replace(
        first,
        last=changed(first.last, lane=2, goodput=goodput, capacity=capacity),
        goodput=goodput,
        capacity=capacity,
        congested=False,
    )
    found = propose(RebalanceConfig(), {**lanes, third.key: third}, {}, searched=JOBS)
    assert all(move.host != "h0" for plan in found for move in plan.moves)


@pytest.mark.parametrize(("most", "moved"), [(64, "aabb"), (4, "aabb"), (3, "aa"), (2, "aa"), (1, "a")])
def test_a_plan_ends_between_connections(most, moved):
    """Its gain was predicted for all of the slow lanes, and a connection with one of them left is as slow as it was.
    What is predicted is what those come to that are moved: where the other connection stays slow, nothing."""
    own = [
        replace(lane, last=changed(lane.last, connection=name * 16))
        for name in "abc"
        for number in range(2)
        for lane in [lane_of("own", number, "rail0", 5e6, 12e6 if name == "c" else 5e6, congested=name < "c")]
    ]
    config = RebalanceConfig(max_lanes=most)
    (plan,) = propose(config, {lane.key: lane for lane in own}, {})
    assert "".join(move.connection[0] for move in plan.moves) == moved
    assert (plan.predicted >= config.min_gain) is (moved == "aabb")


def test_other_rails_and_leaves_are_no_neighbours():
    """Nothing that the lane leaves is theirs."""
    lanes = rings(HELD_UP)[1]
    slow = [lanes[0, 1, 1]]
    busy = {job: [lane for lane in lanes.values() if lane.job == job] for job in JOBS}
    assert neighbours("job0", slow, slow, busy, {}).helped == "job1"
    same = {(f"h{i}", "rail0"): "l1" for i in range(4)}
    assert neighbours("job0", slow, slow, busy, same).helped == "job1"
    assert neighbours("job0", slow, slow, busy, {**same, ("h1", "rail0"): "l2"}).jobs == frozenset()
    busy["job1"] = [replace(lane, last=changed(lane.last, device="rail1")) for lane in busy["job1"]]
    assert neighbours("job0", slow, slow, busy, {}).jobs == frozenset()


def lane_of(
    job: str, number: int, rail: str, goodput: float, capacity: float, *, congested: bool
) -> LaneSummary:
    sample = LaneSample(
        "1", "a" * 16, number, job, rail, 20_000 + number, 500, goodput, capacity, 5e-3, 1, 1, 10 * LINK
    )
    return LaneSummary(f"h-{job}", sample, goodput, capacity, congested, False, goodput / capacity)


def of_own(*others: LaneSummary) -> Proposal:
    """The plan for a job of which one lane of four is slow and the others have room."""
    own = [lane_of("own", i, "rail0", 5e6, 12e6 if i else 5e6, congested=not i) for i in range(4)]
    found = propose(RebalanceConfig(), {lane.key: lane for lane in (*own, *others)}, {})
    (plan,) = [plan for plan in found if plan.workload == "own"]
    assert [move.lane for move in plan.moves] == [0]
    return plan


def bystanders(count: int, *rails: tuple[str, float]) -> list[LaneSummary]:
    """Jobs, each with a connection of two congested lanes on each of these rails; bytes per second of a lane. They are
    idle for a moment between two messages."""
    found = []
    for rail, goodput in rails:
        for i in range(2 * count):
            lane = lane_of(f"job{i // 2}", i % 2, rail, goodput, 1.05 * goodput, congested=True)
            found.append(replace(lane, last=changed(lane.last, connection=f"{rail:>16}")))
    return found


def test_who_wins_nothing_does_not_dilute_a_plan():
    """What bounds them is on another rail: their goodput was added to what the gain is a part of, so that a plan for
    the gain of one job of many was none."""
    alone = of_own()
    assert alone.predicted > 1.5
    plan = of_own(*bystanders(10, ("rail0", 10e6), ("rail1", 8e6)))
    assert (plan.scope, plan.predicted, plan.reason) == (("own",), alone.predicted, alone.reason)


@pytest.mark.parametrize(("count", "is_for_all"), [(1, True), (19, False)])
def test_a_job_among_many_is_moved_for_its_own_sake(count, is_for_all):
    """Any of them may be the one that is held up, and what one wins of what all carry is too little to be seen."""
    alone, plan = of_own(), of_own(*bystanders(count, ("rail0", 10e6)))
    assert ("hold up job0" in plan.reason) is is_for_all
    if is_for_all:
        assert (plan.scope, plan.max_tries) == (("job0", "own"), 3)
    else:
        assert plan == replace(alone, before=plan.before)


def test_a_lane_that_was_not_the_cause_is_not_tried_for_long():
    """It held up every other plan for as many tries as a plan may have, 80 s of them, while nothing changed."""
    fleet = Rings(1, HELD_UP)
    fleet.goodput = lambda: 2.0
    fleet.link_of = lambda lane, entropy: 1
    fleet.places = lambda: dict(HELD_UP)
    while "rebalance_rolled_back" not in fleet.events():
        fleet.run(2)
    assert (fleet.plans()[0].tries, fleet.plans()[0].scope) == (3, JOBS)


@pytest.mark.parametrize("delay_s", [0.1, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_rings_that_hold_each_other_up_come_to_their_optimum(seed, delay_s):
    """With noise, a control that is late, and ports of which chance decides where they lead: a landing that gains
    nothing, or that costs one of the two, is not the last one. Then nothing moves any more."""
    fleet = Rings(seed, HELD_UP, delay_s=delay_s)
    assert fleet.goodput() < 0.85 * 2
    fleet.run(900)
    assert fleet.goodput() == pytest.approx(2)
    assert all(plan.measured >= 1.1 for plan in fleet.plans() if plan.phase == "kept")
    settled = len(fleet.operations)
    fleet.run(1800)
    assert len(fleet.operations) == settled


def _measuring(moves=()):
    """A plan for both jobs that is applied and being measured."""
    return Rebalance(
        id="r",
        workload="job0",
        scope=JOBS,
        moves=moves,
        before={},
        predicted=1.1,
        reason="",
        phase="measuring",
        created_at=0.0,
        changed_at=0.0,
    )


@pytest.mark.parametrize(
    ("moved", "other", "is_surplus"),
    [
        ((28e6, 22e6), (14e6, 21e6), True),
        ((22e6, 12e6), (22e6, 44e6), False),
        ((28e6, 18e6), (14e6, 22e6), False),
    ],
)
def test_a_job_may_lose_what_it_had_more(moved, other, is_surplus):
    """The lane that leaves was a part of what its job carries: that is no loss while the job has as much by NIC as the
    other one. One that has less then has lost. Goodput before and after."""
    config = parse_config("rules: []\nrebalance: {mode: auto}\n", ReceiverConfig, "test")
    lanes = measured(HELD_UP)
    plan = _measuring()
    jobs = {"job0": moved, "job1": other}
    assert Trial(config, LaneEvidence())._had_more(plan, jobs, lanes) is is_surplus


@pytest.mark.parametrize("unknown", ["before", "after"])
def test_a_lane_that_is_not_measured_yet_is_not_moved_again(unknown):
    """It is not known not to have gained. Where no lane is known to lack room, all of them get another path."""
    config = parse_config("rules: []\nrebalance: {mode: auto}\n", ReceiverConfig, "test")
    lanes = {key: replace(lane, capacity=10e6) for key, lane in measured(HELD_UP).items()}
    first, second = list(lanes)[:2]
    moves = tuple(
        changed(_move(lanes[key]), outcome="applied", capacity_before=10e6) for key in (first, second)
    )
    if unknown == "after":
        lanes[first] = replace(lanes[first], capacity=0.0)
    else:
        moves = (changed(moves[0], capacity_before=0.0), moves[1])
    plan = _measuring(moves)

    def again(plan: Rebalance) -> list[str]:
        transaction = Transaction(State())
        Trial(config, LaneEvidence())._try_again(transaction, plan, lanes, set(), 1.0)
        return [move.key for move in transaction.rebalances["r"].moves if move.outcome == "pending"]

    assert again(plan) == [second]
    lanes[second] = replace(lanes[second], capacity=20e6)
    assert again(plan) == [first, second]
