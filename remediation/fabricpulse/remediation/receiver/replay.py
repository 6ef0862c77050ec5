"""Replay: what a policy would have decided about deliveries of the past. Pure: no clock, no network.

Deliveries come at their own times. What the journal does not hold is assumed to be well: every host has an agent that
carries out every command, and a NIC is observed healthy while no alert about it fires. So a replay shows what rules,
guards, windows and holds make of the alerts, not what a host would have refused.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec.structs import replace

from fabricpulse.remediation.protocol import Result
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.payload import Alert, PayloadError, parse_notification
from fabricpulse.remediation.receiver.reconciler import Inventory, Reconciler
from fabricpulse.remediation.receiver.rule_config import keeps_out
from fabricpulse.remediation.receiver.state.model import AgentState, State
from fabricpulse.remediation.receiver.state.transaction import Transaction, Transition

# Between two deliveries time passes in steps: short ones while an alert is young or an action under way.
_SHORT_S = 1.0
_LONG_S = 10.0
_SETTLED_S = 120.0
_ALWAYS = 1e12
# Lines that are decisions, or say why there is none.
DECISIONS = (
    "nic.avoid", "nic.restore", "would_avoid", "awaiting_approval", "blocked", "breaker_tripped", "manual", "hand_off",
    "would_drain", "would_restore",
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One line of the journal that would have been. at : seconds since 1970."""

    at: float
    subject: str
    event: str
    detail: dict[str, object]


class Replay:
    """One policy against a past. `lines` : what it has decided so far."""

    def __init__(self, config: ReceiverConfig, inventory: Inventory) -> None:
        """Alertmanagers are not asked: the journal does not hold what they answered at that time."""
        self._config = replace(config, alertmanagers=())
        self._reconciler = Reconciler(self._config, inventory)
        self._inventory = inventory
        self._state = State()
        self._now = 0.0
        self._last_delivery = 0.0
        self.lines: list[Line] = []

    def deliver(self, at: float, alerts: Iterable[Alert]) -> None:
        """Alerts that came in at `at`, which never goes back."""
        known = tuple(alerts)
        if not self._now:
            self._now = at
            self._run(lambda t: self._add_agents(t, self._inventory))
        self.advance(at)
        self._last_delivery = at
        observed = self._reconciler.observed

        def change(transaction: Transaction) -> None:
            targets = [observed.target_of(alert) for alert in known]
            hosts = {
                t.host: frozenset([t.device] if t.device else [])
                for t in targets
                if t is not None and not isinstance(t, str)
            }
            self._add_agents(transaction, hosts)
            observed.on_alerts(transaction, known, at)

        self._run(change)
        self._decide()

    def advance(self, until: float) -> None:
        """Lets time pass: alerts settle, holds end."""
        while self._now < until:
            if not self._is_busy():
                self._now = until
                return
            young = self._now - self._last_delivery < _SETTLED_S
            self._now = min(until, self._now + (_SHORT_S if young else _LONG_S))
            self._decide()

    def _is_busy(self) -> bool:
        return any(
            t.desired == "avoid" or t.phase != "in_service" or t.plan is not None or t.blocked
            for t in self._state.targets.values()
        ) or any(e.status == "firing" for e in self._state.episodes.values())

    def _decide(self) -> None:
        self._run(self._report_hosts_with_targets)
        self._run(lambda t: self._reconciler.decisions.reconcile(t, self._now))
        self._run(lambda t: self._reconciler.drains.reconcile(t, self._now))
        for action in [a for a in self._state.actions.values() if a.outcome == "pending"]:
            self._run(partial(self._carry_out, action.op_id, action.target.host))

    def _carry_out(self, op_id: str, host: str, transaction: Transaction) -> None:
        self._reconciler.results.on_sent(transaction, [op_id], self._now)
        self._reconciler.results.on_result(transaction, host, Result(op_id, "applied", 1), self._now)

    def _report_hosts_with_targets(self, transaction: Transaction) -> None:
        rules = {rule.alert: rule for rule in self._config.rules}
        firing = {
            e.target
            for e in transaction.episodes.values()
            if e.status == "firing" and keeps_out(rules, e.alert)
        }
        for host in {t.target.host for t in transaction.targets.values() if t.quiet_since}:
            known = transaction.agents[host]
            devices = known.devices.keys()
            ill = {target.device for target in firing if target.host == host}
            agent = replace(known, health={d: "unhealthy" if d in ill else "healthy" for d in devices})
            self._reconciler.observed.on_agent(transaction, agent, self._now)
            transaction.put_agent(replace(transaction.agents[host], seen_at=_ALWAYS))

    @staticmethod
    def _add_agents(transaction: Transaction, hosts: Inventory) -> None:
        for host, devices in hosts.items():
            known = transaction.agents.get(host)
            names = (known.devices.keys() if known is not None else set()) | devices
            if known is not None and names == known.devices.keys():
                continue
            transaction.put_agent(
                AgentState(
                    host=host,
                    seen_at=_ALWAYS,
                    devices=dict.fromkeys(sorted(names), True),
                    health=dict.fromkeys(sorted(names), "healthy"),
                )
            )

    def _run(self, change: Callable[[Transaction], None]) -> None:
        transaction = Transaction(self._state)
        change(transaction)
        self.lines += [
            Line(self._now, entry.subject, entry.event, entry.detail)
            for entry in transaction.transitions
            if _is_decision(entry)
        ]
        self._state = transaction.apply()


def past_of(document: Iterable[str]) -> tuple[list[Line], list[tuple[float, tuple[Alert, ...]]]]:
    """Decisions and deliveries in the lines of `fabricpulse remediation export --deliveries`. Raises ValueError."""
    decided: list[Line] = []
    deliveries: list[tuple[float, tuple[Alert, ...]]] = []
    for number, text in enumerate(document, 1):
        try:
            line = msgspec.json.decode(text)
            if line["kind"] == "delivery":
                try:
                    notification = parse_notification(line["body"].encode())
                except PayloadError:
                    continue  # what the receiver refused as well
                deliveries.append((float(line["received_at"]), notification.alerts))
            elif line["event"] in DECISIONS:
                decided.append(Line(float(line["at"]), line["subject"], line["event"], line["detail"]))
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"line {number} is not one of an export: {error!r}") from error
    deliveries.sort(key=lambda delivery: delivery[0])
    # Lines are kept for ever, deliveries for some days: only what both cover can be compared.
    begin = deliveries[0][0] if deliveries else float("inf")
    return [line for line in decided if line.at >= begin], deliveries


def _is_decision(entry: Transition) -> bool:
    return entry.event in DECISIONS
