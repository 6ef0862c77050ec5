"""kill -9 at the worst moments: no accepted alert is lost, and no operation has two effects."""

import random
import threading
import time

import pytest
from tests.fixtures.remediation.stack import Stack, alert, kill, webhook
from tests.fixtures.waiting import wait_for

# (where, at which visit): the first commits are the start itself.
RECEIVER = [
    ("receiver.before_commit", 3),
    ("receiver.in_commit", 3),
    ("receiver.after_commit", 3),
    pytest.param("receiver.before_answer", 1, marks=pytest.mark.slow),
    pytest.param("receiver.before_sending", 1, marks=pytest.mark.slow),
]
AGENT = [
    ("agent.before_journal", 2),
    ("agent.after_journal", 2),
    ("agent.before_apply", 1),
    ("agent.after_apply", 1),
    pytest.param("agent.before_done", 1, marks=pytest.mark.slow),
    pytest.param("agent.after_done", 1, marks=pytest.mark.slow),
    pytest.param("agent.before_report", 1, marks=pytest.mark.slow),
    pytest.param("agent.after_report", 1, marks=pytest.mark.slow),
]


def deliver(stack: Stack, body: dict[str, object]) -> None:
    """As Alertmanager does: again and again until it is accepted."""

    def accepted() -> bool:
        return stack.post(body)[0] == 200

    wait_for(accepted, 30, "delivery accepted")


def once_each(stack: Stack) -> None:
    """Every operation had at most one effect in the one process."""
    ops = [op_id for op_id, _, _ in stack.effects()]
    assert len(ops) == len(set(ops)), ops


@pytest.mark.parametrize(("failpoint", "visit"), RECEIVER)
def test_receiver_dies_around_a_commit(stack, failpoint, visit):
    """Killed before, in and after a commit, before its answer or before the agent gets the decision, the receiver goes
    on where its journal ends."""
    stack.start_plugin()
    stack.start_agent()
    stack.start_receiver(FABRICPULSE_FAILPOINT=f"{failpoint}:{visit}")
    stack.keep_receiver()
    deliver(stack, webhook(alert()))
    wait_for(lambda: [op for _, op, _ in stack.effects()] == ["nic.avoid"], 30, "NIC avoided")
    stack.wait_receiver()
    stack.wait_phase("avoided")
    deliver(stack, webhook(alert(status="resolved")))
    wait_for(lambda: [op for _, op, _ in stack.effects()] == ["nic.avoid", "nic.restore"], 30, "restored")
    assert stack.get("/api/v1/verify")["intact"] is True
    assert any(process.poll() == -9 for process in stack.processes), "the failpoint was never reached"
    once_each(stack)


@pytest.mark.parametrize(("failpoint", "visit"), AGENT)
def test_agent_dies_around_an_operation(stack, failpoint, visit):
    """Killed before or after its journal, the control socket or its report, the agent carries out what was asked, once,
    and the receiver learns how it went."""
    stack.start_plugin()
    stack.start_receiver()
    stack.wait_receiver()
    stack.start_agent(FABRICPULSE_FAILPOINT=f"{failpoint}:{visit}")
    stack.wait_agent()
    deliver(stack, webhook(alert()))
    assert stack.agents["h0"].wait(60) == -9
    stack.start_agent()
    stack.wait_phase("avoided")
    deliver(stack, webhook(alert(status="resolved")))
    stack.wait_phase("in_service")
    assert [op for _, op, _ in stack.effects()] == ["nic.avoid", "nic.restore"]
    assert [action["outcome"] for action in stack.actions()] == ["succeeded", "succeeded"]
    once_each(stack)


def test_kills_at_random_moments(stack):
    """A flapping NIC, receiver and agent killed again and again: what was accepted counts, nothing twice."""
    stack.start_all()
    chance = random.Random(20261121)
    stop, one_more = threading.Event(), threading.Event()
    accepted = []

    def flap() -> None:
        turn = 0
        while not stop.is_set():
            status = "firing" if turn % 2 == 0 else "resolved"
            start = f"2026-11-21T06:{turn // 2 % 60:02d}:00Z"
            try:
                if stack.post(webhook(alert(status=status, starts_at=start)))[0] == 200:
                    accepted.append((status, start))
                    one_more.set()
                    turn += 1
            except OSError:
                pass
            stop.wait(chance.uniform(0.05, 1.3))

    sender = threading.Thread(target=flap)
    sender.start()
    try:
        for _ in range(6):
            one_more.clear()
            assert one_more.wait(60), "no delivery was accepted"
            time.sleep(chance.uniform(0, 0.5))
            if chance.random() < 0.5:
                kill(stack.receiver)
                stack.start_receiver()
            else:
                kill(stack.agents["h0"])
                stack.start_agent()
    finally:
        stop.set()
        sender.join()
    stack.wait_receiver()
    stack.wait_agent()
    deliver(stack, webhook(alert(status="resolved", starts_at="2026-11-21T06:59:00Z")))
    deliver(stack, webhook(alert(status="resolved", starts_at=accepted[-1][1])))
    wait_for(lambda: stack.phase() in ("", "in_service"), 30, "all is well")
    once_each(stack)
    kinds = [op for _, op, _ in stack.effects()]
    assert kinds == ["nic.avoid", "nic.restore"] * (len(kinds) // 2)
    assert stack.get("/api/v1/verify")["intact"] is True
    assert len(accepted) >= 6
