"""Scenarios of a fault of a process or a clock that passes: on-call is notified once, and the ring continues."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.unit.demo.test_flap import FLEET, World

from fabricpulse.lab.demo.observed import ActionSeen, AlertSeen, ClockSeen, PageSeen, PlanSeen
from fabricpulse.lab.demo.scenarios.base import Fleet, Judgement
from fabricpulse.lab.demo.scenarios.clock_step import ClockStep
from fabricpulse.lab.demo.scenarios.contention import SPAN_S, Contention, ContentionOutcome
from fabricpulse.lab.demo.scenarios.dead_leaf import DeadLeaf
from fabricpulse.lab.demo.scenarios.hang import Hang
from fabricpulse.lab.demo.scenarios.incast import KNOWN_S, Incast
from fabricpulse.lab.demo.scenarios.misrouted import Misrouted
from fabricpulse.lab.demo.scenarios.passing_fault import PassingFaultOutcome, PassingFaultScenario
from fabricpulse.lab.demo.scenarios.shared_path import SharedPathScenario
from fabricpulse.lab.demo.scenarios.straggler import Straggler
from fabricpulse.lab.fabric import Fabric

JOB = (("peer", "h1"), ("workload", "demo-ring"))
FLOW = (("device", "rail0"), ("instance", "h0"))
BACK = (("device", "rail0"), ("instance", "h1"))
ACROSS = (("peer", "h1"), ("peer_device", "rail0"), ("workload", "demo-ring"))
ABOUT = {
    Contention: (*FLOW, ("network", "rail0"), *ACROSS),
    Incast: (*BACK, *ACROSS),
    Misrouted: (*FLOW, *ACROSS),
    Hang: JOB,
    Straggler: JOB,
    DeadLeaf: (("faulty", "leaf0"), ("network", "rail0"), ("what", "loss")),
    ClockStep: (("instance", "h1"),),
}
OTHER = {
    Contention: (*BACK, ("network", "rail0"), *ACROSS),
    Incast: (("device", "rail1"), ("instance", "h1"), ("peer", "h1"), ("peer_device", "rail1"), JOB[1]),
    Misrouted: (*BACK, *ACROSS),
    Hang: (("peer", "h0"), ("workload", "demo-ring")),
    Straggler: (("peer", "h0"), ("workload", "demo-ring")),
    DeadLeaf: (("faulty", "leaf1"), ("network", "rail1"), ("what", "loss")),
    ClockStep: (("instance", "h0"),),
}
# What becomes of a plan.
KEPT = {"measuring": "kept"}
PLAN = PlanSeen(
    id="rebalance/demo-ring#1",
    alert="FabricPathContended",
    workload="demo-ring",
    phase="measuring",
    at=(("h0", "rail0"),),
    tries=2,
    predicted=2.0,
    measured=1.9,
)
PLANS: dict[type[PassingFaultScenario], tuple[PlanSeen, ...]] = {Contention: (PLAN,)}
SCENARIOS = pytest.mark.parametrize("scenario", list(ABOUT))


def play(
    scenario: type[PassingFaultScenario],
    *pages: PageSeen,
    errors: int = 0,
    clock: ClockSeen | None = None,
    fleet: Fleet = FLEET,
    plans: tuple[PlanSeen, ...] = (),
    rebalanced: float = 49e6,
) -> tuple[World, list[str]]:
    """The run, in which on-call gets `pages`, the ring ends with so many errors, and a host with `clock`; `plans` take
    ten seconds."""
    world = World(scenario, fleet)
    observed = world.observed
    world.healthy()
    seen = world.run(KNOWN_S + 8 if scenario is Incast else 8)
    observed.marks["fault"] = world.now
    world.bandwidth = 10e6
    seen += world.run(6)
    at = (world.scenario._instance, world.scenario.device)
    observed.firing = (AlertSeen(scenario.alert, *at, "firing"),)
    observed.notified = (AlertSeen(scenario.alert, *at, "active"),)
    observed.plans = plans
    seen += world.run(10)
    observed.plans = tuple(replace(plan, phase=KEPT.get(plan.phase, plan.phase)) for plan in plans)
    observed.gains = {"predicted": 2.0, "measured": 1.9} if plans else {}
    world.bandwidth = rebalanced
    observed.pages.update(dict.fromkeys(pages, world.now))
    seen += world.run(scenario.fault_s - 16)
    if clock is not None:
        observed.hosts[world.scenario.host].clock = clock
    observed.marks["fault_over"] = world.now
    seen += world.run(1)
    observed.workload.errors = errors
    observed.marks["repaired"] = world.now
    world.bandwidth = 50e6
    seen += world.run(3)
    observed.firing = observed.notified = ()
    return world, seen + world.run(SPAN_S)


def right(scenario: type[PassingFaultScenario]) -> PageSeen:
    return PageSeen(scenario.alert, ABOUT[scenario], "group")


@SCENARIOS
def test_one_page(scenario: type[PassingFaultScenario]) -> None:
    """All milestones; times count from the fault."""
    world, seen = play(scenario, right(scenario), plans=PLANS.get(scenario, ()))
    result = world.result()

    assert sorted(seen) == sorted(milestone.milestone.name for milestone in world.scenario_run.results)
    assert isinstance(result.outcome, PassingFaultOutcome)
    assert result.outcome.alert_s == pytest.approx(6.0, abs=0.11)
    assert result.outcome.page_s == pytest.approx(16.0, abs=0.11)
    assert result.success


@SCENARIOS
def test_the_wrong_place_is_another_page(scenario: type[PassingFaultScenario]) -> None:
    """A page that blames a rank that waits, or another host."""
    wrong = PageSeen(scenario.alert, OTHER[scenario], "group")
    world, seen = play(scenario, right(scenario), wrong, plans=PLANS.get(scenario, ()))

    assert "paged" in seen
    [check] = [check for check in world.result().checks if check.name == "other_pages"]
    assert check.judgement is Judgement.BROKEN
    assert "paged" not in play(scenario, wrong)[1]


@SCENARIOS
def test_an_error_is_no_going_on(scenario: type[PassingFaultScenario]) -> None:
    """What passes costs a job time, nothing else."""
    world, seen = play(scenario, right(scenario), errors=1, plans=PLANS.get(scenario, ()))

    assert "ring_goes_on" not in seen
    assert not world.result().success


@pytest.mark.parametrize(
    "clock",
    [
        ClockSeen(synchronized=True, bound_s=50e-6, true_error_s=1e-3),
        ClockSeen(synchronized=False, bound_s=50e-6, true_error_s=3e-6),
        ClockSeen(synchronized=True, bound_s=None, true_error_s=None),
    ],
    ids=["wrong", "unsynchronized", "unknown"],
)
def test_a_clock_that_is_still_wrong_is_not_in_sync_again(clock: ClockSeen) -> None:
    """By its true error, which its own word does not know."""
    assert "clocks_in_sync_again" not in play(ClockStep, right(ClockStep), clock=clock)[1]


class Wires:
    """What a scenario asks of the lab, in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def load(self, *order: Any) -> None:
        self.asked.append(("load", *order))

    async def skew(self, *order: Any) -> None:
        self.asked.append(("skew", *order))

    async def detour(self, *order: Any) -> None:
        self.asked.append(("detour", *order))

    async def sleep(self, seconds: float) -> None:
        self.asked.append(("sleep", seconds))


@pytest.mark.parametrize("hosts", [4, 5, 6])
@pytest.mark.parametrize("scenario", [Contention, Misrouted])
def test_the_fault_is_on_the_way_between_the_pods(scenario: type[SharedPathScenario], hosts: int) -> None:
    """The flow of the alert crosses the spine; what is in its way comes from and goes to other hosts; it ends."""
    names = tuple(f"h{number}" for number in range(hosts))
    played = scenario(Fleet(names, ("rail0", "rail1")))
    fabric = Fabric(hosts, 2, spines=scenario.setting.spines, pods=scenario.setting.pods)
    wires = Wires()
    asyncio.run(played.hold(cast(Any, wires)))
    asyncio.run(played.repair(cast(Any, wires)))

    (what, source, destination, much, *beside), (_, slept), (_, *after) = wires.asked
    assert (what, much > 0, slept) == ("load" if scenario is Contention else "detour", True, played.fault_s)
    assert after == [source, destination, 0.0]
    ends = [names.index(end.partition("-")[0]) for end in (source, destination)]
    flow = [names.index(name) for name in (played.host, played.peer)]
    assert [fabric.pod_of(end) for end in ends] == [fabric.pod_of(end) for end in flow] == [0, 1]
    assert flow[1] == flow[0] + 1, "the ring goes from host to host"
    if scenario is Contention:
        assert not set(ends) & set(flow)
        assert beside == [(played.sender, played.receiver), (destination, source)]
    else:
        assert ends == flow


def test_all_but_the_hot_rank_send_it_more() -> None:
    """And no more at the end; they are as many as the alert asks for."""
    played = Incast(Fleet(("h0", "h1", "h2", "h3"), ("rail0", "rail1")))
    wires = Wires()
    asyncio.run(played.hold(cast(Any, wires)))
    asyncio.run(played.repair(cast(Any, wires)))

    senders = [("skew", host) for host in ("h0", "h2", "h3")]
    assert wires.asked == [*senders, ("sleep", played.fault_s), *senders]
    assert played.setting.job.hot == played.fleet.hosts.index(played.host)


def test_an_incast_waits_until_the_rules_know_what_a_nic_receives() -> None:
    """A NIC of which they do not is slow, for all that they know. One rail that is idle is no fault."""
    world = World(Incast)
    world.healthy()
    world.busy = {nic for nic in world.busy if nic[1] == "rail0"}

    assert {"traffic_on_all_rails", "baseline_measured"} <= set(world.run(KNOWN_S - 1))
    assert "peak_known" in world.run(8)


def test_the_action_is_measured_beside_the_other_job_and_without_it() -> None:
    """Times count from the fault; what the links left allow is what the job has there alone."""
    outcome = play(Contention, right(Contention), plans=(PLAN,))[0].result().outcome
    assert isinstance(outcome, ContentionOutcome)
    assert outcome.action_s == pytest.approx(6.0, abs=0.21)
    assert outcome.kept_s == pytest.approx(16.0, abs=0.21)
    assert (outcome.new_paths, outcome.gain_predicted, outcome.gain_measured) == (2, 2.0, 1.9)
    assert outcome.bandwidth_before == pytest.approx(50e6)
    assert outcome.bandwidth_contended == pytest.approx(10e6)
    assert outcome.bandwidth_after == pytest.approx(49e6)
    assert outcome.bandwidth_alone == pytest.approx(50e6)
    assert outcome.unused == pytest.approx(0.02)
    assert outcome.wrong_actions == 0


@pytest.mark.parametrize(
    ("plans", "wrong"),
    [
        ((), 0),
        ((replace(PLAN, at=(("h1", "rail0"),)),), 1),
        ((replace(PLAN, at=(("h0", "rail0"), ("h0", "rail1"))),), 1),
        ((replace(PLAN, alert=""),), 1),
        ((replace(PLAN, phase="rolled_back"),), 1),
        ((replace(PLAN, phase="moving"),), 0),
        ((PLAN, replace(PLAN, id="rebalance/demo-ring#2", phase="rolled_back")), 1),
    ],
    ids=["none", "another host", "another NIC", "no alert", "undone", "under way", "one more"],
)
def test_a_wrong_plan_fails_the_demo(plans: tuple[PlanSeen, ...], wrong: int) -> None:
    """So does none: the job has its bandwidth back for another reason then."""
    world, seen = play(Contention, right(Contention), plans=plans)
    outcome = world.result().outcome
    assert isinstance(outcome, ContentionOutcome)
    assert outcome.wrong_actions == wrong
    assert ("plan_kept" in seen) is (PLAN in plans)
    assert not world.result().success


def test_a_plan_that_is_undone_before_the_one_that_is_kept_is_no_wrong_action() -> None:
    """Whether a path helps is measured, and another plan may follow. What Prometheus has is the gain of the last."""
    undone = replace(
        PLAN, id="rebalance/demo-ring#0", phase="rolled_back", tries=6, predicted=1.5, measured=1.02
    )
    world, seen = play(Contention, right(Contention), plans=(undone, PLAN))
    result = world.result()
    outcome = result.outcome
    assert isinstance(outcome, ContentionOutcome)
    assert {"plan_begun", "plan_kept", "gain_shown"} <= set(seen)
    assert (outcome.wrong_actions, outcome.new_paths) == (0, 8)
    assert (outcome.gain_predicted, outcome.gain_measured) == (2.0, 1.9)
    assert result.success


def test_probes_that_are_slow_for_as_long_as_the_load_lasts_are_no_news() -> None:
    """The fault lasts until its last milestone is seen or due: an edge that is slow meanwhile was another page."""
    fault = next(phase for phase in Contention(FLEET).phases() if phase.name == "fault")
    longest = max(milestone.within_s for milestone in fault.milestones)
    slow_for = Contention.setting.rules["pathSlowFor"]
    assert float(str(slow_for).removesuffix("s")) >= longest + 20


def test_a_nic_that_is_taken_out_is_a_wrong_action() -> None:
    """The NIC is well."""
    world, _ = play(Contention, right(Contention), plans=(PLAN,))
    assert world.result().success
    world.observed.actions["1"] = ActionSeen("1", "nic.avoid", "h0", "rail0", "applied", "x")
    assert not world.result().success


def test_bandwidth_that_does_not_come_back_fails_the_demo() -> None:
    """The plan may be kept for a gain that is less than there is to be had."""
    world, seen = play(Contention, right(Contention), plans=(PLAN,), rebalanced=39e6)
    assert {"plan_kept", "rebalanced_measured", "alone_measured"} <= set(seen)
    [check] = [check for check in world.result().checks if check.name == "unused"]
    assert check.judgement is Judgement.BROKEN
