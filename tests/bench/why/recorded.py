"""Runs that were recorded live (tests/bench/why/live.jsonl.xz), played again with the cause perturbed by a seed.

A record is what the command knew (facts) and what was really broken. Perturbed is what another run of the same fault
would have shown otherwise: rates and delays, each by its own few per cent; how fast the job is; which host has which
name; which host's exporters did not answer. What is broken, and how much of it each number shows, stays.
"""

import json
import lzma
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from tests.fixtures.why.truth import Truth

from fabricpulse.why.facts import Facts, Flow, Host, Nic, NicId

FILE = Path(__file__).parent / "live.jsonl.xz"
# Of a number that is measured, between two runs of the same fault: standard deviation of its logarithm.
_SPREAD = 0.05
# Of ranks that end each collective together: live ones of one run differ by a third of a per cent.
_TOGETHER, _ALIKE = {"duration_s", "duration_before_s", "rate", "rate_before"}, 0.005
# Counts and states: what they are they are.
_EXACT = {
    *("disconnects", "link_downs", "failovers", "edges", "lossy_edges", "rank", "ranks", "operations", "peer_rank"),
    *("in_progress", "disruptions", "avoided", "speed", "speed_before", "processes", "processes_before", "at_s"),
    *("window_s", "size", "size_before", "started_s", "pcie_share"),
}  # fmt: skip

# What each exporter says of a NIC.
_OF_NICS = {
    "mesh": ("connected", "disconnects", "loss_in", "loss_out", "lossy_edges", "edges"),
    "nic": (
        *(
            "speed",
            "speed_before",
            "transmitted",
            "transmitted_before",
            "drops",
            "pause_sent",
            "pause_received",
        ),
        *("pcie_stalled", "pcie_share", "link_downs", "slowed", "marked", "resent"),
    ),
    "qp": ("failovers", "avoided"),
}


@dataclass(frozen=True)
class Record:
    """One live run."""

    play: str
    truth: list[Truth]
    facts: Facts


def read(file: Path = FILE) -> list[Record]:
    """All records of a file."""
    with lzma.open(file) as lines:
        return [decode(line) for line in lines]


def decode(line: bytes) -> Record:
    """One line."""
    entry = json.loads(line)
    truth = [Truth(tuple((cause, place) for cause, place in t["any_of"])) for t in entry["truth"]]
    return Record(entry["play"], truth, msgspec.convert(entry["facts"], Facts))


def perturbed(record: Record, seed: int) -> Record:
    """The same fault on another day."""
    rng = random.Random(f"{record.play} {seed}")
    hosts = sorted({h.name for h in record.facts.hosts})
    names = dict(zip(hosts, rng.sample([f"node{n:02d}" for n in range(40)], len(hosts)), strict=True))
    facts = _change(record.facts, names, rng)
    truth = [Truth(tuple((cause, _renamed(place, names)) for cause, place in t.any_of)) for t in record.truth]
    return Record(record.play, truth, facts)


def _renamed(text: str, names: dict[str, str]) -> str:
    return " ".join(names.get(word, word) for word in text.split(" "))


def _change(value: Any, names: dict[str, str], rng: random.Random, field: str = "") -> Any:
    if isinstance(value, NicId):
        return NicId(names.get(value.host, value.host), value.device)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _change(getattr(value, f.name), names, rng, f.name) for f in fields(value)}
        return replace(value, **changed)
    if isinstance(value, dict):
        return {key: _change(item, names, rng, field) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_change(item, names, rng, field) for item in value)
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, float) and field not in _EXACT:
        return value * rng.lognormvariate(0, _ALIKE if field in _TOGETHER else _SPREAD)
    return value


def without(facts: Facts, component: str, hosts: frozenset[str]) -> Facts:
    """What is known where an exporter of these hosts does not answer: mesh, nic, qp or clocksync. One-way delays of
    flows are known to the host that receives."""

    def on(host: Host) -> Host:
        if host.name not in hosts:
            return host
        processes: dict[str, Any] = {"processes": None, "dead": None} if component == "qp" else {}
        return replace(host, exporters=host.exporters - {component}, **processes)

    def nic(one: Nic) -> Nic:
        unknown: dict[str, Any] = dict.fromkeys(_OF_NICS.get(component, ()))
        return replace(one, **unknown) if one.id.host in hosts else one

    def flow(one: Flow) -> Flow:
        if component == "qp" and one.target.host in hosts:
            return replace(one, delay_s=None, delay_before_s=None, floor_s=None, floor_before_s=None)
        if component == "mesh" and hosts & {one.source.host, one.target.host}:
            return replace(one, probe_s=None)
        return one

    qp, clocks = component == "qp", component == "clocksync"
    return replace(
        facts,
        hosts=tuple(map(on, facts.hosts)),
        nics=tuple(map(nic, facts.nics)),
        flows=tuple(flow(f) for f in facts.flows if not (qp and f.source.host in hosts)),
        ranks=tuple(r for r in facts.ranks if not (qp and r.host in hosts)),
        waits=tuple(w for w in facts.waits if not (qp and w.host in hosts)),
        processes=tuple(p for p in facts.processes if not (qp and p.host in hosts)),
        clocks=tuple(c for c in facts.clocks if not (clocks and c.host in hosts)),
    )


def runs(seeds: int, file: Path = FILE) -> Iterator[tuple[Record, Record]]:
    """Each record with each of its perturbations."""
    for record in read(file):
        for seed in range(seeds):
            yield record, perturbed(record, seed)
