"""Notifications: in order, until accepted, across restarts of either side."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.fixtures.remediation.stack import alert, kill, request, webhook
from tests.fixtures.waiting import wait_for

from fabricpulse.remediation.receiver.config import NotifyConfig
from fabricpulse.remediation.receiver.notifier import message_of


class Listener:
    """An HTTP server that keeps what it accepts; `status` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.accepted: list[tuple[str, dict[str, Any]]] = []
        self.refused = 0
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if listener.status == 200:
                    listener.accepted.append((self.path, body))
                else:
                    listener.refused += 1
                self.send_response(listener.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def events(self) -> list[str]:
        return [body["event"] for path, body in self.accepted if path == "/hook"]


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


def test_notified_in_order_until_accepted(stack, listener):
    """It answers 503 at first, and the receiver is killed: nothing is lost, a repeat has the same id."""
    listener.status = 503
    notify = [
        {"name": "hook", "url": f"{listener.url}/hook", "events": ["nic.avoid", "succeeded", "nic.restore"]},
        {"name": "grafana", "kind": "grafana", "url": listener.url, "events": ["nic.avoid"]},
    ]
    stack.start_all({"notify": notify})
    stack.post(webhook(alert()))
    stack.wait_phase("avoided")
    wait_for(lambda: listener.refused >= 2, 30, "tries")
    assert stack.metric('fabricpulse_remediation_notifications_total{name="hook",outcome="failed"}') >= 1
    kill(stack.receiver)
    stack.start_receiver()
    stack.wait_receiver()
    listener.status = 200
    stack.post(webhook(alert(status="resolved")))
    expected = ["nic.avoid", "succeeded", "nic.restore", "succeeded"]
    wait_for(lambda: listener.events()[-4:] == expected, 60, "all is notified")
    accepted = {body["id"]: body for path, body in listener.accepted if path == "/hook"}
    assert [body["event"] for _, body in sorted(accepted.items())] == expected
    first = accepted[min(accepted)]
    assert (first["host"], first["device"]) == ("h0", "rail0")
    (annotation,) = {body["text"] for path, body in listener.accepted if path == "/api/annotations"}
    assert annotation == "h0/rail0 nic.avoid: FabricNicFlapping is firing"


@pytest.mark.slow
def test_dies_after_telling(stack, listener):
    """Killed between the destination's answer and its own note of it: sent again under the same id."""
    events = ["nic.avoid", "succeeded"]
    stack.start_receiver(
        {"notify": [{"name": "hook", "url": f"{listener.url}/hook", "events": events}]},
        FABRICPULSE_FAILPOINT="receiver.after_notification:1",
    )
    stack.start_plugin()
    stack.start_agent()
    stack.wait_receiver()
    stack.wait_agent()
    stack.post(webhook(alert()))
    assert stack.receiver.wait(60) == -9
    assert listener.events() == ["nic.avoid"]
    stack.start_receiver()
    wait_for(lambda: listener.events() == ["nic.avoid", *events], 60, "all is notified")
    first, again, _ = (body["id"] for _, body in listener.accepted)
    assert first == again


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["", "receiver.after_drain_command:1"])
def test_a_host_is_left(stack, listener, failpoint):
    """Trainers are notified, then the scheduler's command runs, also when the receiver is killed while it does
    or once it has ended; nothing is done twice but sent again; an operator brings the host back."""
    calls, go = stack.folder / "calls", stack.folder / "go"
    program = stack.folder / "scontrol"
    program.write_text(
        f"#!/bin/sh\nfor each; do printf '%s|' \"$each\"; done >>{calls}; echo >>{calls}\n"
        f"while [ ! -e {go} ]; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    hook = {"name": "hook", "url": f"{listener.url}/hook", "events": ["hand_off", "drain_drained"]}
    stack.start_receiver(
        {
            "rules": [{"alert": "FabricNicFlapping", "action": "host.drain", "mode": "auto"}],
            "drain": {
                "command": [str(program), "update", "NodeName={host}", "State=DRAIN", "Reason={reason}"],
                "undo": [str(program), "update", "NodeName={host}", "State=RESUME"],
                "grace_s": 0,
            },
            "notify": [hook],
        },
        FABRICPULSE_FAILPOINT=failpoint,
    )
    stack.start_plugin()
    stack.start_agent()
    stack.wait_receiver()
    stack.wait_agent()
    stack.post(webhook(alert()))
    wait_for(calls.exists, 30, "the command runs")
    if failpoint:
        go.touch()
        assert stack.receiver.wait(60) == -9
    else:
        kill(stack.receiver)
        go.touch()
    stack.start_receiver()
    stack.wait_receiver()
    wait_for(lambda: [d["phase"] for d in stack.get("/api/v1/drains")] == ["drained"], 30, "drained")
    drain = "update|NodeName=h0|State=DRAIN|Reason=fabricpulse: FabricNicFlapping is firing|"
    assert calls.read_text().splitlines() == [drain, drain]
    wait_for(lambda: set(listener.events()) == {"hand_off", "drain_drained"}, 30, "all is notified")
    assert {body["host"] for _, body in listener.accepted} == {"h0"}
    assert stack.effects() == [], "no NIC was touched"
    assert stack.metric("fabricpulse_remediation_hosts_out") == 1
    order = {"host": "h0", "owner": "ada"}
    assert request(f"{stack.url}/api/v1/release", order) == (200, "released\n")
    wait_for(lambda: [d["phase"] for d in stack.get("/api/v1/drains")] == ["returned"], 30, "returned")
    assert calls.read_text().splitlines()[2:] == ["update|NodeName=h0|State=RESUME|"]
    assert request(f"{stack.url}/api/v1/release", order)[0] == 404
    assert stack.get("/api/v1/verify")["intact"] is True


def test_text_from_elsewhere_is_text():
    """Markup and escape sequences of an operator's reason, or a process' error, do nothing in Grafana."""
    config = NotifyConfig(name="g", url="http://g", kind="grafana")
    line = {
        "id": 7,
        "at": 1.5,
        "subject": "fleet",
        "event": "paused",
        "detail": {"reason": "<img src=x>\x1b[2J"},
    }
    body = message_of(config, line)
    assert body == {
        "time": 1500,
        "tags": ["fabricpulse", "paused", "fleet"],
        "text": "fleet paused: &lt;img src=x&gt;\\x1b[2J",
    }
