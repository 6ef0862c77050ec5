"""A fleet in memory with faults of its own, and the reconciler that learns of them late, twice, wrongly, or never.

Links fail, one or a whole leaf's at once; Prometheus, Alertmanagers, mesh exporters and agents stop and come back;
agents refuse, fail and report late; the receiver starts again on a clock that was set; operators pause, resume and
release. What must hold meanwhile (`promises.py`) is not counted by the guards' own code.
"""

import heapq
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Literal

from tests.unit.remediation.simulation.promises import Promises, ViolationError
from tests.unit.remediation.simulation.simulated_nic import Nic
from tests.unit.remediation.simulation.simulated_policy import (
    AGENT_TIMEOUT_S,
    HOSTS,
    NICS,
    POLICY,
    TICK_S,
    job_of,
)
from tests.unit.remediation.world import START

from fabricpulse.core.config import parse_config
from fabricpulse.remediation.protocol import Health, Result, Traffic
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.in_flight import withheld
from fabricpulse.remediation.receiver.state.model import AgentState, Desired, Held, State, Target
from fabricpulse.remediation.receiver.state.transaction import Transaction
from fabricpulse.remediation.receiver.wall_clock import MonotonicWallClock

Outcome = Literal["applied", "refused", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("applied", "refused", "failed")
WATCHDOG = Alert(True, "watchdog", START, {"alertname": "FabricWatchdog"})


class FleetSimulation:
    """`steps` may be called again and again; `heal` ends all faults and lets the fleet come to rest."""

    def __init__(self, seed: int, policy: str = POLICY) -> None:
        self.chance = random.Random(seed)
        self.nics = {nic.key: nic for h in range(HOSTS) for nic in (Nic(h, r) for r in range(NICS))}
        self.by_host: dict[str, list[Nic]] = defaultdict(list)
        for nic in self.nics.values():
            self.by_host[nic.host].append(nic)
        self.reconciler = Reconciler(parse_config(policy, ReceiverConfig, "simulation"))
        self.state = State()
        self.at = 0.0  # true seconds
        self.wall_ahead_s = 0.0
        self.leaf_down: dict[str, float] = {}
        self.prometheus_back = self.alertmanager_back = self.mesh_back = 0.0
        self.away: dict[str, float] = {}
        self.polled_at = -1e9
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.number = 0
        self.lines: Counter[str] = Counter()
        self.promises = Promises(self.nics)
        self.late: list[tuple[str, Result]] = []
        self.healing = False
        self.steps_done = 0
        self._start_clock(0.0)
        self._change(lambda t: self.reconciler.observed.on_start(t, self.now))
        self._tick()

    # --- time ------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The receiver's clock."""
        return self._origin + self.at

    def _start_clock(self, not_before: float) -> None:
        wall = START + self.at + self.wall_ahead_s
        self._origin = MonotonicWallClock(not_before, wall)() - self.at

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.at + seconds, self.number, what))

    def steps(self, count: int) -> None:
        """Each is an event, or a tick in which agents report and obey."""
        for _ in range(count):
            self.steps_done += 1
            if self.events and self.events[0][0] <= self.at:
                heapq.heappop(self.events)[2]()
            elif self.chance.random() < 0.12 and not self.healing:
                self._inject_fault()
            else:
                self._tick()

    def heal(self, seconds: float = 5000.0) -> None:
        """Faults stop, operators resume; what waits for nobody must be back in service in the end, after its hold."""
        self.healing = True
        for nic in self.nics.values():
            nic.bad_until = 0.0
        self.leaf_down.clear()
        self.away.clear()
        self.prometheus_back = self.alertmanager_back = self.mesh_back = 0.0
        end = self.at + seconds
        while self.at < end - seconds / 2 or (self.at < end and self._out()):
            if self.state.pause is not None or self.state.breakers:
                self._decide(lambda t: self.reconciler.operator.resume(t, "ada", self.now))
            self.steps(1)
        if out := self._out():
            raise ViolationError("heal", f"{seconds:.0f} s after the last fault: {out}")

    def _out(self) -> dict[str, tuple[str, str]]:
        targets = self.state.targets.items()
        return {k: (t.phase, t.blocked) for k, t in targets if t.phase not in ("in_service", "manual")}

    # --- what happens ------------------------------------------------------------------------------------------------

    def _inject_fault(self) -> None:
        chance = self.chance
        what = chance.choices(
            [
                self._nic_fails, self._leaf_fails, self._prometheus_dies, self._alertmanager_dies,
                self._mesh_dies, self._agents_leave, self._restart, self._stale_copy, self._pause,
                self._resume, self._release, self._claim, self._report_late, self._false_resolve,
            ],
            [40, 3, 1, 2, 2, 3, 2, 10, 1, 6, 2, 4, 6, 3],
        )[0]  # fmt: skip
        what()

    def _nic_fails(self) -> None:
        nic = self.chance.choice(list(self.nics.values()))
        self._fail(nic, self.chance.choice([1.0, 5.0, 30.0, 300.0]))

    def _leaf_fails(self) -> None:
        leaf = self.chance.choice(sorted({nic.leaf for nic in self.nics.values()}))
        seconds = self.chance.choice([10.0, 120.0, 900.0])
        self.leaf_down[leaf] = self.at + seconds
        for nic in self.nics.values():
            if nic.leaf == leaf:
                self._fail(nic, seconds)

    def _fail(self, nic: Nic, seconds: float) -> None:
        nic.bad_until = max(nic.bad_until, self.at + seconds)
        # One evaluation of the rules, and what differs between scrapes of it.
        self._later(self.chance.uniform(0.0, 4.0), lambda: self._fire(nic))
        self._later(seconds + self.chance.choice([5.0, 60.0]), lambda: self._resolve(nic))

    def _fire(self, nic: Nic) -> None:
        if self.at < self.prometheus_back:
            self._later(self.prometheus_back - self.at + 1.0, lambda: self._fire(nic))
        elif not nic.fires_since and nic.bad_until > self.at:
            nic.fires_since = START + self.at
            self._send(nic, True)

    def _resolve(self, nic: Nic) -> None:
        if self.at < self.prometheus_back:
            self._later(self.prometheus_back - self.at + 1.0, lambda: self._resolve(nic))
        elif nic.fires_since and nic.bad_until <= self.at:
            self._send(nic, False)
            nic.fires_since = 0.0

    def _send(self, nic: Nic, firing: bool) -> None:
        if self.at < self.alertmanager_back or self.chance.random() < 0.1:
            return  # lost; the next poll brings it
        for _ in range(self.chance.choice([1, 1, 2])):
            self._deliver(nic, nic.alert(firing))

    def _deliver(self, nic: Nic, alert: Alert) -> None:
        if alert.firing:
            self._reported(nic)
        self._take(alert)

    def _take(self, alert: Alert) -> None:
        """A notification; one that is suspect has the Alertmanagers polled at once."""
        suspects: list[bool] = []
        self._decide(lambda t: suspects.append(self.reconciler.observed.on_alerts(t, [alert], self.now)))
        if suspects[0]:
            self._later(0.2, self._poll)

    def _reported(self, nic: Nic) -> None:
        episode = self.state.episodes.get(nic.key)
        if episode is None or episode.status != "firing":
            nic.reported_at = self.at
        nic.seen_s = nic.without_gap_s = 0.0
        nic.seen_at = -1e9

    def _stale_copy(self) -> None:
        """Of one that has ended: with two Alertmanagers it waits for both of them."""
        known = [e for e in self.state.episodes.values() if e.status != "firing"]
        if known:
            old = self.chance.choice(known)
            labels = self.nics[old.target.key].alert().labels
            self._take(Alert(True, old.fingerprint, old.starts_at, labels))

    def _false_resolve(self) -> None:
        """Prometheus was away for minutes, and says the same again afterwards."""
        firing = [nic for nic in self.nics.values() if nic.fires_since]
        if firing:
            nic = self.chance.choice(firing)
            self._deliver(nic, nic.alert(firing=False))

    def _prometheus_dies(self) -> None:
        """Its alerts end without a reason, the watchdog among them."""
        self.prometheus_back = self.at + self.chance.choice([30.0, 400.0])

        def end() -> None:
            for nic in self.nics.values():
                if nic.fires_since and self.at < self.prometheus_back:
                    self._deliver(nic, nic.alert(firing=False))

        self._later(20.0, end)

    def _alertmanager_dies(self) -> None:
        self.alertmanager_back = self.at + self.chance.choice([15.0, 200.0])

    def _mesh_dies(self) -> None:
        self.mesh_back = self.at + self.chance.choice([5.0, 40.0, 300.0])

    def _agents_leave(self) -> None:
        count = self.chance.choice([1, 1, 2, 8])
        for host in self.chance.sample(sorted(self.by_host), count):
            self.away[host] = self.at + self.chance.choice([10.0, 30.0, 200.0, 2000.0])

    def _restart(self) -> None:
        """With a clock that was set meanwhile, now and then by far."""
        steps = [0.0, 0.0, 0.0, 30.0, -600.0, 1800.0, 34_560_000.0]
        self.wall_ahead_s = self.chance.choice([0.0, self.wall_ahead_s, self.chance.choice(steps)])
        self.at += 1.0
        self._start_clock(self.now)
        self.promises.clock_was_set(self.now)
        self._change(lambda t: self.reconciler.observed.on_start(t, self.now))

    def _pause(self) -> None:
        duration = self.chance.choice([0.0, 60.0])
        self._change(lambda t: self.reconciler.operator.pause(t, "upgrade", "ada", self.now, duration))

    def _resume(self) -> None:
        self._decide(lambda t: self.reconciler.operator.resume(t, "ada", self.now))

    def _release(self) -> None:
        key = self.chance.choice(list(self.nics))
        host, _, device = key.partition("/")
        self._decide(lambda t: self.reconciler.operator.release(t, Target(host, device), "ada", self.now))

    def _claim(self) -> None:
        """An agent says of another host's operation what it likes."""
        for op_id in list(self.state.actions)[-3:]:
            host = op_id.partition("/")[0]
            other = self.chance.choice([name for name in self.by_host if name != host])
            word = Result(op_id, self.chance.choice(["applied", "refused", "failed"]), 1, traffic="stalled")
            self._result(other, word)

    def _report_late(self) -> None:
        if self.late:
            host, word = self.late.pop(self.chance.randrange(len(self.late)))
            self._result(host, word)

    # --- agents ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.at += TICK_S
        present = [host for host in self.by_host if self.away.get(host, 0.0) <= self.at]

        def report(transaction: Transaction) -> None:
            for host in present:
                self.reconciler.observed.on_agent(transaction, self._report_of(host), self.now)

        self._change(report)
        if self.at - self.polled_at >= 10.0:
            self.polled_at = self.at
            self._poll()
        # All that is desired and not known to the agent yet, as AgentApi hands it out.
        for key, target in list(self.state.targets.items()):
            nic, action = self.nics[key], self.state.actions.get(target.op_id)
            known = action is None or action.generation <= nic.generation or nic.host not in present
            if action is None or known or withheld(self.reconciler.config, self.state, action, self.now):
                continue
            if not self.healing and self.chance.random() < 0.02:
                self._lose(action.op_id)
            elif self.healing or self.chance.random() < 0.8:
                self._carry_out(action.op_id, nic, action.desired, action.generation)
        for host in present:
            for nic in self.by_host[host]:
                behind = nic.failed or nic.avoided != nic.wanted_out
                if behind and (self.healing or self.chance.random() < 0.1):
                    self._correct(nic)
        if self.healing:
            self._report_late()
        self._decide(lambda _: None)

    def _report_of(self, host: str) -> AgentState:
        health: dict[str, Health] = {}
        held: dict[str, Held] = {}
        for nic in self.by_host[host]:
            if nic.generation:
                held[nic.device] = Held("avoid" if nic.wanted_out else "in_service", nic.generation)
            if self.at < self.mesh_back:
                nic.without_gap_s, nic.seen_at = 0.0, -1e9
                continue
            well = nic.bad_until <= self.at
            health[nic.device] = "healthy" if well else "unhealthy"
            gap = self.at - nic.seen_at
            if not well:
                nic.seen_s = nic.without_gap_s = 0.0
                nic.seen_at = -1e9
                continue
            if gap > AGENT_TIMEOUT_S:
                nic.without_gap_s = 0.0
            else:
                nic.seen_s += gap
                nic.without_gap_s += gap
            nic.seen_at = self.at
        return AgentState(
            host=host,
            seen_at=self.now,
            devices={n.device: n.bad_until <= self.at and not n.avoided for n in self.by_host[host]},
            health=health,
            held=held,
            connected={device: state == "healthy" for device, state in health.items()},
            processes=1,
            workloads=(job_of(host),),
        )

    def _poll(self) -> None:
        if self.at < self.alertmanager_back:
            answers: list[list[Alert] | None] = [None, None]
        elif self.at < self.prometheus_back - 10.0:
            answers = [[], []]
        else:
            firing = [nic for nic in self.nics.values() if nic.fires_since]
            for nic in firing:
                self._reported_by_poll(nic)
            active = [WATCHDOG, *(nic.alert() for nic in firing)]
            answers = [active, None if self.chance.random() < 0.1 else active]
        self._decide(lambda t: self.reconciler.observed.on_poll(t, answers, self.now))

    def _reported_by_poll(self, nic: Nic) -> None:
        episode = self.state.episodes.get(nic.key)
        if episode is None or episode.status != "firing":
            self._reported(nic)

    def _carry_out(self, op_id: str, nic: Nic, desired: Desired, generation: int) -> None:
        """The newest decision counts. No process refuses to have its NIC back."""
        chance = self.chance
        self._change(lambda t: self.reconciler.results.on_sent(t, [op_id], self.now))
        nic.wanted_out, nic.generation, nic.op_id = desired == "avoid", generation, op_id
        weights = (1, 0, 0) if self.healing else (90, 5 * (desired == "avoid"), 5)
        outcome: Outcome = chance.choices(OUTCOMES, weights)[0]
        if outcome == "applied":
            nic.avoided = nic.wanted_out
        nic.failed = outcome == "failed"
        traffic: Traffic = chance.choices(("moved", "idle", "stalled"), (80, 10, 10))[0]
        self._tell(nic, Result(op_id, outcome, 1, traffic=traffic if outcome == "applied" else ""))

    def _lose(self, op_id: str) -> None:
        """The answer that hands it out is lost on the wire."""
        self._change(lambda t: self.reconciler.results.on_sent(t, [op_id], self.now))

    def _correct(self, nic: Nic) -> None:
        """A process that did not follow does so in the end."""
        nic.avoided, nic.failed = nic.wanted_out, False
        self._tell(nic, Result(nic.op_id, "applied", 1))

    def _tell(self, nic: Nic, word: Result) -> None:
        if self.chance.random() < 0.1 and not self.healing:
            self.late.append((nic.host, word))
            return
        self._result(nic.host, word)

    def _result(self, host: str, word: Result) -> None:
        self._decide(lambda t: self.reconciler.results.on_result(t, host, word, self.now))

    # --- the receiver, and what must hold ----------------------------------------------------------------------------

    def _change(self, change: Callable[[Transaction], Any]) -> None:
        """An event in a transaction of its own."""
        transaction = Transaction(self.state)
        change(transaction)
        self._commit(transaction)

    def _decide(self, change: Callable[[Transaction], Any]) -> None:
        """An event and the decisions after it, as the commit loop makes them."""
        transaction = Transaction(self.state)
        change(transaction)
        pause, breakers = transaction.pause, dict(transaction.breakers)
        begun = len(transaction.transitions)
        self.reconciler.decisions.reconcile(transaction, self.now)
        decided = transaction.transitions[begun:]
        self.promises.check_people(decided, pause, breakers, self.now)
        leaves_down = {leaf for leaf, until in self.leaf_down.items() if until > self.at}
        for line in decided:
            self.promises.check_line(line, self.state, self.now, transaction.resumed_at, leaves_down)
        self._commit(transaction)
        self.promises.check_state(self.state)

    def _commit(self, transaction: Transaction) -> None:
        self.lines.update(line.event for line in transaction.transitions)
        self.state = transaction.apply()


def simulate(seed: int, steps: int) -> FleetSimulation:
    """One fleet for so many steps, healed at the end; raises ViolationError, which names the seed."""
    logging.getLogger("fabricpulse.remediation.receiver.wall_clock").setLevel(logging.CRITICAL)
    fleet = FleetSimulation(seed)
    try:
        fleet.steps(steps)
        fleet.heal()
    except ViolationError as violation:
        violation.add_note(f"seed {seed}, step {fleet.steps_done}")
        raise
    return fleet
