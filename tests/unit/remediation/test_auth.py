"""Who may do what: tokens, users, certificates, and tokens that are one host's only."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.remediation.command import command
from fabricpulse.remediation.receiver.auth import Access, AccessControl, Principal, agent_token, owner_of
from fabricpulse.remediation.receiver.config import ReceiverConfig

KEY = "a key of thirty-two characters!!"


@pytest.fixture
def access(tmp_path: Path) -> Access:
    for name in ("am", "ops", "see"):
        (tmp_path / name).write_text(f"{name}-secret\n")
    (tmp_path / "key").write_text(KEY + "\n")
    text = f"""
access:
- {{name: alertmanager, role: alert, token_file: {tmp_path}/am}}
- {{name: ops, role: operator, token_file: {tmp_path}/ops}}
- {{name: dashboards, role: viewer, token_file: {tmp_path}/see}}
- {{name: ada, role: operator, user: ada}}
- {{name: robot, role: viewer, certificate: robot.example}}
- {{name: agents, role: agent, key_file: {tmp_path}/key}}
"""
    return Access(parse_config(text, ReceiverConfig, "test"))


def request(
    method: str, path: str, token: str = "", user: str = "", names: tuple[str, ...] = (), **headers: str
) -> Any:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if user:
        headers["Authorization"] = "Basic " + b64encode(f"{user}:x".encode()).decode()
    certificate = {"subjectAltName": tuple(("DNS", name) for name in names)}

    class Request(dict):  # type: ignore[type-arg]
        def get_extra_info(self, _: str) -> dict[str, Any]:
            return certificate

    made = Request()
    for name, value in {
        "method": method,
        "path": path,
        "headers": headers,
        "host": "receiver:9615",
        "content_type": headers.get("Content-Type", "application/json"),
    }.items():
        setattr(made, name, value)
    return made


def status(access: Access, *arguments: Any, **fields: Any) -> int:
    answer = AccessControl(access, has_passwords=True)._check(request(*arguments, **fields))
    return 200 if answer is None else answer.status


WEBHOOK, REPORT, STATUS, PAUSE, RELOAD = (
    ("POST", "/api/v1/alertmanager"),
    ("POST", "/api/v1/agents/h0/report"),
    ("GET", "/api/v1/status"),
    ("POST", "/api/v1/pause"),
    ("POST", "/-/reload"),
)


@pytest.mark.parametrize(
    ("who", "allowed"),
    [
        ({"token": "am-secret"}, {WEBHOOK}),
        ({"token": "ops-secret"}, {STATUS, PAUSE, RELOAD}),
        ({"token": "see-secret"}, {STATUS}),
        ({"user": "ada"}, {STATUS, PAUSE, RELOAD}),
        ({"names": ("robot.example",)}, {STATUS}),
        ({"token": agent_token(KEY, "h0")}, {REPORT}),
    ],
)
def test_roles(access, who, allowed):
    """Each may do its own and nothing else: an agent cannot pause, an Alertmanager cannot report for a host."""
    for route in (WEBHOOK, REPORT, STATUS, PAUSE, RELOAD):
        found = status(access, *route, **who)
        assert (found == 200) == (route in allowed), (route, found)


@pytest.mark.parametrize(
    "who", [{}, {"token": "wrong"}, {"token": "\udcff"}, {"user": "eve"}, {"names": ("eve.example",)}]
)
def test_strangers(access, who):
    """401 for every route, also for a token that is no text."""
    assert {status(access, *route, **who) for route in (WEBHOOK, REPORT, STATUS, PAUSE, RELOAD)} == {401}


def test_an_agent_speaks_for_its_own_host_only(access):
    """The token is made from the host's name: another host's path is 401."""
    token = agent_token(KEY, "h0")
    assert status(access, "GET", "/api/v1/agents/h0/desired", token=token) == 200
    assert status(access, "GET", "/api/v1/agents/h1/desired", token=token) == 401
    assert agent_token(KEY, "h0") != agent_token(KEY, "h1")


def test_a_password_that_nobody_checked_is_no_identity(access):
    """Without basic_auth_users a Basic header is only a claim."""
    unchecked = AccessControl(access, has_passwords=False)._check(request(*STATUS, user="ada"))
    assert unchecked is not None
    assert unchecked.status == 401


def test_pages_of_another_origin_change_nothing(access):
    """A browser that holds a certificate or password sends it along with any page's form."""
    ada = {"user": "ada"}
    assert status(access, *PAUSE, **ada, Origin="https://evil.example") == 403
    assert status(access, *PAUSE, **ada, Origin="https://receiver:9615") == 200
    assert status(access, *PAUSE, **ada, **{"Content-Type": "text/plain"}) == 403
    assert status(access, *RELOAD, **ada, Origin="https://evil.example") == 403
    assert status(access, *RELOAD, **ada, **{"Content-Type": "application/octet-stream"}) == 200


@pytest.mark.parametrize(
    ("principal", "owner"),
    [
        (Principal("ada", ("operator",)), "ada (as eve)"),
        (Principal("eve", ("operator",)), "eve"),
        (Principal("", ("operator",)), "eve (not authenticated)"),
    ],
)
def test_owner_comes_from_authentication(principal, owner):
    """What the body claims stands beside it, never alone."""
    assert owner_of({"principal": principal}, "eve") == owner


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("token_file: t\naccess: [{name: a, role: alert, user: u}]", "exclude each other"),
        ("access: [{name: a, role: alert}]", "exactly one of"),
        ("access: [{name: a, role: alert, user: u, token_file: t}]", "exactly one of"),
        ("access: [{name: a, role: alert, key_file: k}]", "key_file is for the role agent"),
        ("access: [{name: a, role: root, user: u}]", "access[0].role"),
    ],
)
def test_configuration(text, sentence):
    """Mistakes are told at the start."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, ReceiverConfig, "test")
    assert sentence in str(caught.value)


def test_agent_token_command(tmp_path):
    """Prints what the receiver will accept; a short key is refused by the receiver."""
    (tmp_path / "key").write_text(KEY)
    found = CliRunner().invoke(command, ["token", "h0", "--key-file", str(tmp_path / "key")])
    assert found.output.strip() == agent_token(KEY, "h0")
    (tmp_path / "key").write_text("short")
    text = f"access: [{{name: a, role: agent, key_file: {tmp_path}/key}}]"
    with pytest.raises(ConfigError, match="fewer than 16 characters"):
        Access(parse_config(text, ReceiverConfig, "test"))
