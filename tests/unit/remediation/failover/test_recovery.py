"""What failovers come to: predicted, measured, counted by rule; and the end of a rule that proves nothing."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.remediation.world import START, World, alert, config

from fabricpulse.remediation.node.carried import CarriedBytes
from fabricpulse.remediation.node.survey import Survey
from fabricpulse.remediation.protocol import Report
from fabricpulse.remediation.receiver.commit_loop import CommitLoop
from fabricpulse.remediation.receiver.failover.host_traffic import SPACING_S, HostTraffic
from fabricpulse.remediation.receiver.health import problems
from fabricpulse.remediation.receiver.state.model import Action, Target
from fabricpulse.remediation.receiver.state.transaction import Transaction, Transition
from fabricpulse.remediation.receiver.store.sql_store import SqlStore
from fabricpulse.remediation.receiver.store.sqlite_database import SqliteDatabase

LIMITS = "settle_s: 0, breaker_hosts: 99, cooldown_s: 0, shared_cause_count: 99, max_unproven: 2"
RULE = (
    "rules: [{alert: FabricNicFlapping, mode: MODE}]\nhold: {initial_s: 600, jitter: 0}\nguards: {LIMITS}\n"
)


class Carrying(World):
    """A world whose agents count what their jobs carry. rates : bytes per second of each host."""

    def __init__(self, mode: str = "auto", hosts: int = 5) -> None:
        self.rates: dict[str, float] = dict.fromkeys([f"h{i}" for i in range(hosts)], 4e9)
        self.carried: defaultdict[str, float] = defaultdict(float)
        self.counted_at = START
        super().__init__(config(RULE.replace("MODE", mode).replace("LIMITS", LIMITS)), hosts=hosts, nics=4)

    def report(self, hosts: Iterable[str] | None = None, **fields: Any) -> None:
        super().report(hosts, **fields)
        for host, rate in self.rates.items():
            self.carried[host] += rate * (self.now - self.counted_at)
            at_s = 1.0 + self.now - START
            self.reconciler.traffic.add(host, at_s, self.carried[host], self.now)
        self.counted_at = self.now

    def failover(self, host: str, after: float) -> Action:
        """The host carries half of what it did, for a while; its NIC leaves; it carries `after` from then on."""
        self.tick(100)
        self.rates[host] = 2e9
        self.tick(40)
        self.deliver(alert(host))
        (action,) = self.settle()
        self.rates[host] = after
        self.tick(60)
        return self.state.actions[action.op_id]


def judged(world: World) -> list[Transition]:
    return [line for line in world.lines if line.event == "judged"]


def test_a_failover_that_helped():
    """Predicted is what three of four NICs allow, by what the flapping one left; measured is what became of it."""
    world = Carrying()
    action = world.failover("h0", 2.9e9)
    assert action.predicted == pytest.approx(1.5, rel=0.02)
    assert action.measured == pytest.approx(1.45, rel=0.02)
    assert action.goodput_allowed == pytest.approx(3e9, rel=0.02)
    assert action.recovery == "recovered"
    (decided,) = (line for line in world.lines if line.event == "nic.avoid")
    assert decided.detail["predicted"] == pytest.approx(1.5, rel=0.02)
    (line,) = judged(world)
    assert (line.detail["alert"], line.detail["recovery"]) == ("FabricNicFlapping", "recovered")
    world.tick(200)
    assert len(judged(world)) == 1


def test_a_dry_run_predicts_too():
    """So that a person can tell what the rule would bring."""
    world = Carrying("dry_run")
    world.tick(100)
    world.rates["h0"] = 1e9
    world.tick(40)
    world.deliver(alert("h0"))
    (action,) = world.state.actions.values()
    assert (action.dry_run, action.predicted) == (True, pytest.approx(3.0, rel=0.02))


def test_a_rule_that_proves_nothing_stops_and_says_so():
    """Two failovers after which hosts carry less than the NICs that are left allow: it only observes until a resume."""
    world = Carrying()
    for host in ("h0", "h1"):
        assert world.failover(host, 1e9).recovery == "not_recovered"
    world.deliver(alert("h2"))
    assert (world.pending(), world.blocked("h2/rail0")) == ([], "unhelpful")
    (problem,) = problems(world.config, world.state, world.now, "")
    assert (problem.code, "no" in problem.message) == ("rule_stopped", True)
    world.now += 1
    world.resume("ada")
    world.tick(1)
    assert [action.target.host for action in world.pending()] == ["h2"]
    assert problems(world.config, world.state, world.now, "") == []


def test_one_proven_recovery_lets_it_go_on():
    """In a row is what counts, whatever is idle or unknown between."""
    world = Carrying()
    assert world.failover("h0", 1e9).recovery == "not_recovered"
    assert world.failover("h1", 3e9).recovery == "recovered"
    assert world.failover("h2", 1e9).recovery == "not_recovered"
    world.deliver(alert("h3"))
    assert [action.target.host for action in world.pending()] == ["h3"]


def test_a_host_without_traffic_proves_nothing():
    """Neither way: its rule goes on."""
    world = Carrying()
    world.rates = dict.fromkeys(world.rates, 0.0)
    for host in ("h0", "h1", "h2"):
        world.deliver(alert(host))
        (action,) = world.settle()
        world.tick(60)
        assert world.state.actions[action.op_id].recovery == "idle"
    world.deliver(alert("h3"))
    assert [action.target.host for action in world.pending()] == ["h3"]


def test_what_nobody_has_measured_is_unknown():
    """A receiver that has just started, an agent that does not report, a NIC that is back before the time is over."""
    world = Carrying()
    world.deliver(alert("h0"))
    (first,) = world.settle()
    assert (first.predicted, first.goodput_allowed) == (0.0, 0.0)
    world.tick(100)
    assert world.state.actions[first.op_id].recovery == "unknown"
    world.deliver(alert("h1"))
    (second,) = world.settle()
    world.rates.pop("h1")
    world.tick(100)
    assert world.state.actions[second.op_id].recovery == "unknown"
    world.deliver(alert("h2"))
    (third,) = world.settle()
    world.tick(10)
    world.release(Target("h2", "rail0"), "ada")
    world.settle()
    world.tick(1)
    assert world.state.actions[third.op_id].recovery == "unknown"


def test_rates_of_counters():
    """Of spans that are known by half at least; what began anew counts from there."""
    traffic = HostTraffic()
    for second in range(0, 60, 5):
        traffic.add("h0", 100.0 + second, 1e6 * second + 4e6 * max(0, second - 30), 1000.0 + second)
    assert traffic.rate("h0", 1000.0, 1030.0) == pytest.approx(1e6)
    assert traffic.rate("h0", 1030.0, 1055.0) == pytest.approx(5e6)
    assert traffic.best("h0", 20.0, 1030.0) == pytest.approx(1e6)
    assert traffic.best("h0", 20.0, 1055.0) == pytest.approx(5e6)
    assert traffic.rate("h0", 1040.0, 1090.0) is None
    assert traffic.rate("h1", 1000.0, 1030.0) is None
    assert traffic.best("h0", 100.0, 1055.0) is None
    traffic.add("h0", 3.0, 0.0, 1060.0)
    assert traffic.rate("h0", 1000.0, 1060.0) is None
    traffic.keep([])
    assert traffic.best("h0", 1.0, 2000.0) is None


def test_memory_of_a_host_is_bounded():
    """However often it reports, and for however long; an agent that does not count takes none."""
    traffic = HostTraffic()
    for number in range(5000):
        now = 1000.0 + number * SPACING_S / 2
        traffic.add("h0", now, float(number), now)
        traffic.add("h1", 0.0, 0.0, now)
    assert traffic.best("h0", 200.0, now) is not None
    assert traffic.best("h0", 400.0, now) is None
    assert traffic.best("h1", 1.0, now) is None


def test_bytes_of_processes_that_come_and_go():
    """What a process had carried before it was first seen is not of this time; one that begins anew takes nothing."""

    def survey(**sent: int) -> Survey:
        return Survey(
            {
                name: {"devices": [{"device": "rail0", "sent_bytes": n, "received_bytes": 5}]}
                for name, n in sent.items()
            }
        )

    carried = CarriedBytes()
    steps = [
        ({"a": 1000}, 0),
        ({"a": 1100, "b": 7000}, 100),
        ({"a": 50, "b": 7010}, 110),
        ({"a": 60}, 120),
        ({}, 120),
    ]
    for number, (sent, total) in enumerate(steps):
        carried.count(survey(**sent), float(number))
        assert (carried.total, carried.at_s) == (total, number)


def test_a_process_that_invents_bytes_does_not_silence_its_host():
    """The sum stays within what a report may have, and the bytes of others remain to be seen in it."""

    def survey(invented: int, sent: int) -> Survey:
        forged = {"devices": [{"device": f"d{n}", "sent_bytes": invented} for n in range(64)]}
        own = {"devices": [{"device": "rail0", "sent_bytes": sent}]}
        return Survey({**{f"{n}": forged for n in range(100)}, "job": own})

    carried = CarriedBytes()
    for number in range(100):
        carried.count(survey(number % 2 * (2**63 - 1), 0), 2.0 * number)
    msgspec.convert({"carried_bytes": carried.total}, Report)
    before = carried.total
    carried.count(survey(0, 10**10), 200.0)
    assert carried.total - before == pytest.approx(1e10, rel=0.01)
    for hour in range(1, 10):
        carried.count(survey(hour % 2 * (2**63 - 1), 10**10), 200.0 + 1e8 * hour)
    msgspec.convert({"carried_bytes": carried.total}, Report)


async def test_what_was_judged_is_counted_by_rule(tmp_path: Path) -> None:
    """Failovers by their alert, plans for lanes by theirs or as the controller's own."""

    def lines(transaction: Transaction, _: float) -> None:
        transaction.log("h0/rail0", "judged", alert="Flapping", recovery="recovered")
        transaction.log("job", "rebalance_kept", alert="Contended")
        transaction.log("job", "rebalance_rolled_back")
        transaction.log("job", "rebalance_rollback_failed", withdrawn=True)
        transaction.log("job", "rebalance_dropped", alert="Contended")

    store = SqlStore(SqliteDatabase(tmp_path / "j.db"))
    loop = CommitLoop(store, lambda _t, _n: None, lambda: 50.0)
    await loop.start(lines)
    store.close()
    counted = {key[1:]: count for key, count in loop.counts.items() if key[0] == "judged"}
    assert counted == {
        ("Flapping", "recovered"): 1,
        ("Contended", "recovered"): 1,
        ("rebalance", "not_recovered"): 1,
        ("rebalance", "unknown"): 1,
    }


@pytest.mark.parametrize("report_s", [0.5, 0.55, 0.7])
def test_a_short_window_is_known_wherever_it_begins(report_s):
    """Of a job that carries on without a pause it was not known of one failover in five whether it had helped."""
    traffic = HostTraffic()
    traffic.measure_over(5.0)
    for number in range(1, 101):
        traffic.add("h0", number * report_s, 1e6 * number * report_s, number * report_s)
    begins = [10 + tenth / 10 for tenth in range(200)]
    rates = [traffic.rate("h0", begin, begin + 5.0) for begin in begins]
    assert rates == [pytest.approx(1e6)] * len(begins)
