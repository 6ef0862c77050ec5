"""Building blocks of the remediation tests: alerts, configurations, and a reconciler that is driven by hand."""

from collections.abc import Iterable
from typing import Any

from fabricpulse.core.config import parse_config
from fabricpulse.remediation.protocol import Result
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.model import Action, AgentState, State
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.step import Step, Transition

START = 1_700_000_000.0


def config(text: str = "", **fields: Any) -> ReceiverConfig:
    """A configuration that acts, with a hold of 10 s and no jitter, and what `text` (YAML) adds."""
    base = "rules: [{alert: FabricNicFlapping, mode: auto}]\nhold: {initial_s: 10, jitter: 0}\n"
    return parse_config(text or base, ReceiverConfig, "test")


def alert(
    host: str = "h0",
    device: str = "rail0",
    *,
    firing: bool = True,
    starts_at: float = START,
    name: str = "FabricNicFlapping",
    suppressed: bool = False,
) -> Alert:
    """An alert about a NIC; its fingerprint depends on the NIC and the name."""
    labels = {"alertname": name, "instance": f"{host}:9610", "device": device, "network": device}
    return Alert(firing, f"{name}/{host}/{device}", starts_at, labels, suppressed)


class World:
    """One receiver's mind and its clock; agents answer as told."""

    def __init__(self, configuration: ReceiverConfig | None = None, hosts: int = 2, nics: int = 2) -> None:
        self.config = configuration or config()
        self.mind = Reconciler(self.config)
        self.now = START
        self.state = State()
        self.lines: list[Transition] = []
        self.devices = [f"rail{i}" for i in range(nics)]
        self.hosts = [f"h{i}" for i in range(hosts)]
        self.apply(self.mind.on_start(self.state, self.now))
        self.report()

    def apply(self, step: Step) -> None:
        """Takes a step over."""
        self.state = step.state
        self.lines += step.transitions

    def tick(self, seconds: float = 0.0) -> None:
        """Lets time pass, with all agents alive, and decides."""
        self.now += seconds
        self.report()
        self.apply(self.mind.on_tick(self.state, self.now))

    def report(self, hosts: Iterable[str] | None = None, **fields: Any) -> None:
        """A report of agents."""
        for host in self.hosts if hosts is None else hosts:
            out = {
                t.target.device
                for t in self.state.targets.values()
                if t.target.host == host and t.phase in ("avoided", "manual")
            }
            told: dict[str, Any] = {"devices": {d: d not in out for d in self.devices}, "processes": 1}
            agent = AgentState(host=host, seen_at=self.now, **(told | fields))
            self.apply(self.mind.on_agent(self.state, agent, self.now))

    def deliver(self, *alerts: Alert) -> bool:
        """A webhook notification; then decides. True when it holds a suspect alert."""
        step, suspect = self.mind.on_alerts(self.state, alerts, self.now)
        self.apply(step)
        self.apply(self.mind.on_tick(self.state, self.now))
        return suspect

    def truth(self, *answers: Iterable[Alert] | None) -> None:
        """What the Alertmanagers say; then decides."""
        given = [None if answer is None else tuple(answer) for answer in answers]
        self.apply(self.mind.on_truth(self.state, given, self.now))
        self.apply(self.mind.on_tick(self.state, self.now))

    def pending(self) -> list[Action]:
        """Actions under way."""
        return [a for a in self.state.actions.values() if a.outcome == "pending"]

    def settle(self, outcome: Any = "applied", message: str = "") -> list[Action]:
        """The agents carry out what is under way."""
        done = self.pending()
        for action in done:
            self.apply(self.mind.on_sent(self.state, [action.op_id], self.now))
            result = Result(action.op_id, outcome, processes=1, message=message)
            self.apply(self.mind.on_result(self.state, action.target.host, result, self.now))
        self.apply(self.mind.on_tick(self.state, self.now))
        return done

    def result(self, action: Action, outcome: Any = "applied", **fields: Any) -> None:
        """An agent's word on one action."""
        result = Result(action.op_id, outcome, **fields)
        self.apply(self.mind.on_result(self.state, action.target.host, result, self.now))
        self.apply(self.mind.on_tick(self.state, self.now))

    def phase(self, key: str = "h0/rail0") -> str:
        """Where a target stands."""
        target = self.state.targets.get(key)
        return target.phase if target is not None else "unknown"

    def blocked(self, key: str = "h0/rail0") -> str:
        """What a target is blocked by."""
        target = self.state.targets.get(key)
        return target.blocked if target is not None else ""

    def events(self) -> list[str]:
        """Events of the journal so far."""
        return [line.event for line in self.lines]
