"""From the webhook to the control socket and back, with real processes."""

import json
import signal

import pytest
from tests.fixtures.remediation.stack import Stack, alert, kill, request, webhook
from tests.fixtures.waiting import wait_for


@pytest.fixture
def loop(stack: Stack) -> Stack:
    """A receiver, the agent of h0, and two jobs on h0."""
    stack.start_receiver()
    stack.start_plugin()
    stack.start_plugin()
    stack.start_agent()
    stack.wait_receiver()
    stack.wait_agent()
    return stack


def test_one_loop(loop):
    """Firing takes the NIC out of every process at once; resolved and quiet brings it back."""
    assert loop.post(webhook(alert())) == (200, "journaled\n")
    wait_for(lambda: len(loop.effects()) == 2, 3, "both processes avoid the NIC")
    loop.wait_phase("avoided")
    (action,) = loop.actions()
    assert action["outcome"] == "succeeded"
    assert action["received_at"] <= action["sent_at"] <= action["applied_at"] <= action["verified_at"]
    assert action["processes"] == 2
    wait_for(lambda: loop.actions()[0]["traffic"] == "moved", 10, "whether traffic moved")
    loop.post(webhook(alert(status="resolved")))
    loop.wait_phase("in_service")
    assert [(op, device) for _, op, device in loop.effects()] == [("nic.avoid", "rail0")] * 2 + [
        ("nic.restore", "rail0")
    ] * 2
    first, second = loop.actions()
    assert second["verified_at"] == first["restored_at"] > 0
    assert loop.metric('fabricpulse_remediation_actions_total{action="nic.avoid",outcome="succeeded"}') == 1
    assert loop.get("/api/v1/verify")["intact"] is True
    exported = [
        json.loads(line) for line in request(f"{loop.url}/api/v1/export?deliveries=1")[1].splitlines()
    ]
    assert [json.loads(e["body"])["alerts"][0]["status"] for e in exported if e["kind"] == "delivery"] == [
        "firing",
        "resolved",
    ]


def test_a_job_that_starts_later_stays_off_the_nic(loop):
    """A process that comes while the NIC is out of service gets it at once; one that comes afterwards is not."""
    loop.post(webhook(alert()))
    loop.wait_phase("avoided")
    loop.start_plugin()
    wait_for(lambda: len(loop.effects()) == 3, 5, "the new process avoids the NIC")
    assert len({op_id for op_id, _, _ in loop.effects()}) == 1


def test_a_refusal_by_one_process_brings_all_back(stack):
    """Where one job would lose its last NIC, none on the host loses it, and the journal says why."""
    stack.start_receiver({"guards": {"settle_s": 0, "cooldown_s": 300}})
    stack.start_plugin(devices="rail0,rail1")
    stack.start_plugin(devices="rail0")
    stack.start_agent()
    stack.wait_receiver()
    stack.wait_agent()
    stack.post(webhook(alert()))
    wait_for(lambda: [a["outcome"] for a in stack.actions()][1:] == ["succeeded"], 10, "rolled back")
    avoid, restore = stack.actions()
    assert (avoid["outcome"], restore["action"]) == ("refused", "nic.restore")
    assert "would have no usable NIC left" in avoid["message"]
    assert stack.effects() == []


def test_a_hung_process_does_not_hold_up_the_others_and_follows_when_it_wakes(loop):
    """SIGSTOP one job: the other leaves the NIC within the call's limit, and the first one once it runs again."""
    sockets = loop.folder / "h0" / "plugin"
    hung = next(process for process in loop.processes if (sockets / f"{process.pid}.sock").exists())
    hung.send_signal(signal.SIGSTOP)
    try:
        loop.post(webhook(alert()))
        loop.wait_phase("avoided", timeout_s=15)
        (action,) = loop.actions()
        assert action["processes"] == 1
        assert "no answer" in action["message"] or action["traffic"]
        assert len(loop.effects()) == 1
    finally:
        hung.send_signal(signal.SIGCONT)
    wait_for(lambda: len(loop.effects()) == 2, 15, "the process that woke follows")
    assert len({op_id for op_id, _, _ in loop.effects()}) == 1


def test_fail_static(loop):
    """With the receiver dead the agent keeps its desired state, also for jobs that start, and across its own death."""
    loop.post(webhook(alert()))
    loop.wait_phase("avoided")
    kill(loop.receiver)
    kill(loop.agents["h0"])
    loop.start_agent()
    loop.start_plugin()
    wait_for(lambda: len(loop.effects()) == 3, 15, "the new process avoids the NIC")
    loop.start_receiver()
    loop.wait_receiver()
    loop.wait_agent()
    assert loop.phase() == "avoided"
    loop.post(webhook(alert(status="resolved")))
    loop.wait_phase("in_service")
    assert sorted(op for _, op, _ in loop.effects()) == ["nic.avoid"] * 3 + ["nic.restore"] * 3


def test_a_lost_journal_is_learnt_from_the_agents(loop):
    """Without its journal the receiver takes over what agents hold out, and brings it back after a hold."""
    loop.post(webhook(alert()))
    loop.wait_phase("avoided")
    kill(loop.receiver)
    for path in loop.folder.glob("receiver.db*"):
        path.unlink()
    loop.start_receiver()
    loop.wait_receiver()
    loop.wait_phase("in_service")
    assert sorted(op for _, op, _ in loop.effects()) == ["nic.avoid"] * 2 + ["nic.restore"] * 2


def test_people(loop):
    """Pause stops it with a reason, release brings a NIC back at once, and both are in the journal with a name."""
    assert request(f"{loop.url}/api/v1/pause", {"owner": "ada"})[0] == 400
    assert request(f"{loop.url}/api/v1/pause", {"reason": "switch upgrade", "owner": "ada"}) == (
        200,
        "paused\n",
    )
    loop.post(webhook(alert()))
    # An answer may be of the moment before, without a target.
    wait_for(lambda: [t["blocked"] for t in loop.get("/api/v1/targets")] == ["paused"], 5, "blocked")
    assert loop.actions() == []
    assert request(f"{loop.url}/api/v1/resume", {"owner": "ada"})[0] == 200
    loop.wait_phase("avoided")
    assert request(f"{loop.url}/api/v1/release", {"host": "h0", "device": "rail1"})[0] == 404
    assert request(f"{loop.url}/api/v1/release", {"host": "h0", "device": "rail0", "owner": "ada"})[0] == 200
    wait_for(lambda: "nic.restore" in [op for _, op, _ in loop.effects()], 5, "released")
    events = {line["event"]: line["detail"] for line in loop.get("/api/v1/events")}
    assert events["paused"]["reason"] == "switch upgrade"
    assert events["released"]["owner"] == "ada (not authenticated)"


def test_a_second_receiver_is_refused(loop):
    """Two receivers on one journal would decide twice: the second says so and ends."""
    second = loop.start(
        "fabricpulse.core.cli", "remediation", "receiver",
        "--config", str(loop.folder / "receiver.yml"), "--web.listen-address", "127.0.0.1:0", name="second",
    )  # fmt: skip
    assert second.wait(60) == 1
    assert (
        loop.log("second")
        .strip()
        .splitlines()[-1]
        .endswith("is in use by another receiver; stop it or choose another journal")
    )
    assert "Traceback" not in loop.log("second")
