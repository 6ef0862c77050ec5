"""Probe engines without the exporter around them, for `make bench NAME=mesh`: `python -m tests.bench.mesh.engine FILE`.

FILE is JSON: a list of plans (host, nics, edges, settings), one engine each, and how long they run. Prints one JSON
object a plan at the end. Without `seconds`, each line on standard input (a number of seconds) is one measurement.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fabricpulse.mesh import _probe_engine as native
from fabricpulse.mesh.snapshot import Snapshot, parse_snapshot


def start(plan: dict[str, Any]) -> native.ProbeEngine:
    """One engine as the plan says."""
    settings = native.Settings()
    settings.host = plan["host"]
    for name, value in plan["settings"].items():
        setattr(settings, name, value)
    engine = native.ProbeEngine(settings)
    engine.set_keys([bytes(16)])
    engine.configure([tuple(nic) for nic in plan["nics"]], [tuple(edge) for edge in plan["edges"]])
    engine.start()
    return engine


def result(first: Snapshot, last: Snapshot, elapsed: float) -> dict[str, Any]:
    """What happened between two snapshots."""
    sent = sum(e.sent for e in last.edges) - sum(e.sent for e in first.edges)
    received = sum(e.received for e in last.edges) - sum(e.received for e in first.edges)
    return {
        "cpu_percent": 100 * (last.cpu_ns - first.cpu_ns) / 1e9 / elapsed,
        "sent_per_s": sent / elapsed,
        "received_per_s": received / elapsed,
        "stamps_lost": sum(n.stamps_lost for n in last.nics),
        "overflows": sum(n.overflows for n in last.nics),
        "up": sum(e.state == 1 for e in last.edges),
    }


def measurements(document: dict[str, Any]) -> Iterator[float]:
    """How long each measurement takes: the file's one, or what standard input asks for."""
    if "seconds" in document:
        yield document["seconds"]
    else:
        print("ready", flush=True)
        yield from map(float, sys.stdin)


def main() -> None:
    """Runs the engines that the file describes."""
    document = json.loads(Path(sys.argv[1]).read_text())
    engines = [start(plan) for plan in document["plans"]]
    time.sleep(document["warmup"])  # until both ends have found each other, as the plan knows
    for seconds in measurements(document):
        before, began = [parse_snapshot(engine.snapshot()) for engine in engines], time.monotonic()
        time.sleep(seconds)  # the measurement
        after, ended = [parse_snapshot(engine.snapshot()) for engine in engines], time.monotonic()
        for first, last in zip(before, after, strict=True):
            print(json.dumps(result(first, last, ended - began)), flush=True)
    for engine in engines:
        engine.stop()


if __name__ == "__main__":
    main()
