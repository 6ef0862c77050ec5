"""The receiver's HTTP side: who gets in, and what each kind of body is answered."""

import http.client
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.remediation.stack import Stack, alert, kill, request, webhook
from tests.fixtures.waiting import Patience

TOKEN = "s3cret"  # noqa: S105 - of this test


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A receiver that asks for a token, and no agents."""
    folder = tmp_path_factory.mktemp("http")
    (folder / "token").write_text(TOKEN)
    stack = Stack(folder)
    stack.start_receiver({"token_file": str(folder / "token")})
    stack.wait_receiver()
    yield stack
    stack.close()


def post(stack: Stack, body: object, token: str = TOKEN) -> tuple[int, str]:
    return request(f"{stack.url}/api/v1/alertmanager", body, token)


@pytest.mark.parametrize(
    "path",
    ["/api/v1/alertmanager", "/api/v1/status", "/api/v1/pause", "/api/v1/agents/h0/desired", "/-/reload"],
)
def test_without_the_token_nobody_gets_in(receiver, path):
    """401 for none and for a wrong one; health and metrics stay open to whoever watches."""
    for token in ("", "wrong", TOKEN + "x"):
        body = webhook(alert()) if path.endswith(("alertmanager", "pause", "reload")) else None
        assert request(receiver.url + path, body, token) == (401, "Unauthorized\n")
    assert request(f"{receiver.url}/-/healthy")[0] == 200
    assert request(f"{receiver.url}/metrics")[0] == 200


def test_statuses(receiver):
    """200 for a webhook, 400 for what is none, and it is kept to be looked at."""
    assert post(receiver, webhook(alert())) == (200, "journaled\n")
    assert post(receiver, webhook()) == (200, "journaled\n")
    assert post(receiver, webhook(alert() | {"startsAt": "?"}, alert(device="rail1"))) == (200, "journaled\n")
    for body in (b"", b"{}", b"[]", b'{"version":"3","alerts":[]}', b"\xff" * 100, b"[" * 50_000):
        assert post(receiver, body) == (400, "not an Alertmanager webhook, version 4\n")
    letters = json.loads(request(f"{receiver.url}/api/v1/dead_letters", token=TOKEN)[1])
    assert sum(letter["reason"].startswith("not a webhook, sha256") for letter in letters) == 6
    assert receiver.metric('fabricpulse_remediation_deliveries_total{code="400"}') == 6
    assert receiver.metric("fabricpulse_remediation_dead_letters_total") == 1


def test_a_host_that_has_news_without_end_is_refused(receiver):
    """Lines of the journal are kept for ever: an agent that lies writes a thousand, then none but one a second."""
    statuses = []
    for turn in range(12):  # what it holds is taken over when it has been said twice
        held = {f"nic{i}": {"desired": "avoid", "generation": 10**12 + turn // 2} for i in range(256)}
        report = f"{receiver.url}/api/v1/agents/forger/report"
        statuses.append(request(report, {"held": held}, TOKEN)[0])
    assert (statuses[0], statuses[-1], set(statuses)) == (200, 429, {200, 429})
    other = {"held": {"nic0": {"desired": "avoid", "generation": 10**12}}}
    assert request(f"{receiver.url}/api/v1/agents/h7/report", other, TOKEN)[0] == 200


def test_each_call_has_its_limit(receiver):
    """64 KiB for an operator's, 1 MiB for an agent's report and for alerts to explain; a webhook has room for the
    alerts of a whole fleet, 64 MiB."""
    operators, agents = 64 << 10, 1 << 20
    for path, most, said in (
        ("pause", operators, (400, "say why: reason is empty\n")),
        ("resume", operators, (200, "resumed\n")),
        ("agents/h0/report", agents, (400, "not a report\n")),
        ("explain", agents, (200, "[]")),
    ):
        body = b'{"alerts":[]}' if path == "explain" else b"" if "report" in path else b"{}"
        assert request(f"{receiver.url}/api/v1/{path}", body.ljust(most), TOKEN) == said
        status, text = request(f"{receiver.url}/api/v1/{path}", body.ljust(most + 1), TOKEN)
        assert (status, text.split(",")[0]) == (413, f"a body may have {most} bytes here")
    ten_thousand = 10_000 * len(json.dumps(alert()))
    assert post(receiver, json.dumps(webhook(alert())).encode().ljust(2 * ten_thousand)) == (
        200,
        "journaled\n",
    )


def test_more_than_64_mib_is_refused_before_it_is_read(receiver):
    """413; nothing of it is kept in memory."""
    connection = http.client.HTTPConnection("127.0.0.1", receiver.receiver_port, timeout=60)
    connection.putrequest("POST", "/api/v1/alertmanager")
    connection.putheader("Authorization", f"Bearer {TOKEN}")
    connection.putheader("Content-Length", str(65 << 20))
    connection.endheaders()
    sent = 0
    try:
        for _ in range(65):
            connection.send(b" " * (1 << 20))
            sent += 1
    except OSError:
        pass
    assert connection.getresponse().status == 413
    connection.close()


def test_mutants_are_200_or_400(receiver):
    """No body makes an error of ours out of itself: a 5xx would be sent again for ever."""
    chance = random.Random(11)
    seed = json.dumps(webhook(alert(), alert(device="rail1"))).encode()
    connection = http.client.HTTPConnection("127.0.0.1", receiver.receiver_port, timeout=60)
    seen = set()
    for _ in range(400):
        mutant = bytearray(seed)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(mutant))
            if chance.random() < 0.5:
                mutant[at] = chance.randrange(256)
            else:
                mutant[at : at + chance.randint(0, 9)] = chance.choice(
                    [b"null", b"[", b'"', b"\\ud800", b"1e999"]
                )
        connection.request(
            "POST", "/api/v1/alertmanager", bytes(mutant), {"Authorization": f"Bearer {TOKEN}"}
        )
        answer = connection.getresponse()
        answer.read()
        seen.add(answer.status)
    connection.close()
    assert seen == {200, 400}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/agents/h0/report", b"{"),
        ("/api/v1/agents/h0/report", b'{"results": [{"op_id": 3}]}'),
        ("/api/v1/agents/h0/desired?wait=x", None),
        ("/api/v1/events?limit=-1", None),
        ("/api/v1/pause", b"[]"),
        ("/api/v1/pause", b"nonsense"),
    ],
)
def test_bad_requests_are_400(receiver, path, body):
    """With one sentence, and no harm done."""
    status, text = request(receiver.url + path, body, TOKEN)
    assert status == 400
    assert text.count("\n") == 1


def test_every_outcome_is_exposed_at_0(receiver):
    """A counter that appears with its first event hides that event from `increase()`."""
    lines = request(f"{receiver.url}/metrics")[1].splitlines()
    counters = [line for line in lines if line.startswith("fabricpulse_remediation_actions_total{")]
    assert len(counters) == 16
    assert all(line.endswith(" 0") for line in counters)


def test_a_port_in_use_is_one_sentence(receiver, tmp_path: Path):
    """A non-zero exit code, and no traceback."""
    other = Stack(tmp_path)
    other.receiver_port = receiver.receiver_port
    other.start_receiver()
    assert other.receiver is not None
    assert other.receiver.wait(60) in (1, 2)
    text = other.log("receiver")
    assert f"cannot listen on 127.0.0.1:{receiver.receiver_port}: address already in use" in text
    assert "Traceback" not in text
    other.close()


def test_more_agents_than_the_file_limit(tmp_path: Path):
    """A fleet of agents holds more connections than the usual soft limit: webhook and kill switch still answer."""
    stack = Stack(tmp_path)
    stack.start_receiver(nofile=256)
    idle: list[socket.socket] = []
    try:
        stack.wait_receiver()
        address = ("127.0.0.1", stack.receiver_port)
        idle += [socket.create_connection(address, timeout=60) for _ in range(600)]
        patience = Patience(10)
        assert stack.post(webhook(alert()))[0] == 200
        assert request(f"{stack.url}/api/v1/pause", {"reason": "flood", "owner": "ada"})[0] == 200
        assert patience.left()
    finally:
        for connection in idle:
            connection.close()
        stack.close()


def test_a_forged_report_is_refused_and_harms_nobody(tmp_path: Path):
    """A generation of 10**30 is 400; the agent of that host, and a restart of both, go on as before."""
    stack = Stack(tmp_path)
    try:
        stack.start_all()
        held = {"rail0": {"desired": "avoid", "generation": 10**30}}
        assert request(f"{stack.url}/api/v1/agents/h0/report", {"held": held})[0] == 400
        kill(stack.receiver)
        kill(stack.agents["h0"])
        stack.start_receiver()
        stack.start_agent()
        stack.wait_receiver()
        stack.wait_agent()
        stack.post(webhook(alert()))
        stack.wait_phase("avoided")
    finally:
        stack.close()
