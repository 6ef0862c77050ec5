"""An agent with receiver_keys obeys the receiver that has the key, and nobody else."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.fixtures.remediation.stack import Stack, alert, request, webhook
from tests.fixtures.waiting import wait_for

from fabricpulse.remediation.node.journal import NodeJournal


def keygen(stack: Stack, private: str) -> None:
    command = [sys.executable, "-m", "fabricpulse.core.cli", "remediation", "keygen"]
    made = subprocess.run(
        [*command, str(stack.folder / private), str(stack.folder / "keys.pub")],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert made.stdout.startswith("key ")


def test_signed_from_alert_to_effect_and_rotated(stack):
    """The NIC goes out; the key is changed under both; the NIC comes back. Nobody restarts."""
    keygen(stack, "a.pem")
    stack.start_receiver({"signing_key_file": str(stack.folder / "a.pem")})
    stack.start_plugin()
    stack.start_agent(config={"receiver_keys": str(stack.folder / "keys.pub")})
    stack.wait_receiver()
    stack.wait_agent()
    assert stack.post(webhook(alert()))[0] == 200
    stack.wait_phase("avoided")
    keygen(stack, "b.pem")
    (stack.folder / "b.pem").replace(stack.folder / "a.pem")
    assert stack.post(webhook(alert(status="resolved")))[0] == 200
    stack.wait_phase("in_service")
    assert [op for _, op, _ in stack.effects()] == ["nic.avoid", "nic.restore"]


@contextmanager
def impostor(port: int, state: dict[str, object]) -> Iterator[list[str]]:
    """Answers in the receiver's place, unsigned, with this desired state; the paths of the polls so far."""
    polls: list[str] = []

    class Forged(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            polls.append(self.path)
            desired = {"host": "h0", "version": "x", "not_after": time.time() + 60} | state
            body = json.dumps({"payload": json.dumps(desired)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Forged)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield polls
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_receiver_without_the_key_moves_nothing(stack):
    """It answers in the receiver's place, unsigned, as if every NIC were to go: no effect, and the agent says why."""
    keygen(stack, "a.pem")
    nics = [{"device": f"rail{i}", "desired": "avoid", "generation": 2**50, "op_id": f"x{i}"} for i in (0, 1)]
    with impostor(stack.receiver_port, {"epoch": 1, "nics": nics}) as polls:
        stack.start_plugin()
        stack.start_agent(config={"receiver_keys": str(stack.folder / "keys.pub")})
        wait_for(lambda: len(polls) >= 3, 20, "three forged answers")
        assert "the receiver does not sign" in request(f"{stack.agent_url()}/-/ready")[1]
        assert stack.effects() == []


def test_an_epoch_of_tomorrow_locks_nobody_out(stack):
    """Agents without keys believe whoever answers, and one named an epoch almost a day ahead: the right receiver was
    refused until then, also once the hosts had keys. Now it is obeyed at once."""
    with impostor(stack.receiver_port, {"epoch": int(time.time() + 86_000), "nics": []}) as polls:
        stack.start_plugin()
        stack.start_agent()
        wait_for(lambda: len(polls) >= 3, 20, "three forged answers")
    stack.start_receiver()
    stack.wait_receiver()
    stack.wait_agent()
    assert stack.post(webhook(alert()))[0] == 200
    stack.wait_phase("avoided")
    assert [op for _, op, _ in stack.effects()] == ["nic.avoid"]


def test_a_fence_without_a_signature_ends_with_keys(stack):
    """The impostor's epoch was a believable one, of a moment ago; then the hosts got keys."""
    keygen(stack, "a.pem")
    stack.start_receiver({"signing_key_file": str(stack.folder / "a.pem")})
    stack.wait_receiver()
    journal = NodeJournal(stack.folder / "h0.db")
    journal.accept(stack.get("/api/v1/status")["epoch"] + 1, [], 0.0)
    journal.close()
    stack.start_plugin()
    stack.start_agent(config={"receiver_keys": str(stack.folder / "keys.pub")})
    stack.wait_agent()
    assert stack.post(webhook(alert()))[0] == 200
    stack.wait_phase("avoided")
