"""Who is named when a host dies amid an audit: real agents in a lab, one loses its power, its process or its cables.

What is known of the others stays true: only the host that died, its NICs and its own tests may be findings.
"""

import json
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench.audit.duration import agents, start_agent, timed_run

from fabricpulse.audit.model import Finding, Run
from fabricpulse.lab import Lab
from fabricpulse.lab.node import Host

SHORT = ("--transfers", "--rate", "100", "--seconds", "0.2", "--datagrams", "200", "--loss-seconds", "0.2")
KINDS = ("power", "process", "cables", "frozen")


@dataclass(frozen=True)
class Dying:
    """Of some audits. unnamed : in which the dead host is no finding. accused : findings against others. by_check : of
    these. seconds : of each; well_s : of one without a fault."""

    runs: int
    unnamed: int
    accused: int
    by_check: Counter[str]
    seconds: list[float]
    well_s: float


def measure(times: int, seed: int, hosts: int = 6) -> Dying:
    """Each kind of death so many times, at random moments of the run."""
    rng = random.Random(seed)
    unnamed = 0
    wrong: Counter[str] = Counter()
    walls: list[float] = []
    with Lab(hosts=hosts, rails=2) as lab, tempfile.TemporaryDirectory() as name, agents(lab, Path(name)):
        folder = Path(name)
        well, well_s = timed_run(lab, folder, *SHORT)
        if found := _paths(well):
            raise RuntimeError(f"findings without a fault: {[f.summary for f in found]}")
        for number in range(times * len(KINDS)):
            kind, host = KINDS[number % len(KINDS)], rng.choice(lab.hosts)
            moment_s = rng.uniform(0.05, 0.95) * well_s
            with ExitStack() as stack:
                kill = partial(_kill, stack, host, kind, moment_s, folder)
                run, seconds = timed_run(lab, folder, *SHORT, amid=kill)
            walls.append(round(seconds, 1))
            others = [f for f in _paths(run) if not _is_of(f, host.name)]
            named = any(_is_of(f, host.name) for f in run.findings)
            # At the end of a run nothing is left to be seen of it.
            unnamed += not named
            wrong.update(f"{kind}: {f.check} {f.evidence.get('blame', '')}".strip() for f in others)
            if others or not named:
                shown = [f"{f.check} {f.host} {f.subject}: {f.summary}" for f in run.findings]
                more = {"kind": kind, "host": host.name, "at_s": round(moment_s, 1), "found": shown[:20]}
                print(json.dumps(more), file=sys.stderr)
    return Dying(len(walls), unnamed, wrong.total(), wrong, walls, round(well_s, 1))


def freeze(lab: Lab, rng: random.Random, stack: ExitStack, most_s: float) -> None:
    """One host of a lab, at a random moment before so many seconds of a run are over, until the stack is left."""
    host = rng.choice(lab.hosts)
    time.sleep(rng.uniform(0.05, 1) * most_s)  # the moment is what is measured
    stack.enter_context(host.freeze())


def _paths(run: Run) -> list[Finding]:
    # That busy processors have spoilt all tests of a NIC accuses nobody.
    return [f for f in run.findings if f.check.startswith("path-") and f.check != "path-untested"]


def _is_of(finding: Finding, host: str) -> bool:
    """Whether it names this host, or a way to or from it."""
    named = finding.host == host
    return named or (
        not finding.host and host in f"{finding.subject} {finding.summary}".replace(":", " ").split()
    )


def _kill(stack: ExitStack, host: Host, kind: str, moment_s: float, folder: Path) -> None:
    """At this moment of the run; what was done is undone as the stack is left."""
    time.sleep(moment_s)  # the moment is what is measured

    def again() -> None:
        start_agent(host, folder).wait_for_output("listening", 120)

    if kind == "frozen":
        stack.enter_context(host.freeze())
    elif kind == "cables":
        for nic in (*host.nics, host.front_end_nic):
            stack.enter_context(nic.down())
    else:
        stack.callback(again)
        if kind == "power":
            stack.enter_context(host.power_off())
        else:
            host.crash()
