"""One probe engine without the exporter around it, for bench_mesh: `python -m tests.bench.mesh_engine FILE`.

FILE is JSON: host, nics, edges, seconds, settings. After a warm-up it measures for `seconds`, prints one JSON object on
standard output and ends.
"""

import json
import sys
import time
from pathlib import Path

from fabricpulse.exporters import _probe_engine as native
from fabricpulse.exporters.mesh.snapshot import parse_snapshot


def main() -> None:
    """Runs the engine that the file describes."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    settings = native.Settings()
    settings.host = plan["host"]
    for name, value in plan.get("settings", {}).items():
        setattr(settings, name, value)
    engine = native.Engine(settings)
    engine.set_keys([bytes(16)])
    engine.configure([tuple(nic) for nic in plan["nics"]], [tuple(edge) for edge in plan["edges"]])
    engine.start()
    time.sleep(plan.get("warmup", 2))
    first, start = parse_snapshot(engine.snapshot()), time.monotonic()
    time.sleep(plan["seconds"])
    last, end = parse_snapshot(engine.snapshot()), time.monotonic()
    engine.stop()
    elapsed = end - start
    sent = sum(e.sent for e in last.edges) - sum(e.sent for e in first.edges)
    received = sum(e.received for e in last.edges) - sum(e.received for e in first.edges)
    print(
        json.dumps(
            {
                "cpu_percent": 100 * (last.cpu_ns - first.cpu_ns) / 1e9 / elapsed,
                "sent_per_s": sent / elapsed,
                "received_per_s": received / elapsed,
                "stamps_lost": sum(n.stamps_lost for n in last.nics),
                "overflows": sum(n.overflows for n in last.nics),
                "lateness": [b - a for a, b in zip(first.lateness.counts, last.lateness.counts, strict=True)],
                "up": sum(e.state == 1 for e in last.edges),
                "ticks_per_s": (last.ticks - first.ticks) / elapsed,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
