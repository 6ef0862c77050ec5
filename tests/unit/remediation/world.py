"""Building blocks of the remediation tests: alerts, configurations, and a reconciler that is driven by hand."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace

from fabricpulse.core.config import parse_config
from fabricpulse.remediation.protocol import Result
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.model import Action, AgentState, Held, State, Target
from fabricpulse.remediation.receiver.state.transaction import Transaction, Transition

RULES_AUTO = "rules: [{alert: FabricNicFlapping, mode: auto}]\nhold: {initial_s: 10, jitter: 0}\n"
START = 1_700_000_000.0


def config(text: str = "") -> ReceiverConfig:
    """A configuration that acts at once, with a hold of 10 s and no jitter, or that of `text` (YAML)."""
    parsed = parse_config(text or RULES_AUTO, ReceiverConfig, "test")
    if "settle_s" in text:
        return parsed
    return replace(parsed, guards=replace(parsed.guards, settle_s=0.0))


def alert(
    host: str = "h0",
    device: str = "rail0",
    *,
    firing: bool = True,
    starts_at: float = START,
    name: str = "FabricNicFlapping",
    suppressed: bool = False,
    ends_at: float = 0.0,
) -> Alert:
    """An alert about a NIC; its fingerprint depends on the NIC and the name."""
    labels = {"alertname": name, "instance": f"{host}:9610", "device": device, "network": device}
    return Alert(firing, f"{name}/{host}/{device}", starts_at, labels, suppressed, ends_at)


class World:
    """One reconciler and its clock; agents report and answer as set."""

    def __init__(self, configuration: ReceiverConfig | None = None, hosts: int = 2, nics: int = 2) -> None:
        self.config = configuration or config()
        self.reconciler = Reconciler(self.config)
        self.now = START
        self.state = State()
        self.lines: list[Transition] = []
        self.held: dict[str, Held] = {}
        self.devices = [f"rail{i}" for i in range(nics)]
        self.hosts = [f"h{i}" for i in range(hosts)]
        self.restart()
        self.report()

    def run(self, change: Callable[[Transaction], Any]) -> Any:
        """Applies one change in a transaction of its own."""
        transaction = Transaction(self.state)
        result = change(transaction)
        self.lines += transaction.transitions
        self.state = transaction.apply()
        return result

    def restart(self) -> None:
        """The receiver starts."""
        self.run(lambda t: self.reconciler.observed.on_start(t, self.now))

    def reconcile(self) -> None:
        """Decides."""
        self.run(lambda t: self.reconciler.decisions.reconcile(t, self.now))

    def tick(self, seconds: float = 0.0) -> None:
        """Lets time pass, with all agents reporting that every NIC is healthy, and decides."""
        self.report()
        while True:
            step = min(seconds, 10.0)
            self.now += step
            self.report()
            self.reconcile()
            seconds -= step
            if seconds <= 0:
                return

    def report(self, hosts: Iterable[str] | None = None, **fields: Any) -> None:
        """A report of agents."""
        for host in self.hosts if hosts is None else hosts:
            out = {
                t.target.device
                for t in self.state.targets.values()
                if t.target.host == host and t.phase in ("avoided", "manual")
            }
            report: dict[str, Any] = {
                "devices": {d: d not in out for d in self.devices},
                "health": dict.fromkeys(self.devices, "healthy"),
                "held": {d: self.held[f"{host}/{d}"] for d in self.devices if f"{host}/{d}" in self.held},
                "processes": 1,
            }
            agent = AgentState(host=host, seen_at=self.now, **(report | fields))
            self.run(partial(self._on_agent, agent))

    def _on_agent(self, agent: AgentState, transaction: Transaction) -> None:
        self.reconciler.observed.on_agent(transaction, agent, self.now)

    def deliver(self, *alerts: Alert) -> bool:
        """A webhook notification; then decides. True when it holds a suspect alert."""
        suspect = self.run(lambda t: self.reconciler.observed.on_alerts(t, alerts, self.now))
        self.reconcile()
        return bool(suspect)

    def poll(self, *answers: Iterable[Alert] | None, took_s: float = 0.0) -> None:
        """Answers of the Alertmanagers; then decides. took_s : since they were asked."""
        given = [None if answer is None else tuple(answer) for answer in answers]
        self.run(lambda t: self.reconciler.observed.on_poll(t, given, self.now, self.now - took_s))
        self.reconcile()

    def pending(self) -> list[Action]:
        """Actions under way."""
        return [a for a in self.state.actions.values() if a.outcome == "pending"]

    def sent(self, op_ids: Iterable[str], *, lost: bool = False) -> None:
        """Operations that are handed to agents, and are in their journals then unless the answer is lost."""
        self.run(lambda t: self.reconciler.results.on_sent(t, op_ids, self.now))
        for op_id in () if lost else op_ids:
            action = self.state.actions[op_id]
            if not action.dry_run:
                self.held[action.target.key] = Held(action.desired, action.generation)

    def settle(self, outcome: Any = "applied", message: str = "") -> list[Action]:
        """The agents carry out what is under way."""
        done = self.pending()
        for action in done:
            self.sent([action.op_id])
            self.report_result(
                action.target.host, Result(action.op_id, outcome, processes=1, message=message)
            )
        self.reconcile()
        return done

    def report_result(self, host: str, result: Result) -> None:
        """A result in a report of `host`."""
        self.run(lambda t: self.reconciler.results.on_result(t, host, result, self.now))

    def result(self, action: Action, outcome: Any = "applied", **fields: Any) -> None:
        """The result of one action; then decides."""
        self.report_result(action.target.host, Result(action.op_id, outcome, **fields))
        self.reconcile()

    def pause(self, reason: str, owner: str, duration_s: float = 0.0) -> None:
        """An operator pauses."""
        self.run(lambda t: self.reconciler.operator.pause(t, reason, owner, self.now, duration_s))

    def resume(self, owner: str) -> None:
        """An operator resumes."""
        self.run(lambda t: self.reconciler.operator.resume(t, owner, self.now))

    def release(self, target: Target, owner: str) -> None:
        """An operator releases."""
        self.run(lambda t: self.reconciler.operator.release(t, target, owner, self.now))

    def phase(self, key: str = "h0/rail0") -> str:
        """The phase of a target."""
        target = self.state.targets.get(key)
        return target.phase if target is not None else "unknown"

    def blocked(self, key: str = "h0/rail0") -> str:
        """Why a target is blocked."""
        target = self.state.targets.get(key)
        return target.blocked if target is not None else ""

    def events(self) -> list[str]:
        """Events of the journal so far."""
        return [line.event for line in self.lines]


def world_with(limits: str = "", hosts: int = 2, nics: int = 2) -> World:
    """A world whose guards have these limits (YAML) beside the defaults."""
    return World(config(f"{RULES_AUTO}guards: {{{limits}}}\n"), hosts, nics)


def fleet(hosts: int, limits: str = "") -> World:
    """Hosts that have reported for longer than it takes to count in relative limits."""
    world = World(config(f"{RULES_AUTO}guards: {{settle_s: 5, {limits}}}\n"), hosts)
    world.now += 601
    world.report()
    return world
