"""A fleet in memory for the rebalancer: jobs whose lanes share spine links, an agent's reports, control that is late.

A ring has one rate on all of its lanes, that of its worst link: so two lanes of it on one link count twice. Rates are
max-min fair. What a lane could deliver (its capacity) is its share of its link, or what the others leave there.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import product

from tests.unit.remediation.world import START

from fabricpulse.core.config import parse_config
from fabricpulse.remediation.protocol import LaneOrder, LaneSample, Result
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.model import AgentState, Rebalance, State
from fabricpulse.remediation.receiver.state.transaction import Transaction, Transition

LINK = 25e6  # bytes per second
REPORT_S = 2.0
AUTO = "rules: []\nrebalance: {mode: auto, cooldown_s: 60}\n"


@dataclass
class Lane:
    """One sending lane. spread : chooses its path, together with the source port."""

    workload: str
    host: str
    connection: str
    spread: int
    entropy: int = 40_000
    repaths: int = 0

    def link(self, spines: int) -> int:
        return random.Random(self.spread * 100_003 + self.entropy).randrange(spines)


@dataclass
class Fabric:
    """delay_s : between what happens and its report, and between an order and its effect."""

    spines: int
    jobs: int
    lanes_per_job: int
    seed: int
    delay_s: float = 0.5
    config: ReceiverConfig = field(default_factory=lambda: parse_config(AUTO, ReceiverConfig, "test"))

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.lanes = [
            Lane(f"job{j}", f"h{j}-{i}", f"{j * 1000 + i:016x}", self.chance.randrange(10**9))
            for j in range(self.jobs)
            for i in range(self.lanes_per_job)
        ]
        self.reconciler = Reconciler(self.config)
        self.state, self.now = State(), START
        self.lines: list[Transition] = []
        self.mail: list[tuple[float, int, str, object]] = []
        self.ordered: set[str] = set()
        self.operations: list[float] = []
        self.history: list[tuple[float, float]] = []
        self.failing = ""
        # Links on which the next lanes that get any other port land; then chance decides.
        self.landings: list[int] = []

    def collide(self) -> None:
        """Every lane on link 0."""
        for lane in self.lanes:
            lane.entropy = next(e for e in range(1024, 65535) if self.link_of(lane, e) == 0)

    def link_of(self, lane: Lane, entropy: int) -> int:
        return Lane(lane.workload, lane.host, lane.connection, lane.spread, entropy).link(self.spines)

    def rates(self) -> dict[str, float]:
        """Job -> rate of each of its lanes: progressive filling."""
        use: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for lane in self.lanes:
            use[lane.link(self.spines)][lane.workload] += 1
        rate = dict.fromkeys({lane.workload for lane in self.lanes}, 0.0)
        growing = set(rate)
        while growing:
            steps = {
                link: (LINK - sum(rate[w] * n for w, n in jobs.items()))
                / sum(n for w, n in jobs.items() if w in growing)
                for link, jobs in use.items()
                if any(w in growing for w in jobs)
            }
            step = min(steps.values())
            for workload in growing:
                rate[workload] += step
            full = [link for link, left in steps.items() if left <= step + 1e-6]
            growing -= {w for link in full for w in use[link]}
        return rate

    def goodput(self) -> float:
        """Of all jobs, bytes per second."""
        rates = self.rates()
        return sum(rates[lane.workload] for lane in self.lanes)

    def run(self, seconds: float) -> None:
        """Lets time pass: reports, orders, decisions."""
        end = self.now + seconds
        while self.now < end:
            self.now += REPORT_S / 2
            if int(self.now / (REPORT_S / 2)) % 2:
                self._report()
            self._deliver()
            self._change(lambda t: self.reconciler.rebalancer.reconcile(t, self.now))
            self._fetch()
            self.history.append((self.now, self.goodput()))

    def _change(self, change: Callable[[Transaction], object]) -> None:
        transaction = Transaction(self.state)
        change(transaction)
        self.lines += transaction.transitions
        self.state = transaction.apply()

    def _report(self) -> None:
        rates = self.rates()
        used: dict[int, float] = defaultdict(float)
        for lane in self.lanes:
            used[lane.link(self.spines)] += rates[lane.workload]
        for lane in self.lanes:
            rate, total = rates[lane.workload], used[lane.link(self.spines)]
            noise = self.chance.uniform(0.97, 1.03)
            sample = LaneSample(
                "1", lane.connection, 0, lane.workload, "rail0", lane.entropy, 1000,
                rate * noise, max(rate, LINK - total + rate) * noise,
                5e-3 if total >= 0.99 * LINK else 1e-4, 0, lane.repaths, 10 * LINK, 1.0,
            )  # fmt: skip
            self._post(lane.host, sample)

    def _post(self, host: str, what: object) -> None:
        self.mail.append((self.now + self.delay_s, len(self.mail), host, what))

    def _deliver(self) -> None:
        due = [m for m in self.mail if m[0] <= self.now]
        self.mail = [m for m in self.mail if m[0] > self.now]
        samples: dict[str, list[LaneSample]] = defaultdict(list)
        for _, _, host, what in due:
            if isinstance(what, LaneSample):
                samples[host].append(what)
            elif isinstance(what, Result):
                self._change(partial(self._take, host, what))
            elif isinstance(what, LaneOrder):
                self._carry_out(host, what)

        def report(transaction: Transaction) -> None:
            for host, found in samples.items():
                agent = AgentState(host=host, seen_at=self.now, processes=1)
                self.reconciler.observed.on_agent(transaction, agent, self.now)
                self.reconciler.evidence.add(host, found, self.now)

        self._change(report)

    def _take(self, host: str, result: Result, transaction: Transaction) -> None:
        self.reconciler.rebalancer.on_result(transaction, host, result, self.now)

    def _fetch(self) -> None:
        for lane in self.lanes:
            for order in self.reconciler.rebalancer.orders(self.state, lane.host, self.now):
                if order.op_id not in self.ordered:
                    self.ordered.add(order.op_id)
                    self._post(lane.host, order)

    def _carry_out(self, host: str, order: LaneOrder) -> None:
        self.operations.append(self.now)
        if self.failing:
            self._post(host, Result(order.op_id, "refused", 0, self.failing))
            return
        lane = next(lane for lane in self.lanes if (lane.host, lane.connection) == (host, order.connection))
        if order.operation == "lane.repath":
            lane.entropy = order.value or self._port_to(lane)
            lane.repaths += 1
        self._post(host, Result(order.op_id, "applied", 1))

    def _port_to(self, lane: Lane) -> int:
        link = self.landings.pop(0) if self.landings else None
        while True:
            port = self.chance.randrange(1024, 65535)
            if link is None or self.link_of(lane, port) == link:
                return port

    def best_goodput(self) -> float:
        """Of the best assignment of lanes to links: all are tried."""
        ports = [
            [
                next(p for p in range(1024, 65535) if self.link_of(lane, p) == link)
                for link in range(self.spines)
            ]
            for lane in self.lanes
        ]
        before = [lane.entropy for lane in self.lanes]
        best = 0.0
        for choice in product(*ports):
            self._put(choice)
            best = max(best, self.goodput())
        self._put(before)
        return best

    def _put(self, ports: Iterable[int]) -> None:
        for lane, port in zip(self.lanes, ports, strict=True):
            lane.entropy = port

    def plans(self) -> list[Rebalance]:
        """Plans so far, oldest first."""
        return sorted(self.state.rebalances.values(), key=lambda plan: plan.created_at)

    def events(self) -> list[str]:
        """Events of the journal so far."""
        return [line.event for line in self.lines]
