"""The receiver behind real Alertmanagers: what they repeat, forget and get wrong must lead to one action."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.fixtures.ports import reserved_port
from tests.fixtures.remediation.stack import Alertmanager, Stack, alert, kill, webhook
from tests.fixtures.waiting import wait_for

from fabricpulse.lab.tools import find_tool

pytestmark = pytest.mark.prometheus


@pytest.fixture
def make_alertmanager(stack: Stack) -> Iterator[Callable[..., Alertmanager]]:
    """Starts Alertmanagers that notify the stack's receiver."""
    program = find_tool("alertmanager")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("no Alertmanager on this machine")
        pytest.skip("no Alertmanager on this machine")
    made: list[Alertmanager] = []

    def make(webhook_url: str = "", **options: object) -> Alertmanager:
        url = webhook_url or f"{stack.url}/api/v1/alertmanager"
        made.append(Alertmanager(program, stack.folder, url, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def start_loop(stack: Stack, *alertmanagers: Alertmanager) -> None:
    stack.start_all({"alertmanagers": [a.url for a in alertmanagers], "alertmanager_poll_s": 1})


def test_fire_repeat_resolve(stack, make_alertmanager):
    """The whole story on a real Alertmanager, whose copies of one alert add nothing."""
    am = make_alertmanager()
    start_loop(stack, am)
    start = time.time() - 5
    am.fire(starts_s=start)
    wait_for(stack.effects, 5, "NIC avoided")
    for _ in range(5):
        am.fire(starts_s=start)
    stack.wait_phase("avoided")
    am.fire(ends_in_s=0, starts_s=start)
    stack.wait_phase("in_service")
    assert [op for _, op, _ in stack.effects()] == ["nic.avoid", "nic.restore"]


SHIPPED = Path(__file__).parents[3] / "deploy" / "alertmanager.yml"
LEAF = {"alertname": "FabricFaultLocated", "severity": "critical", "kind": "switch", "leaf": "l1"}


def flapping(host: str, device: str, leaf: str) -> dict[str, str]:
    """The labels that FabricNicFlapping has by its rule."""
    labels: dict[str, str] = alert(host, device)["labels"]
    return labels | {"leaf": leaf, "severity": "warning", "remediate": "nccl"}


def test_a_dead_leaf_with_the_shipped_configuration(stack, make_alertmanager):
    """Its NICs' alerts reach the receiver at once, before the leaf's can mute them; the leaf's follows within the
    settle window, and no NIC is taken out. Two NICs: too few to be known as a group."""
    am = make_alertmanager(shipped=SHIPPED)
    stack.start_all({"guards": {"settle_s": 10}})
    for host in ("h0", "h1"):
        am.fire(labels=flapping(host, "rail0", "l1"))
    wait_for(lambda: len(stack.get("/api/v1/episodes")) == 2, 5, "alerts of the NICs")
    am.fire(labels=LEAF)
    wait_for(lambda: len(stack.get("/api/v1/episodes")) == 3, 5, "alert of the leaf")

    def blocked() -> dict[str, str]:
        return {t["target"]["host"]: t["blocked"] for t in stack.get("/api/v1/targets")}

    wait_for(lambda: blocked() == {"h0": "shared_cause", "h1": "agent_lost"}, 20, "NIC of the leaf blocked")
    assert stack.effects() == []
    # A NIC of another leaf on the same host is taken out as ever.
    am.fire(labels=flapping("h0", "rail1", "l2"))
    stack.wait_phase("avoided", device="rail1")
    assert [(op, device) for _, op, device in stack.effects()] == [("nic.avoid", "rail1")]


def test_alertmanager_killed_and_started_again(stack, make_alertmanager):
    """It has forgotten that it notified, and does so again: no second action."""
    am = make_alertmanager()
    start_loop(stack, am)
    start = time.time() - 5
    am.fire(starts_s=start)
    stack.wait_phase("avoided")
    before = stack.metric('fabricpulse_remediation_deliveries_total{code="200"}')
    am.close()
    am.start()
    am.fire(starts_s=start)
    wait_for(
        lambda: stack.metric('fabricpulse_remediation_deliveries_total{code="200"}') > before,
        20,
        "notified again",
    )
    assert len(stack.actions()) == 1
    am.fire(ends_in_s=0, starts_s=start)
    stack.wait_phase("in_service")


def test_what_fired_while_the_receiver_was_dead(stack, make_alertmanager):
    """Alertmanager tries again, and the receiver asks by itself at the start: the alert arrives either way."""
    am = make_alertmanager(group_interval="10s")
    start_loop(stack, am)
    kill(stack.receiver)
    am.fire()
    stack.start_receiver()
    stack.wait_phase("avoided")
    assert len(stack.actions()) == 1


def test_poll_without_any_webhook(stack, make_alertmanager):
    """With the webhook going nowhere, asking alone finds the alert, and its end."""
    am = make_alertmanager(f"http://127.0.0.1:{reserved_port()}/nobody")
    stack.start_receiver({"alertmanagers": [am.url], "alertmanager_poll_s": 0.5, "expire_s": 1})
    stack.start_plugin()
    stack.start_agent()
    am.fire()
    stack.wait_phase("avoided")
    am.fire(ends_in_s=0)
    wait_for(lambda: stack.get("/api/v1/targets")[0]["blocked"] == "unproven", 20, "vanished, so unproven")


def test_a_journal_that_fails_answers_503_and_alertmanager_tries_again(stack, make_alertmanager):
    """A disk that is full (a file size limit stands in for it) costs nothing but time."""
    am = make_alertmanager()
    start_loop(stack, am)
    receiver = stack.receiver
    assert receiver is not None
    import resource

    size = sum(path.stat().st_size for path in stack.folder.glob("receiver.db-wal"))
    old = resource.prlimit(receiver.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    am.fire()
    wait_for(lambda: "journal refused a commit" in stack.log("receiver"), 10, "commit refused")
    assert stack.post(webhook(alert(device="rail1")))[0] == 503
    assert stack.effects() == []
    resource.prlimit(receiver.pid, resource.RLIMIT_FSIZE, old)
    stack.wait_phase("avoided")
    assert [op for _, op, _ in stack.effects()] == ["nic.avoid"]


def test_stale_firing_of_an_alertmanager_that_was_cut_off(stack, make_alertmanager):
    """A copy of the firing alert that comes after `resolved`, and that nobody holds true, does not stop the return."""
    am = make_alertmanager()
    start_loop(stack, am)
    start = datetime.now(UTC).isoformat()
    stack.post(webhook(alert(starts_at=start)))
    stack.wait_phase("avoided")
    stack.post(webhook(alert(status="resolved", starts_at=start)))
    assert stack.post(webhook(alert(starts_at=start)))[0] == 200
    stack.wait_phase("in_service")
    assert [op for _, op, _ in stack.effects()] == ["nic.avoid", "nic.restore"]


class _Recorder(BaseHTTPRequestHandler):
    """Answers with the statuses it was given, in order, and then 200; keeps the bodies."""

    statuses: list[int] = [503, 503, 200]
    bodies: list[dict[str, object]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(json.loads(body))
        self.send_response(self.statuses.pop(0) if self.statuses else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_alertmanager_retries_5xx_and_drops_4xx(stack, make_alertmanager):
    """The behaviour of Alertmanager that the receiver's answers rest on; if it changes, so must they."""
    handler = _Recorder
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        am = make_alertmanager(f"http://127.0.0.1:{server.server_port}/", group_interval="1m")
        am.fire()
        wait_for(lambda: len(handler.bodies) == 3, 20, "two retries")
        handler.statuses[:] = [429]
        am.fire(device="rail1")
        wait_for(lambda: len(handler.bodies) == 4, 20, "the second alert")
        time.sleep(3)  # that nothing comes cannot be waited for
        assert len(handler.bodies) == 4
        server.shutdown()
    assert {body["version"] for body in handler.bodies} == {"4"}


def test_the_example_route_is_valid():
    """deploy/alertmanager.yml loads in the Alertmanager that is here (amtool)."""
    import subprocess

    amtool = find_tool("amtool")
    if amtool is None:
        pytest.skip("no amtool on this machine")
    done = subprocess.run(
        [str(amtool), "check-config", str(SHIPPED)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for labels in (["remediate=nccl"], ["alertname=FabricFaultLocated", "severity=critical"]):
        routed = subprocess.run(
            [str(amtool), "config", "routes", "test", f"--config.file={SHIPPED}", *labels],
            capture_output=True,
            text=True,
            check=False,
        )
        assert routed.stdout.strip() == "remediation,on-call", labels
