"""Who is named where hosts get no processor: audits of a lab with a slow NIC, beside busy loops that leave little."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.bench.audit.duration import agents, timed_run

from fabricpulse.lab import Lab

# Busy for a third of a second, idle for a tenth, by chance: hosts are late now and then, not all alike.
BUSY = """
import os, random, time
try:
    os.nice(-5)
except PermissionError:
    pass
while True:
    end = time.time() + random.expovariate(3)
    while time.time() < end: pass
    time.sleep(random.expovariate(10))
"""
SHORT = ("--transfers", "--all-pairs", "--rate", "100", "--seconds", "0.2", "--datagrams", "200")


@dataclass(frozen=True)
class Late:
    """Of some audits. right : that named the slow NIC and accused nobody else. accused : findings against others.
    undecided : findings that accuse nobody. spoilt : ways of the slow NIC that were not judged, of all `ways` of it.
    mbit_s : what these ways were said to carry, least and most. seconds : of each run. load : after each."""

    right: int
    accused: int
    undecided: int
    spoilt: int
    ways: int
    mbit_s: tuple[float, float]
    seconds: list[float]
    load: list[float]


def measure(runs: int, loops: int) -> Late:
    """4 hosts with two NICs; the switch sends h2 rail0 40 Mb/s, tests ask for 100."""
    right = accused = undecided = spoilt = 0
    rates: list[float] = []
    walls: list[float] = []
    load: list[float] = []
    with Lab(hosts=4, rails=2) as lab, tempfile.TemporaryDirectory() as folder:
        busy = [subprocess.Popen([sys.executable, "-Ic", BUSY]) for _ in range(loops)]
        try:
            with agents(lab, Path(folder)), lab.host("h2").nic("rail0").limit(40):
                for number in range(runs):
                    run, seconds = timed_run(lab, Path(folder), *SHORT)
                    reported = [f for f in run.findings if f.check.startswith("path-")]
                    # That a busy host has spoilt all tests of a NIC accuses nobody.
                    reported = [f for f in reported if f.check != "path-untested"]
                    others = [f for f in reported if f.host and (f.host, f.subject) != ("h2", "rail0")]
                    named = any(f.evidence.get("blame") == "nic" and f.host == "h2" for f in reported)
                    right += named and not others
                    if not named or others:
                        found = [f"{f.check} {f.host} {f.subject}: {f.summary}" for f in run.findings]
                        more = {"run": number, "found": found, "notes": run.notes}
                        print(json.dumps(more), file=sys.stderr)
                    accused += len(others)
                    undecided += sum(not f.host for f in reported)
                    own = [
                        m
                        for m in run.measurements
                        if m.kind == "bandwidth" and (m.target_host, m.target_device) == ("h2", "rail0")
                    ]
                    spoilt += sum(m.ok is None for m in own)
                    rates += [m.value / 1e6 for m in own]
                    walls.append(round(seconds, 1))
                    load.append(round(os.getloadavg()[0], 1))
        finally:
            for process in busy:
                process.kill()
                process.wait()
    return Late(right, accused, undecided, spoilt, len(rates), (min(rates), max(rates)), walls, load)
