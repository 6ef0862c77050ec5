"""Rules with `action: lane.repath` and `lane.weight`: an alert chooses the lanes, what is measured decides."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace as changed
from tests.unit.remediation.simulation.fabric_model import LINK, REPORT_S, Fabric
from tests.unit.remediation.world import START, World, alert, config

from fabricpulse.core.config import parse_config
from fabricpulse.remediation.protocol import LaneOrder, LaneSample, Result
from fabricpulse.remediation.receiver.config import RebalanceConfig, ReceiverConfig
from fabricpulse.remediation.receiver.explain import explain_alert
from fabricpulse.remediation.receiver.observed_state import ObservedState
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.rebalance.lane_evidence import LaneEvidence
from fabricpulse.remediation.receiver.rebalance.lane_planner import propose
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.model import AgentState, Pause, State
from fabricpulse.remediation.receiver.state.transaction import Transaction

NAME = "FabricPathContended"


def rule(mode: str = "auto", action: str = "lane.repath", more: str = "cooldown_s: 60") -> str:
    return f"rules: [{{alert: {NAME}, action: {action}, mode: {mode}}}]\nrebalance: {{{more}}}\n"


def contended(host: str = "h0-0", *, firing: bool = True, starts_at: float = START, **labels: str) -> Alert:
    named = {"alertname": NAME, "instance": host, "device": "rail0"} | labels
    return Alert(firing, "/".join(sorted(named.values())), starts_at, named)


def collided(text: str = "", *alerts: Alert, spines: int = 2) -> Fabric:
    """Two jobs on one link of a fleet whose controller makes no plans of its own."""
    fabric = Fabric(spines, 2, 1, 4, config=parse_config(text or rule(), ReceiverConfig, "test"))
    fabric.collide()
    tell(fabric, *alerts)
    return fabric


def tell(fabric: Fabric, *alerts: Alert) -> None:
    fabric._change(lambda t: fabric.reconciler.observed.on_alerts(t, alerts, fabric.now))


def reasons(fabric: Fabric) -> list[str]:
    return [line.detail["reason"] for line in fabric.lines if line.event == "blocked"]


def test_what_an_alert_names_is_taken_apart():
    """With a prediction, and what was measured; without the alert nothing is moved."""
    fabric = collided("", contended(workload="job0"))
    before = fabric.goodput()
    fabric.run(120)
    (plan,) = fabric.plans()
    assert (plan.phase, plan.workload, plan.alert) == ("kept", "job0", NAME)
    assert plan.measured == pytest.approx(plan.predicted, rel=0.1)
    assert fabric.goodput() == pytest.approx(2 * before)
    quiet = collided()
    quiet.run(120)
    assert (quiet.plans(), quiet.operations) == ([], [])


@pytest.mark.parametrize(
    "named",
    [
        contended("h9"),
        contended(device="rail7"),
        contended(workload="job1"),
        contended(connection="f" * 16),
        contended(lane="3"),
    ],
    ids=lambda named: named.fingerprint,
)
def test_lanes_that_it_does_not_name_stay_where_they_are(named):
    """Another host, NIC, job, connection, lane: what collides is not what it is about."""
    fabric = collided("", named)
    fabric.run(60)
    assert (fabric.operations, reasons(fabric)) == ([], ["unconfirmed"])


def test_an_alert_about_lanes_that_are_well_moves_nothing():
    """A job whose lanes are apart; whoever says otherwise is not believed."""
    fabric = Fabric(2, 1, 2, 4, config=parse_config(rule(), ReceiverConfig, "test"))
    for link, lane in enumerate(fabric.lanes):
        lane.entropy = next(p for p in range(1024, 9999) if fabric.link_of(lane, p) == link)
    tell(fabric, contended("h0-0"), contended("h0-1"))
    fabric.run(300)
    assert (fabric.operations, reasons(fabric)) == ([], ["unconfirmed"] * 2)


@pytest.mark.parametrize("goodput", [5e6, 0.0])
def test_lanes_of_which_no_throughput_is_measured_are_said_so(goodput):
    """Sends below 32 KiB measure none: that the alert is not confirmed would be read as that the lanes are well. Of
    idle ones nothing is expected. It is written once."""
    fabric = collided("", contended())
    post = fabric._post

    def without(host: str, what: Any) -> None:
        if isinstance(what, LaneSample):
            what = changed(what, capacity=0.0, goodput=goodput)
        post(host, what)

    fabric._post = without
    fabric.run(60)
    # Before the first reports nothing confirms it either.
    assert (fabric.operations, reasons(fabric)) == ([], ["unconfirmed", "not_measured"][: 1 + (goodput > 0)])


def test_what_did_not_help_is_undone_and_rested():
    """One path only: source ports are as before, then the pause and max_unhelpful hold, however long it fires."""
    fabric = collided(rule(more="cooldown_s: 5, max_tries: 2, max_unhelpful: 2"), contended(), spines=1)
    ports = [lane.entropy for lane in fabric.lanes]
    fabric.run(600)
    assert {plan.phase for plan in fabric.plans()} == {"rolled_back"}
    assert len(fabric.plans()) <= 2
    assert [lane.entropy for lane in fabric.lanes] == ports
    assert {"cooldown", "unhelpful"} & set(reasons(fabric))


def test_dry_run_says_once_an_episode_what_it_would_do():
    """And keeps the controller's own plans from nothing."""
    fabric = collided(rule("dry_run"), contended())
    fabric.run(300)
    assert (fabric.operations, fabric.events().count("would_rebalance")) == ([], 1)
    tell(fabric, contended(firing=False))
    fabric.run(20)
    tell(fabric, contended(starts_at=fabric.now))
    fabric.run(60)
    assert (fabric.operations, fabric.events().count("would_rebalance")) == ([], 2)
    both = collided(rule("dry_run", more="mode: auto, cooldown_s: 60"), contended())
    both.run(120)
    assert [plan.phase for plan in both.plans()] == ["dry_run", "kept"]


def test_a_plan_waits_for_an_operator_while_the_alert_fires():
    """With its end the plan ends; one that is approved is carried out."""
    fabric = collided(rule("approve"), contended())
    fabric.run(60)
    (plan,) = fabric.plans()
    assert (plan.phase, fabric.operations) == ("awaiting_approval", [])
    tell(fabric, contended(firing=False))
    fabric.run(10)
    assert (fabric.plans()[0].phase, fabric.plans()[0].reason) == ("dropped", "no alert asks for it any more")
    tell(fabric, contended(starts_at=fabric.now))
    fabric.run(90)
    waiting = fabric.plans()[-1]
    fabric._change(lambda t: fabric.reconciler.rebalancer.approve(t, waiting.hash, "ada", fabric.now))
    fabric.run(60)
    assert (fabric.plans()[-1].phase, fabric.plans()[-1].approved_by) == ("kept", "ada")


def test_the_kill_switch_holds():
    """The reason is written once."""
    fabric = collided("", contended())
    fabric.state = changed(fabric.state, pause=Pause(reason="x", owner="ada", since=START))
    fabric.run(60)
    assert (fabric.operations, reasons(fabric).count("paused")) == ([], 1)


def test_a_storm_of_alerts_costs_no_more_than_a_few(monkeypatch):
    """Each search looks into a few of them, in turn; the limit on operations is that of the fleet."""
    asked: list[float] = []

    def counted(*arguments: Any) -> Any:
        asked.append(fabric.now)
        return propose(*arguments)

    monkeypatch.setattr("fabricpulse.remediation.receiver.rebalance.rebalancer.propose", counted)
    forged = [contended(f"h{number}-0", workload=f"job{number}") for number in range(2, 300)]
    fabric = collided(rule(more="cooldown_s: 60, operations_per_hour: 4"), *forged, contended())
    fabric.run(120)
    assert max(asked.count(at) for at in asked) <= 20
    assert [plan.phase for plan in fabric.plans()] == ["kept"], "the one that is true had its turn"
    assert len(fabric.operations) <= 4


def test_it_is_no_alert_about_a_nic():
    """It takes none out, keeps none out, and is no sign of a shared fault, on however many hosts it fires."""
    world = World(
        config(
            f"rules: [{{alert: FabricNicFlapping, mode: auto}}, {{alert: {NAME}, action: lane.repath, mode: auto}}]\n"
            "hold: {initial_s: 10, jitter: 0}\n"
        ),
        hosts=6,
    )
    world.deliver(*(replace(alert(host, name=NAME), fingerprint=host) for host in world.hosts))
    world.tick(30)
    assert (world.pending(), world.state.targets) == ([], {})
    world.deliver(alert())
    assert [action.action for action in world.settle()] == ["nic.avoid"]
    world.deliver(alert(firing=False))
    world.tick(15)
    assert [action.action for action in world.pending()] == ["nic.restore"]


def test_labels_that_name_no_lane_are_reported():
    """A dead letter says why."""
    observed = ObservedState(parse_config(rule(), ReceiverConfig, "test"), {})
    assert observed.target_of(contended(lane="-1")) == "label lane is not the number of a lane"
    assert observed.target_of(contended(device="")) == "label device is missing"
    assert str(observed.target_of(contended(workload="w" * 200))).startswith("a label is longer")


def test_explain_says_what_it_would_come_to():
    """For the one who writes the rule."""
    world = World(config(rule() + "guards: {settle_s: 5}"))
    said = explain_alert(world.config, {}, world.state, contended("h0"), world.now)
    assert said["next"] == f"{NAME}: lane.repath for its lanes that are measured to be slow, mode auto"


class Connection:
    """A host with one connection of two lanes; the second delivers a quarter of what the first does.

    obeys : whether a weight makes the job faster.
    """

    def __init__(self, text: str, obeys: bool) -> None:
        self.obeys, self.weight = obeys, 500
        self.reconciler = Reconciler(parse_config(text, ReceiverConfig, "test"))
        self.state, self.now = State(), START
        self.orders: list[LaneOrder] = []
        self._run(lambda t: self.reconciler.observed.on_alerts(t, [contended("h")], self.now))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += REPORT_S / 2
            self._run(self._report)
            self._run(lambda t: self.reconciler.rebalancer.reconcile(t, self.now))
            for order in self.reconciler.rebalancer.orders(self.state, "h", self.now):
                self.orders.append(order)
                self.weight = order.value or 500
                self._run(partial(self._answer, order.op_id))

    def _report(self, transaction: Transaction) -> None:
        agent = AgentState(host="h", seen_at=self.now, processes=1)
        self.reconciler.observed.on_agent(transaction, agent, self.now)
        self.reconciler.evidence.add("h", self.samples(), self.now)

    def samples(self) -> list[LaneSample]:
        slow = LINK / 4
        fast = 4 * slow if self.obeys and self.weight < 500 else slow
        return [
            LaneSample(
                "1", "0" * 16, lane, "job", "rail0", 5000, 500, goodput, capacity, delay, 0, 0, 10 * LINK, 1.0
            )
            for lane, goodput, capacity, delay in ((0, fast, LINK, 1e-4), (1, slow, slow, 5e-3))
        ]

    def _answer(self, op_id: str, transaction: Transaction) -> None:
        self.reconciler.rebalancer.on_result(transaction, "h", Result(op_id, "applied", 1), self.now)

    def _run(self, change: Any) -> None:
        transaction = Transaction(self.state)
        change(transaction)
        self.state = transaction.apply()


@pytest.mark.parametrize("obeys", [True, False])
def test_a_weight_stays_if_the_job_is_faster(obeys):
    """By what the lane delivers; the plugin's own choice is back where it did not help."""
    job = Connection(rule(action="lane.weight"), obeys)
    job.run(60)
    (plan,) = job.state.rebalances.values()
    orders = [(order.lane, order.operation, order.value) for order in job.orders]
    assert orders[0] == (1, "lane.weight", 125)
    assert (plan.phase, orders[1:]) == (
        ("kept", []) if obeys else ("rolled_back", [(1, "lane.weight", None)])
    )


def test_a_weight_promises_nothing_to_a_job_that_sends_by_what_lanes_deliver():
    """Its lanes have what they can carry already: a weight has nothing to win there."""
    job, evidence = Connection(rule(action="lane.weight"), True), LaneEvidence()
    for at in range(0, 12, 2):
        samples = job.samples()
        samples[0] = changed(samples[0], goodput=LINK)
        evidence.add("h", samples, START + at)
    lanes = evidence.summaries(START, START + 10)
    (proposal,) = propose(RebalanceConfig(), lanes, {"job": "no_new_path"})
    assert (proposal.moves[0].operation, proposal.predicted) == ("lane.weight", pytest.approx(0.92))
