"""`fabricpulse why --trace` of hosts whose clocks are seconds apart and drift: events in order on fleet time."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.waiting import wait_for
from tests.fixtures.why_fleet import LATE_MS, Stand, fleet
from tests.fixtures.why_trace import order_of

# A whole fleet with clocks in step and Prometheus: nothing smaller has several hosts with fleet time and a job.
pytestmark = pytest.mark.slow


def trace_of(stand: Stand) -> dict[str, Any]:
    """As a person has it written, from where the hosts have names."""
    file = stand.lab.mgmt.directory / "trace.json"
    stand.lab.mgmt.run(
        [
            *("fabricpulse", "why", stand.jobs[0].name, "--prometheus", "http://127.0.0.1:9090"),
            *("--trace", str(file)),
        ]
    )
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_collectives_of_all_hosts_are_in_order_on_fleet_time(tmp_path: Path) -> None:
    with fleet(1, 1.0, hosts=4) as stand:
        job = stand.jobs[0]
        order = order_of(trace_of(stand), len(job.hosts))
        assert order.collectives > 50, order
        assert (order.wrong, order.alone) == (0, 0), order
        assert order.largest_bound_us < 1000, order  # the clocks themselves are seconds apart

        # A rank that is late is late in the picture, by as much, on another host's stamps.
        job.ring.ranks[2].process.send_signal(signal.SIGUSR1)
        begun = job.rounds()[0]
        wait_for(lambda: job.rounds()[0] > begun + 40, 60, "40 rounds with a late rank")
        late = sorted(
            e["args"]["late_us"]
            for e in trace_of(stand)["traceEvents"]
            if e["ph"] == "X" and e["args"].get("rank") == 2 and e["args"]["number"] > begun + 20
        )
        assert late[len(late) // 2] == pytest.approx(LATE_MS * 1e3, rel=0.5), late
