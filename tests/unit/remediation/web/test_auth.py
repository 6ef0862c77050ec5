"""Who may do what: tokens, users, certificates, and tokens that are one host's only."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.remediation.command import command
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.web.auth import Access, AccessControl, Principal, agent_token, owner_of
from fabricpulse.remediation.receiver.web.origin import addresses_of

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
    method: str,
    path: str,
    token: str = "",
    user: str = "",
    names: tuple[str, ...] = (),
    ends: tuple[Any, Any] = (("10.0.0.9", 50_000), ("10.0.0.1", 9615)),
    **headers: str,
) -> Any:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if user:
        headers["Authorization"] = "Basic " + b64encode(f"{user}:x".encode()).decode()
    extra = {
        "peercert": {"subjectAltName": tuple(("DNS", name) for name in names)},
        "peername": ends[0],
        "sockname": ends[1],
    }

    class Request(dict):  # type: ignore[type-arg]
        def get_extra_info(self, name: str) -> Any:
            return extra[name]

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


HERE = [
    (("127.0.0.1", 1), ("127.0.0.1", 9615)),
    (("10.0.0.1", 1), ("10.0.0.1", 9615)),
    (("::1", 1, 0, 0), ("::1", 9615, 0, 0)),
    (("::ffff:10.0.0.1", 1, 0, 0), ("::ffff:10.0.0.1", 9615, 0, 0)),
    (("fe80::1%eth0", 1, 0, 2), ("fe80::1%eth0", 9615, 0, 2)),
    ("", "/run/receiver.sock"),
]
ELSEWHERE = [
    (("10.0.0.9", 1), ("10.0.0.1", 9615)),
    (("fe80::2%eth0", 1, 0, 2), ("fe80::1%eth0", 9615, 0, 2)),
    (None, ("10.0.0.1", 9615)),
    (None, None),
]


@pytest.mark.parametrize("ends", [*HERE, *ELSEWHERE], ids=str)
def test_without_access_control_changes_are_for_this_machine(ends):
    """Everybody may read and report; orders and alerts are taken from the receiver's own machine, however it calls
    itself, and from nobody that a proxy or a web page there speaks for."""
    opened = Access(parse_config("", ReceiverConfig, "test"))
    allowed = {STATUS, REPORT} | ({WEBHOOK, PAUSE, RELOAD} if ends in HERE else set())
    for route in (WEBHOOK, REPORT, STATUS, PAUSE, RELOAD):
        assert status(opened, *route, ends=ends) == (200 if route in allowed else 403), route
    for header in ({"X-Forwarded-For": "10.0.0.9"}, {"Via": "1.1 proxy"}, {"Origin": "http://receiver:9615"}):
        assert {status(opened, *route, ends=ends, **header) for route in (WEBHOOK, PAUSE, RELOAD)} == {403}


def test_who_was_checked_may_change_things_from_anywhere():
    """A password or certificate of the web configuration is access control."""
    opened = Access(parse_config("", ReceiverConfig, "test"))
    assert status(opened, *PAUSE, user="ada") == status(opened, *WEBHOOK, names=("am.example",)) == 200
    unchecked = AccessControl(opened, has_passwords=False)._check(request(*PAUSE, user="ada"))
    assert unchecked is not None
    assert unchecked.status == 403


def test_alertmanagers_that_are_polled_may_send():
    """From their addresses alerts are taken, and no orders."""
    control = AccessControl(Access(parse_config("", ReceiverConfig, "test")), has_passwords=False)
    control.alertmanagers = frozenset({"10.0.0.9", "fd00::9"})
    for peer in ("10.0.0.9", "::ffff:10.0.0.9", "fd00:0::9"):
        ends = ((peer, 1, 0, 0), ("10.0.0.1", 9615))
        assert control._check(request(*WEBHOOK, ends=ends)) is None
        assert control._check(request(*PAUSE, ends=ends)) is not None
    assert control._check(request(*WEBHOOK, ends=(("10.0.0.8", 1), ("10.0.0.1", 9615)))) is not None


async def test_an_alertmanager_whose_address_is_not_known_yet_sends_again():
    """After a start, or while names cannot be looked up, it got 403, which it takes for final. Web pages and those who
    give orders are refused as ever."""
    control = AccessControl(Access(parse_config("", ReceiverConfig, "test")), has_passwords=False)
    ends = (("10.0.0.9", 1), ("10.0.0.1", 9615))
    for all_known, status in ((False, 503), (True, 403)):
        control.all_known = all_known
        assert control._check(request(*WEBHOOK, ends=ends)).status == status
        assert control._check(request(*WEBHOOK, ends=ends, Origin="http://10.0.0.1")).status == 403
        assert control._check(request(*PAUSE, ends=ends)).status == 403
    control.alertmanagers, control.all_known = frozenset({"10.0.0.9"}), False
    assert control._check(request(*WEBHOOK, ends=ends)) is None


async def test_addresses_of_alertmanagers():
    """Names are looked up; one that cannot be keeps what was known."""
    urls = ["http://127.0.0.3:9093/am", "http://[::1]:9093"]
    assert await addresses_of(urls) == ({"127.0.0.3", "::1"}, True)
    known = frozenset({"10.9.9.9"})
    assert await addresses_of(["http://no-such-host.invalid:9093"], known) == (known, False)
    assert await addresses_of([], known) == (frozenset(), True)


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
    """Mistakes are reported at the start."""
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
