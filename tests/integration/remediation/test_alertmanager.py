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
from tests.fixtures.remediation.alertmanager_behaviours import BEHAVIOURS, Scene
from tests.fixtures.remediation.stack import Alertmanager, Stack, alert, webhook
from tests.fixtures.waiting import wait_for

from fabricpulse.lab.tools import find_tool

pytestmark = pytest.mark.prometheus


@pytest.fixture
def program() -> Path:
    """Alertmanager itself."""
    found = find_tool("alertmanager")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("no Alertmanager on this machine")
        pytest.skip("no Alertmanager on this machine")
    return found


@pytest.fixture
def make_alertmanager(stack: Stack, program: Path) -> Iterator[Callable[..., Alertmanager]]:
    """Starts Alertmanagers that notify the stack's receiver."""
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


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: str(behaviour.__name__))
def test_what_alertmanager_does(behaviour, program, tmp_path):
    """The promise of each is in its own docstring; the benchmark counts those that are kept."""
    scene = Scene(program, tmp_path)
    try:
        behaviour(scene)
    finally:
        scene.close()


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
