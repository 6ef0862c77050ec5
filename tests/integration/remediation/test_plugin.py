"""The loop against the plugin itself, in a ring job that carries data."""

import time
from collections.abc import Iterator

import pytest
from tests.fixtures.remediation.kills import kill_again_and_again
from tests.fixtures.remediation.stack import Stack, alert, webhook
from tests.fixtures.waiting import wait_for
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab

pytestmark = pytest.mark.root


@pytest.fixture
def ring() -> Iterator[Ring]:
    # A rate that a busy machine carries, too: what the job moves is then what its NICs allow.
    with Lab(hosts=2, rails=2, nic_mbit=100) as lab:
        started = Ring(lab, 2, ["--bytes", "1M"])
        started.wait_running()
        yield started
        started.stop()


def blocked(stack: Stack, device: str) -> list[str]:
    return [t["blocked"] for t in stack.get("/api/v1/targets") if t["target"]["device"] == device]


def test_a_running_job_leaves_a_nic_and_comes_back(ring, stack: Stack):
    """Out at once, data still moving over the other rail, back after the hold; nothing is asked twice. What the job
    carries then is what one NIC of two allows, which is reported."""
    guards = {"settle_s": 0, "cooldown_s": 0, "recovery_window_s": 5}
    stack.start_receiver({"guards": guards, "hold": {"initial_s": 1, "jitter": 0}})
    stack.start_agent(run_dir=ring.lab.host("h0").run_dir)
    stack.wait_receiver()
    stack.wait_agent()
    time.sleep(12)  # what the job carries is known then: three reports, some 3 s apart
    (agent,) = stack.get("/api/v1/status")["agents"]
    assert agent["devices"] == {"rail0": True, "rail1": True}
    stack.post(webhook(alert()))
    stack.wait_phase("avoided")
    (action,) = stack.actions()
    assert (action["outcome"], action["processes"]) == ("succeeded", 1)
    assert action["verified_at"] - action["received_at"] < 3.0
    ring.until(lambda: ring.states("h0", "rail0") == {"disabled"}, 3.0)
    wait_for(lambda: stack.actions()[0]["traffic"] == "moved", 10, "the job moves data over the other rail")
    since = time.time()
    time.sleep(0.3)  # the ring prints what it moved in this time
    assert ring.bandwidth(since, time.time()) > 0
    wait_for(lambda: stack.actions()[0]["recovery"], 30, "what the failover has come to")
    (action,) = stack.actions()
    assert (action["recovery"], action["predicted"] > 0, action["measured"] > 0) == ("recovered", True, True)
    # The other rail is the last one now: the guard says no before anybody is asked.
    stack.post(webhook(alert(device="rail1")))
    wait_for(lambda: blocked(stack, "rail1") == ["last_nic"], 5, "the last NIC stays")
    stack.post(webhook(alert(device="rail1", status="resolved")))
    stack.post(webhook(alert(status="resolved")))
    stack.wait_phase("in_service")
    ring.until(lambda: ring.states("h0", "rail0") <= {"up", "slow_start"}, 5.0)
    assert len(stack.actions()) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_beside_the_plugin(ring, stack: Stack):
    """Receiver and agent are killed while the job runs: nothing accepted is lost, the plugin does nothing twice, and
    has done what the receiver says it has. `make bench NAME=remediation ARGS="--cases kills"` does it 200 times.
    """
    outcome = kill_again_and_again(stack, ring, kills=10, seed=7)
    assert (outcome.lost, outcome.doubled, outcome.missing, outcome.intact) == ([], 0, [], True)
    assert outcome.accepted
    assert outcome.effects


def test_the_short_status_has_no_connections(ring):
    """What the agent asks for stays small: sums by device, and how many connections wait for our lanes."""
    short = ring.control("h0", op="status", connections=False)
    assert "connections" not in short
    assert isinstance(short["waiting"], int)
    ring.until(
        lambda: all(
            d["sent_bytes"] > 0 for d in ring.control("h0", op="status", connections=False)["devices"]
        ),
        5.0,
    )
    full = ring.control("h0", op="status")
    for device in short["devices"]:
        lanes = [
            lane["sent_bytes"]
            for connection in full["connections"]
            for lane in connection["lanes"]
            if lane["device"] == device["device"]
        ]
        assert 0 <= device["sent_bytes"] <= sum(lanes)
