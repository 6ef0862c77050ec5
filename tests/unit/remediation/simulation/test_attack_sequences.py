"""Whoever may send alerts and speak as an agent does what he likes; the fleet keeps its capacity all the same.

Forged alerts, replays, floods, absurd labels, fake agents with fake health, jobs and lanes, results for other hosts'
operations, in a random order. What must hold is counted here from the journal alone, not by the guards' own code.
"""

import json
import os
import random
from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.remediation.world import START

from fabricpulse.core.config import parse_config
from fabricpulse.remediation.protocol import Health, LaneSample, Result
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.drains import OUT
from fabricpulse.remediation.receiver.payload import parse_notification
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.model import AgentState, State
from fabricpulse.remediation.receiver.state.transaction import Transaction, Transition

HOSTS, NICS = 24, 4
POLICY = """
rules:
  - {alert: Flapping, mode: auto}
  - {alert: Tested, action: nic.restore, mode: auto}
  - {alert: Contended, action: lane.repath, mode: auto}
  - {alert: Down, action: host.drain, mode: auto}
hold: {initial_s: 60, jitter: 0}
rebalance: {cooldown_s: 5, operations_per_hour: 60, max_unhelpful: 50, window_s: 40, quiet_s: 0, min_gain: 1.01}
drain: {grace_s: 10, max_hosts: 1, hosts_per_day: 3}
"""
ABSURD = ("", "-rf", "..", "h0/rail1", "h0\n", "\x00", "\u202eh0", "h" * 300, "h0 ", "ünïcode", "*", "{host}")
BACK = ("rebalance_undone", "rebalance_returns")
# What the policy's defaults allow, written down once more.
BREAKER_WINDOW_S, RELATIVE, LEAST_HOSTS, MOST_HOSTS = 300.0, 0.1, 3, 10
ATTEMPTS, ATTEMPTS_WINDOW_S, COOLDOWN_S = 3, 21_600.0, 300.0
FAKE_HEALTH: dict[str, Health] = dict.fromkeys([f"rail{i}" for i in range(16)], "healthy")
FAKE_NICS = dict.fromkeys([f"rail{i}" for i in range(16)], True)
BURST, A_MINUTE, IN_FLIGHT, JOB_NICS, LANE_OPERATIONS = 10, 10, 5, 8, 60


class Fleet:
    """True hosts whose agents obey and report the truth, and an attacker. lines : the journal, with times."""

    def __init__(self, seed: int, has_membership: bool) -> None:
        self.chance = random.Random(seed)
        self.hosts = {f"h{i}": frozenset(f"rail{j}" for j in range(NICS)) for i in range(HOSTS)}
        self.reconciler = Reconciler(
            parse_config(POLICY, ReceiverConfig, "test"), self.hosts if has_membership else {}
        )
        self.has_membership = has_membership
        self.state, self.now = State(), START
        self.lines: list[tuple[float, Transition]] = []
        self.sent: list[bytes] = []
        self.fakes: set[str] = set()
        # He worries few NICs again and again, or does everything at once, which the guards against many see.
        self.is_patient = seed % 4 >= 2
        self.change(lambda t: self.reconciler.observed.on_start(t, self.now))
        self.report()

    def change(self, change: Any) -> None:
        transaction = Transaction(self.state)
        change(transaction)
        self.lines += [(self.now, line) for line in transaction.transitions]
        self.state = transaction.apply()

    def go_on(self) -> None:
        """One thing that the attacker does, or time that passes."""
        if self.state.breakers and self.chance.random() < 0.2:
            # An operator who believes all of it.
            self.change(lambda t: self.reconciler.operator.resume(t, "ada", self.now))
        loud = [self.forge, self.forge, self.replay, self.flood, self.absurd, self.lie_as_agent]
        own = [self.worry] * 6 if self.is_patient else loud
        self.chance.choice([*own, self.claim_results, *([self.wait] * 4)])()
        self.decide()
        self.check()

    # --- the attacker ----------------------------------------------------------------------------------------------

    def post(self, *alerts: dict[str, Any]) -> None:
        self.deliver(json.dumps({"version": "4", "alerts": alerts}).encode())

    def deliver(self, body: bytes) -> None:
        self.sent.append(body)
        alerts = parse_notification(body).alerts
        self.change(lambda t: self.reconciler.observed.on_alerts(t, alerts, self.now))

    def alert(self, host: str, device: str, **more: str) -> dict[str, Any]:
        chance = self.chance
        name = chance.choice(["Flapping", "Flapping", "Flapping", "Tested", "Contended", "Down"])
        return {
            "status": chance.choice(["firing", "firing", "resolved"]),
            "labels": {"alertname": name, "instance": host, "device": device, **more},
            # As he likes: the same one for many NICs, or a new one each time.
            "fingerprint": chance.choice([f"{name}/{host}/{device}", "f" * 16, f"{chance.random()}"]),
            "startsAt": f"20{chance.randrange(10, 90)}-01-01T00:00:00Z",
        }

    def forge(self) -> None:
        chance = self.chance
        self.post(
            *(
                self.alert(f"h{chance.randrange(HOSTS)}", self.any_device())
                for _ in range(chance.randrange(1, 6))
            )
        )

    def flood(self) -> None:
        """Every NIC of every host, one cause each or none that is shared."""
        more = {name: f"{self.chance.random()}" for name in ("network", "leaf", "switch")}
        self.post(
            *(
                self.alert(host, device, **more)
                for host, nics in self.hosts.items()
                for device in sorted(nics)
            )
        )

    def worry(self) -> None:
        """One NIC out, and back as soon as that can be had."""
        host, device = self.chance.choice([("h1", "rail0"), ("h2", "rail3"), ("h5", "rail3")])
        labels = {"alertname": "Flapping", "instance": host, "device": device}
        fault = {"labels": labels, "fingerprint": host, "startsAt": "2026-01-01T00:00:00Z"}
        well = fault | {"labels": labels | {"alertname": "Tested"}, "fingerprint": f"{host} is well"}
        self.post(fault | {"status": "firing"}, well | {"status": "firing"})
        self.wait(self.chance.choice([6.0, 20.0]))
        self.post(fault | {"status": "resolved"})
        self.wait(self.chance.choice([70.0, 330.0]))

    def replay(self) -> None:
        if self.sent:
            self.deliver(self.chance.choice(self.sent))

    def absurd(self) -> None:
        chance = self.chance
        host, device = chance.choice([*ABSURD, "h1"]), chance.choice([*ABSURD, "rail1"])
        self.post(
            self.alert(host, device, workload=chance.choice(ABSURD), lane=chance.choice([*ABSURD, "1" * 9]))
        )

    def lie_as_agent(self) -> None:
        """Hosts that do not exist, all of them well, of the jobs of the others; lanes that are what he wants."""
        chance = self.chance
        for _ in range(chance.choice([1, 10, 100])):
            self.fakes.add(f"fake{chance.randrange(80)}")
        self.report_fakes()

    def claim_results(self) -> None:
        """Says of other hosts' operations what he likes."""
        for op_id in list(self.state.actions)[-20:]:
            word = Result(op_id, self.chance.choice(["applied", "refused", "failed"]), 1, traffic="stalled")
            self.change(lambda t, word=word: self.reconciler.results.on_result(t, "fake1", word, self.now))

    def any_device(self) -> str:
        return f"rail{self.chance.randrange(NICS)}"

    def report_fakes(self) -> None:
        # Agents that membership does not have are turned away before they come here (AgentApi).
        names = [] if self.has_membership else sorted(self.fakes)

        def change(transaction: Transaction) -> None:
            for host in names:
                devices = FAKE_NICS
                agent = AgentState(
                    host=host, seen_at=self.now, devices=devices, processes=9, workloads=("job0", "job1"),
                    health=FAKE_HEALTH,
                )  # fmt: skip
                self.reconciler.observed.on_agent(transaction, agent, self.now)
                self.reconciler.evidence.add(host, self.lanes("job0"), self.now)

        self.change(change)

    # --- the fleet -------------------------------------------------------------------------------------------------

    def lanes(self, job: str) -> list[LaneSample]:
        rate = self.chance.choice([1e6, 1e9])
        return [
            LaneSample("1", "0" * 16, i, job, "rail0", 5000, 500, rate, rate / (1 + i), 1e-2, 9, 0, 1e11, 1.0)
            for i in range(2)
        ]

    def report(self) -> None:
        out = {t.target.key for t in self.state.targets.values() if t.phase in ("avoided", "manual")}

        def change(transaction: Transaction) -> None:
            for host, nics in self.hosts.items():
                job = "job0" if int(host[1:]) % 2 else "job1"
                agent = AgentState(
                    host=host, seen_at=self.now, devices={d: f"{host}/{d}" not in out for d in sorted(nics)},
                    health=dict.fromkeys(sorted(nics), "healthy"), processes=1, workloads=(job,),
                )  # fmt: skip
                self.reconciler.observed.on_agent(transaction, agent, self.now)
                self.reconciler.evidence.add(host, self.lanes(job), self.now)

        self.change(change)
        self.report_fakes()

    def wait(self, seconds: float = 0.0) -> None:
        """Time passes, so long or at random; agents obey, mostly at once."""
        seconds = seconds or self.chance.choice([0.5, 3.0, 6.0, 30.0, 120.0, 700.0])
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 10.0)
            self.report()
            if self.chance.random() < 0.9:
                self.obey()
            self.decide()
            self.check()

    def obey(self) -> None:
        for action in [a for a in self.state.actions.values() if a.outcome == "pending"]:
            host, word = action.target.host, Result(action.op_id, "applied", 1, traffic="moved")
            self.change(lambda t, op=action.op_id: self.reconciler.results.on_sent(t, [op], self.now))
            self.change(lambda t, h=host, w=word: self.reconciler.results.on_result(t, h, w, self.now))
        for host in [*self.hosts, *sorted(self.fakes)]:
            for order in self.reconciler.rebalancer.orders(self.state, host, self.now):
                word = Result(order.op_id, "applied", 1)
                self.change(lambda t, h=host, w=word: self.reconciler.rebalancer.on_result(t, h, w, self.now))

    def decide(self) -> None:
        self.change(lambda t: self.reconciler.decisions.reconcile(t, self.now))
        self.change(lambda t: self.reconciler.rebalancer.reconcile(t, self.now))
        self.change(lambda t: self.reconciler.drains.reconcile(t, self.now))

    # --- what must hold --------------------------------------------------------------------------------------------

    def lately(self, within_s: float) -> list[tuple[float, Transition]]:
        """What happened in the last seconds: of a long story a small part."""
        return self.lines[bisect_left(self.lines, self.now - within_s, key=lambda line: line[0]) :]

    def avoids(self, within_s: float) -> list[tuple[float, str]]:
        return [(at, line.subject) for at, line in self.lately(within_s) if line.event == "nic.avoid"]

    def check(self) -> None:
        out = defaultdict(set)
        for target in self.state.targets.values():
            if target.desired == "avoid":
                out[target.target.host].add(target.target.device)
        true_out = {host: nics for host, nics in out.items() if host in self.hosts}
        for host, nics in true_out.items():
            assert len(nics) <= NICS // 4, f"{host} lost {nics}"
        for parity in (0, 1):
            lost = sum(len(nics) for host, nics in true_out.items() if int(host[1:]) % 2 == parity)
            assert lost <= JOB_NICS, f"a job lost {lost} NICs"
        since = self.state.resumed_at
        touched = {key.partition("/")[0] for at, key in self.avoids(BREAKER_WINDOW_S) if at > since}
        allowed = max(LEAST_HOSTS, int(RELATIVE * HOSTS)) if self.has_membership else MOST_HOSTS
        assert len(touched) <= allowed, f"{sorted(touched)} within the window"
        assert len(self.avoids(60.0)) <= BURST + A_MINUTE
        often = Counter(key for _, key in self.avoids(ATTEMPTS_WINDOW_S))
        assert max(often.values(), default=0) <= ATTEMPTS, often.most_common(1)
        times = sorted((key, at) for at, key in self.avoids(ATTEMPTS_WINDOW_S))
        for (key, at), (other, later) in pairwise(times):
            assert key != other or later - at >= COOLDOWN_S, f"{key} toggles"
        pending = [a.target.host for a in self.state.actions.values() if a.outcome == "pending"]
        assert len(pending) == len(set(pending)) <= IN_FLIGHT
        if self.has_membership:
            assert out.keys() <= self.hosts.keys()
        drains = [drain for drain in self.state.drains.values() if drain.phase in OUT]
        assert len(drains) <= 1
        hour = [line for _, line in self.lately(3600.0) if line.event == "lane.repath"]
        undone = sum(line.event in BACK for _, line in self.lately(3600.0))
        # Rolling back is not counted against the limit: at most one operation a lane of a plan.
        assert len(hour) <= LANE_OPERATIONS * (1 + undone), len(hour)


def attack(seed: int, steps: int) -> Fleet:
    fleet = Fleet(seed, has_membership=seed % 2 == 0)
    for _ in range(steps):
        fleet.go_on()
    return fleet


@pytest.mark.simulation
@pytest.mark.parametrize(("seed", "steps"), [(0, 60), (1, 40), (2, 40), (3, 40)])
def test_no_sequence_of_attacks_costs_the_fleet_its_capacity(seed, steps):
    """After each step; and the attack was one: it had actions that the limits allow."""
    fleet = attack(seed, steps)
    events = Counter(line.event for _, line in fleet.lines)
    assert events["nic.avoid"] > 0
    assert events["blocked"] + events["breaker_tripped"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 100 + int(os.environ.get("FABRICPULSE_TEST_ATTACKS", "6"))))
def test_no_long_sequence_of_attacks_does(seed):
    """The same for longer, and more of them."""
    attack(seed, 200)
