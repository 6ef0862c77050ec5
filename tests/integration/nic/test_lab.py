"""`fabricpulse nic` on a host of the lab: what it tells of a NIC is what the lab did to the cable."""

import json
import sys
from datetime import datetime

import pytest
from tests.fixtures.waiting import wait_for

pytestmark = pytest.mark.root

PORT = 9611
DOWNS = 'fabricpulse_nic_port_down_transitions_total{device="rail0",rdma_device="",port=""} '


def test_flaps_of_a_rail_with_their_times(make_lab):
    """Three flaps: each counted once, at its time and with its length, on the rail that flapped alone."""
    lab = make_lab(hosts=2, rails=2, spines=1, pods=1)
    host = lab.host("h0")
    command = [
        sys.executable,
        "-m",
        "fabricpulse.core.cli",
        "nic",
        "--web.listen-address",
        f"127.0.0.1:{PORT}",
    ]
    daemon = host.popen(command, name="nic")
    daemon.wait_for_output("listening")

    def downs() -> tuple[int, str]:
        body = lab.http_get("h0", f"http://127.0.0.1:{PORT}/metrics")
        (line,) = [line for line in body.splitlines() if line.startswith(DOWNS)]
        return int(line.rpartition(" ")[2]), body

    before, body = downs()
    other = [line for line in body.splitlines() if line.startswith(DOWNS.replace("rail0", "rail1"))]
    flap = host.nic("rail0").flap(rate_hz=2, count=3, seed=5)
    assert flap.wait(60)
    wait_for(lambda: downs()[0] >= before + 3, 30, "the flaps are counted")
    after, body = downs()
    assert after == before + 3
    assert other and other[0] in body.splitlines()

    log = [json.loads(line) for line in (host.run_dir / "nic-events.jsonl").read_text().splitlines()]
    reported = [
        event for event in log if event["device"] == "rail0" and event["event"] in ("link_down", "link_up")
    ]
    assert [event["event"] for event in reported] == ["link_down", "link_up"] * 3
    for event, done in zip(reported, flap.events, strict=True):
        at = datetime.fromisoformat(event["time"]).timestamp()
        # Not before the kernel was asked; how long after is the machine's load, the benchmark measures it.
        assert done.before_ns / 1e9 - 0.001 <= at < done.after_ns / 1e9 + 2
    for down, up in zip(reported[::2], reported[1::2], strict=True):
        span = (
            datetime.fromisoformat(up["time"]).timestamp() - datetime.fromisoformat(down["time"]).timestamp()
        )
        assert up["down_s"] == pytest.approx(span, abs=0.01)
    daemon.stop()
