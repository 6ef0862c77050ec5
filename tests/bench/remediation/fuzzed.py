"""Mutants of webhooks, of polled alerts, of reports and of what agents are asked, through the code that takes them, in
this process: what is raised that is no refusal, and actions on NICs of which no mutant that was taken speaks."""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from tests.bench.remediation.attacked import memory_mib
from tests.bench.rows import Rows
from tests.fixtures.remediation.fuzz import Nic, named_nics, nic_of
from tests.fixtures.remediation.stack import alert, webhook
from tests.fixtures.rules.mutants import mutant
from tests.unit.remediation.world import START, World, config

from fabricpulse.remediation.protocol import DesiredState, Envelope, Report
from fabricpulse.remediation.receiver.payload import PayloadError, parse_notification, parse_polled
from fabricpulse.remediation.receiver.state.model import AgentState, Held
from fabricpulse.remediation.receiver.web.report_decoding import decode_report

_POLICY = (
    "rules: [{alert: FabricNicFlapping, mode: auto}, {alert: FabricHostDown, mode: auto, action: host.drain}]\n"
    "drain: {command: [/bin/drain, '{host}']}\nhold: {initial_s: 1, jitter: 0}\nalertmanagers: [http://a]\n"
    "guards: {cooldown_s: 0, max_attempts: 1000, breaker_hosts: 1000, actions_per_minute: 60000, burst: 1000}\n"
)
# What the callers of each take for a refusal.
_REFUSALS: dict[str, tuple[type[Exception], ...]] = {
    "webhook": (PayloadError,),
    "polled": (PayloadError,),
    "report": (msgspec.DecodeError, RecursionError, ValueError),
    "asked": (msgspec.DecodeError, RecursionError, ValueError),
}
# Alerts, targets and hosts that mutants make up are as many as a fleet has; then another receiver begins.
_OF_ONE = 10_000
_DECIDE_EVERY = 50
_NICS = {"rail0": True, "rail1": True}
_REPORT = {
    "processes": 1,
    "devices": _NICS,
    "connected": _NICS,
    "health": {"rail0": "healthy", "rail1": "unhealthy"},
    "held": {"rail0": {"desired": "avoid", "generation": 12}},
    "results": [{"op_id": "h0/rail0#12", "outcome": "applied", "processes": 1, "traffic": "moved"}],
    "workloads": ["42"],
    "users": [0, 1001],
    "lanes": [["1", "0" * 16, 0, "job", "rail0", 40_000, 1000, 1.0, 1.0, -1.0, 0, 0, 0.0]],
}
_POLLED = [alert() | {"status": {"state": "active"}, "updatedAt": "2026-11-21T06:00:00Z"}]
_ASKED = {
    "payload": json.dumps({
        "host": "h0",
        "epoch": 7,
        "version": "7;a",
        "nics": [{"device": "rail0", "desired": "avoid", "generation": 7, "op_id": "a", "not_after": 9.0}],
        "not_after": 9.0,
    })
}  # fmt: skip


class _Receiver:
    """A receiver's decisions, agents of two hosts that report, and which NICs mutants that were taken have named."""

    def __init__(self) -> None:
        self.world = World(config(_POLICY), hosts=2)
        self.named: set[Nic] = set()
        self.checked: set[str] = set()
        self.unexplained: list[str] = []
        self.effects = 0

    def webhook(self, body: bytes) -> None:
        notification = parse_notification(body, 100_000)
        self.named |= named_nics(body)
        self.world.run(
            lambda t: self.world.reconciler.observed.on_alerts(t, notification.alerts, self.world.now)
        )

    def polled(self, body: bytes) -> None:
        alerts = parse_polled(body)
        for entry in json.loads(body.decode(errors="replace")):
            labels = entry.get("labels") if isinstance(entry, dict) else None
            if isinstance(labels, dict) and (nic := nic_of(labels)) is not None:
                self.named.add(nic)
        self.world.run(lambda t: self.world.reconciler.observed.on_poll(t, [alerts], self.world.now))

    def report(self, body: bytes) -> None:
        report = decode_report(body)
        held = {device: Held(nic.desired, nic.generation) for device, nic in report.held.items()}
        agent = AgentState(
            host="h9", seen_at=self.world.now, devices=report.devices, connected=report.connected,
            health=report.health, held=held, processes=report.processes,
            workloads=tuple(report.workloads), users=tuple(report.users),
        )  # fmt: skip
        self.world.run(partial(self.world._on_agent, agent))
        for result in report.results:
            self.world.report_result("h9", result)
        self.world.reconciler.evidence.add("h9", report.lanes, self.world.now)

    def asked(self, body: bytes) -> None:
        """As an agent decodes it."""
        msgspec.json.decode(msgspec.json.decode(body, type=Envelope).payload, type=DesiredState)

    def decide(self) -> None:
        """What follows from them; agents carry it out."""
        self.world.now += 1
        self.world.report()
        self.world.reconcile()
        self.world.settle()
        for op_id, action in self.world.state.actions.items():
            if op_id in self.checked or action.action != "nic.avoid":
                continue
            self.checked.add(op_id)
            self.effects += 1
            if (action.target.host, action.target.device) not in self.named:
                self.unexplained.append(op_id)
        # A fleet that rests: alerts of what is out end.
        if self.world.now > START + 30:
            self.world.now += 400


def in_process(rows: Rows, payloads: int, seed: int = 20261127) -> None:
    """So many mutants, of the four kinds in turn."""
    kinds: list[tuple[str, bytes]] = [
        (name, json.dumps(body).encode())
        for name, body in (
            ("webhook", webhook(alert(), alert(device="rail1"))),
            ("polled", _POLLED),
            ("report", _REPORT),
            ("asked", _ASKED),
        )
    ]
    chance, outcomes, unhandled = random.Random(seed), Counter[str](), Counter[str]()
    effects, unexplained, begun = 0, list[str](), time.process_time()
    receiver = _Receiver()
    assert decode_report(kinds[2][1]) == msgspec.json.decode(kinds[2][1], type=Report)
    for number in range(payloads):
        name, good = kinds[number % len(kinds)]
        take: Callable[[bytes], Any] = getattr(receiver, name)
        try:
            take(mutant(good, chance))
            outcomes[f"{name} taken"] += 1
        except Exception as error:  # what fuzzing is for
            if isinstance(error, _REFUSALS[name]):
                outcomes[f"{name} refused"] += 1
            else:
                unhandled[f"{name}: {error!r}"] += 1
        if number % _DECIDE_EVERY == 0:
            receiver.decide()
        if number % _OF_ONE == _OF_ONE - 1 or number == payloads - 1:
            receiver.decide()
            effects += receiver.effects
            unexplained += receiver.unexplained
            receiver = _Receiver()
    case = f"{payloads} mutants in process"
    rows.report(
        case,
        "fuzz_unhandled",
        unhandled.total(),
        "1",
        "== 0",
        of=dict(unhandled.most_common(5)),
        outcomes=dict(sorted(outcomes.items())),
        cpu_s=round(time.process_time() - begun, 1),
    )
    rows.report(case, "fuzz_effects", len(unexplained), "1", "== 0", effects=unexplained[:5])
    rows.report(case, "effects_asked_for", effects - len(unexplained), "1", ">= 1")
    rows.report(case, "peak_rss", memory_mib(os.getpid(), "VmHWM"), "MiB", "<= 256")
