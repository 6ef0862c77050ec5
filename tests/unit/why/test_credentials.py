"""To whom `fabricpulse why` shows which credentials, by the requests that arrive."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.fixtures.web.loopback_http import LoopbackServer, Reply, Request

from fabricpulse.core.errors import UserError
from fabricpulse.why.command import command

EMPTY = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}).encode()


def prometheus(_: Request) -> Reply:
    return Reply(EMPTY)


def receiver(_: Request) -> Reply:
    return Reply(b"[]")


def shown(server: LoopbackServer) -> set[str | None]:
    """Authorization headers that have arrived; there was a request."""
    assert server.requests
    return {request.headers.get("authorization") for request in server.requests}


def token(folder: Path, text: str) -> str:
    path = folder / text
    path.write_text(text)
    return str(path)


def ask(*options: str) -> str:
    result = CliRunner().invoke(command, ["job", "--output", "json", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_each_server_is_shown_its_own(tmp_path: Path) -> None:
    """The token of Prometheus goes to Prometheus, that of the receiver to the receiver."""
    with LoopbackServer(prometheus) as prom, LoopbackServer(receiver) as remediation:
        ask(
            *("--prometheus", prom.url, "--token-file", token(tmp_path, "for-prometheus")),
            *("--receiver", remediation.url, "--receiver-token-file", token(tmp_path, "for-receiver")),
        )
        assert shown(prom) == {"Bearer for-prometheus"}
        assert shown(remediation) == {"Bearer for-receiver"}


@pytest.mark.parametrize("by_file", [False, True])
def test_the_receiver_learns_nothing_of_prometheus(tmp_path: Path, by_file: bool) -> None:
    """Without options of its own the receiver is shown nothing, whichever way Prometheus' credentials were given."""
    option = ("--token-file", token(tmp_path, "secret"))
    if by_file:
        (tmp_path / "http.yml").write_text(
            f"basic_auth: {{username: me, password_file: {token(tmp_path, 'secret')}}}\n"
        )
        option = ("--http.config.file", str(tmp_path / "http.yml"))
    with LoopbackServer(prometheus) as prom, LoopbackServer(receiver) as remediation:
        ask("--prometheus", prom.url, *option, "--receiver", remediation.url)
        assert None not in shown(prom)
        assert shown(remediation) == {None}


def test_the_receiver_by_a_file(tmp_path: Path) -> None:
    """The receiver's own file: its password; Prometheus is not shown it."""
    (tmp_path / "http.yml").write_text(
        f"basic_auth: {{username: me, password_file: {token(tmp_path, 'secret')}}}\n"
    )
    with LoopbackServer(prometheus) as prom, LoopbackServer(receiver) as remediation:
        ask(
            *("--prometheus", prom.url, "--receiver", remediation.url),
            *("--receiver.http.config.file", str(tmp_path / "http.yml")),
        )
        assert shown(prom) == {None}
        assert shown(remediation) == {"Basic bWU6c2VjcmV0"}


@pytest.mark.parametrize("name", ["--prometheus", "--receiver"])
def test_two_passwords_are_refused(tmp_path: Path, name: str) -> None:
    """A password in the URL and another by option: one sentence, nobody is asked."""
    option = "--token-file" if name == "--prometheus" else "--receiver-token-file"
    result = CliRunner().invoke(
        command, ["job", name, "http://me:secret@127.0.0.1:1", option, token(tmp_path, "t")]
    )
    assert isinstance(result.exception, UserError)
    assert f"{name} has a password" in str(result.exception)
    assert "secret" not in str(result.exception)


def test_links_have_no_password(tmp_path: Path) -> None:
    """An answer is sent around: no form of it tells the password of a URL."""
    with LoopbackServer(prometheus) as prom:
        url = prom.url.replace("://", "://me:secret@")
        for form in ("json", "html", "text"):
            out = ask("--prometheus", url, "--grafana", "http://me:secret@grafana:3000", "--output", form)
            assert "secret" not in out
