"""Before and after a plan: only what both windows know, job by job."""

from msgspec.structs import replace
from tests.unit.remediation.rebalance.test_rebalancer import _samples, collided
from tests.unit.remediation.simulation.fabric_model import Fabric

from fabricpulse.remediation.protocol import LaneSample
from fabricpulse.remediation.receiver.config import RebalanceConfig
from fabricpulse.remediation.receiver.rebalance.comparison import compared, goodput_by_process
from fabricpulse.remediation.receiver.rebalance.history import resting, unhelpful
from fabricpulse.remediation.receiver.rebalance.lane_evidence import LaneSummary
from fabricpulse.remediation.receiver.rebalance.lane_planner import propose
from fabricpulse.remediation.receiver.state.transaction import Transaction


def test_only_processes_that_both_windows_know():
    """One that begins to report, or ends, is no gain and no loss; a job of which too little is known again, and one
    that was idle, are not compared."""
    before = {("a", "h0", "1"): 9e6, ("a", "h1", "2"): 1e6, ("b", "h2", "3"): 5e6, ("idle", "h3", "4"): 9e4}
    after = {("a", "h0", "1"): 8e6, ("a", "h9", "9"): 9e6, ("b", "h8", "8"): 5e6, ("idle", "h3", "4"): 0.0}
    assert compared(before, after) == {"a": (9e6, 8e6)}
    assert compared({("a", "h0", "1"): 7e6, ("a", "h1", "2"): 3e6}, {("a", "h0", "1"): 7e6}) == {}
    assert compared({}, after) == {}


def silence(fabric: Fabric, hosts: set[str]) -> None:
    """Reports of these hosts have no lanes, until they are taken out of the set."""
    post = fabric._post

    def post_others(host: str, what: object) -> None:
        if not (isinstance(what, LaneSample) and host in hosts):
            post(host, what)

    fabric._post = post_others  # type: ignore[method-assign]


def test_an_agent_that_reports_again_is_no_gain():
    """One link, so that no plan can help. Half of the agents begin to report as the plan begins: it was kept, with a
    measured gain of two."""
    fabric, silent = collided(lanes=2, spines=1), {"h0-1", "h1-1"}
    silence(fabric, silent)
    while not fabric.operations:
        fabric.run(1)
    silent.clear()
    while fabric.plans()[0].phase in ("moving", "measuring", "rolling_back"):
        fabric.run(1)
    plan = fabric.plans()[0]
    assert plan.phase == "rolled_back"
    assert 0.9 < plan.measured < 1.1


def test_what_could_not_be_measured_says_nothing_about_plans():
    """The jobs end while their lanes are tried: what was moved goes back, and it counts neither as a plan that did not
    help nor for a longer pause. (Five jobs that ended locked the rebalancer.)"""
    fabric, silent = collided(), set[str]()
    silence(fabric, silent)
    while not fabric.operations:
        fabric.run(1)
    silent |= {lane.host for lane in fabric.lanes}
    while fabric.plans()[0].phase in ("moving", "measuring", "rolling_back"):
        fabric.run(5)
    (plan,) = fabric.plans()
    assert (plan.phase, plan.reason) == ("withdrawn", "nothing could be measured; lost with its agent: h0-0")
    transaction = Transaction(fabric.state)
    assert unhelpful(transaction) == 0
    assert resting(transaction, 60.0, plan.changed_at + 59) == {plan.workload: "cooldown"}
    assert resting(transaction, 60.0, plan.changed_at + 61) == {}


def summaries(workload: str) -> dict[str, LaneSummary]:
    """Two lanes of two hosts, congested on one link."""
    found = [
        LaneSummary(host, replace(sample, workload=workload or sample.workload), 1e6, 1e6, True, False)
        for host, sample in _samples(collided()).items()
    ]
    return {lane.key: lane for lane in found}


def test_jobs_without_a_name_are_not_one_job():
    """What one of them gains does not hide what another loses, and none is moved: which of their processes belong
    together is not known."""
    assert len(propose(RebalanceConfig(), summaries(""), {})) == 1
    lanes = summaries("unknown")
    assert propose(RebalanceConfig(), lanes, {}) == []
    before = goodput_by_process(lanes)
    gains, loses = sorted(before)
    jobs = compared(before, {gains: 4e6, loses: 0.1e6})
    assert [after / then for then, after in jobs.values()] == [4.0, 0.1]


def test_jobs_of_two_users_with_the_same_name_are_two():
    """One of them lost what the other gained, and their plan was kept."""
    fabric = collided()
    jobs = sorted({lane.workload for lane in fabric.lanes})
    post = fabric._post

    def post_as_one_name(host: str, what: object) -> None:
        if isinstance(what, LaneSample):
            what = replace(what, workload="train", user=1000 + jobs.index(what.workload))
        post(host, what)

    fabric._post = post_as_one_name
    fabric.run(120)
    (plan, *_) = fabric.plans()
    assert plan.scope in (("train", "train (uid 1000)"), ("train", "train (uid 1001)"))
    assert plan.phase == "kept"
    assert len({move.host.partition("-")[0] for move in plan.moves}) == 1


def test_a_second_user_does_not_end_a_plan_for_a_job_of_this_name():
    """Both were renamed: the plan ended as withdrawn, *nothing could be measured*, and its lanes went back."""
    fabric = collided()
    post, names = fabric._post, sorted({lane.workload for lane in fabric.lanes})
    is_shared = False

    def post_beside_another(host: str, what: object) -> None:
        if isinstance(what, LaneSample):
            post(host, replace(what, user=1000))
            if not is_shared:
                return
            what = replace(what, process="99", user=1001)
        post(host, what)

    fabric._post = post_beside_another
    while not fabric.operations:
        fabric.run(1)
    is_shared = True
    while fabric.plans()[0].phase in ("moving", "measuring", "rolling_back"):
        fabric.run(5)
    (plan, *_) = fabric.plans()
    assert (plan.phase, plan.scope) == ("kept", tuple(names))
    lanes = fabric.reconciler.evidence.summaries(fabric.now - 10, fabric.now).values()
    assert {lane.job for lane in lanes} == {*names, *(f"{name} (uid 1001)" for name in names)}
