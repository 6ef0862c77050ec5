"""Requests of our daemons: what they trust and show, while files change; and what is never logged."""

import errno
import re
import socket
import ssl
from base64 import b64encode
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web
from tests.fixtures.descriptors import none_left
from tests.fixtures.ports import reserved_port

from fabricpulse.core import reread
from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.web.client import BodyTooLargeError, Credentials, HttpClient, describe, read_body
from fabricpulse.core.web.client_config import HttpClientConfig, TlsClientConfig
from fabricpulse.core.web.token_file import TokenFile
from fabricpulse.core.web.urls import check_url, redact

ROOT = Path(__file__).parents[3]
# They ask servers that they have started themselves.
_NOT_INSTALLED = ("lab", "tests")


def config_of(text: str) -> HttpClientConfig:
    return parse_config(text, HttpClientConfig, "test")


class TlsServer:
    """An HTTPS server that asks for a client certificate; `shown` are the Authorization headers it has seen."""

    def __init__(self, authority: trustme.CA, name: str) -> None:
        self.shown: list[str | None] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(self._context)
        authority.configure_trust(self._context)
        self._context.verify_mode = ssl.CERT_REQUIRED

    async def __aenter__(self) -> "TlsServer":
        async def answer(request: web.Request) -> web.Response:
            self.shown.append(request.headers.get("Authorization"))
            return web.Response(text="ok")

        app = web.Application()
        app.router.add_route("*", "/", answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._context).start()
        self.url = f"https://127.0.0.1:{self._runner.addresses[0][1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def write_certificates(folder: Path, authority: trustme.CA) -> None:
    leaf = authority.issue_cert("client.example")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    leaf.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    leaf.private_key_pem.write_to_path(folder / "key.pem")


def tls_settings(folder: Path, server_name: str = "am.example") -> TlsClientConfig:
    return TlsClientConfig(
        ca_file=str(folder / "ca.pem"),
        cert_file=str(folder / "cert.pem"),
        key_file=str(folder / "key.pem"),
        server_name=server_name,
    )


async def test_mutual_tls_and_rotation(tmp_path: Path) -> None:
    """A private authority, a server name that is not the URL's, a client certificate; all replaced while it runs."""
    old, new = trustme.CA(), trustme.CA()
    write_certificates(tmp_path, old)
    async with HttpClient(HttpClientConfig(tls_config=tls_settings(tmp_path))) as client:
        async with TlsServer(old, "am.example") as server, client.get(server.url) as response:
            assert response.status == 200
        async with TlsServer(new, "am.example") as server:
            with pytest.raises(aiohttp.ClientError):
                await client.get(server.url)
            write_certificates(tmp_path, new)
            async with client.get(server.url) as response:
                assert response.status == 200
        async with TlsServer(old, "am.example") as server:
            with pytest.raises(aiohttp.ClientError):  # what was trusted before is not any more
                await client.get(server.url)
        async with TlsServer(new, "other.example") as server:
            with pytest.raises(aiohttp.ClientError, match=r"other\.example|am\.example"):
                await client.get(server.url)


async def test_half_a_rotation_keeps_the_old_pair(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A certificate without its key leaves the old pair in force, and is logged once."""
    old, new = trustme.CA(), trustme.CA()
    write_certificates(tmp_path, old)
    credentials = Credentials(HttpClientConfig(tls_config=tls_settings(tmp_path)))
    before = credentials.tls
    new.issue_cert("client.example").cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")

    assert credentials.tls is before
    assert credentials.tls is before
    assert len(caplog.records) == 1
    write_certificates(tmp_path, new)
    assert credentials.tls is not before


def test_certificates_are_loaded_again_until_they_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were renewed while no descriptor was left: the old ones were in force until they had expired."""
    monkeypatch.setattr(reread, "AGAIN_S", 0.0)
    write_certificates(tmp_path, trustme.CA())
    credentials = Credentials(HttpClientConfig(tls_config=tls_settings(tmp_path)))
    before = credentials.tls
    write_certificates(tmp_path, trustme.CA())
    with none_left():
        assert [credentials.tls, credentials.tls] == [before, before]
    assert credentials.tls is not before
    assert len(caplog.records) == 1


def test_a_token_is_read_again_until_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was rotated while no descriptor was left: the old one was in force for ever. One line of the log."""
    monkeypatch.setattr(reread, "AGAIN_S", 0.0)
    path = tmp_path / "token"
    path.write_text("old")
    token = TokenFile(str(path))
    path.write_text("a new one")
    with none_left():
        assert [token.token, token.token] == ["old", "old"]
    assert token.token == "a new one"  # noqa: S105 - of this test
    path.unlink()
    assert [token.token, token.token] == ["a new one"] * 2
    assert len(caplog.records) == 2


async def test_password_and_token_rotate(tmp_path: Path) -> None:
    """Each request shows what the file holds then; an empty file leaves the old secret in force."""
    secret = tmp_path / "secret"
    secret.write_text("one\n")
    password = Credentials(config_of(f"basic_auth: {{username: u, password_file: {secret}}}"))
    token = Credentials(config_of(f"token_file: {secret}"))
    assert password.headers == {"Authorization": f"Basic {b64encode(b'u:one').decode()}"}
    assert token.headers == {"Authorization": "Bearer one"}
    secret.write_text("second\n# a note that is no part of it\n")
    assert password.headers == {"Authorization": f"Basic {b64encode(b'u:second').decode()}"}
    assert token.headers == {"Authorization": "Bearer second"}
    secret.write_text("")
    assert token.headers == {"Authorization": "Bearer second"}
    assert Credentials(HttpClientConfig()).headers == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("token_file: /nonexistent", "cannot read token_file /nonexistent: No such file"),
        ("basic_auth: {username: u, password_file: /nonexistent}", r"cannot read basic_auth\.password_file"),
        ("basic_auth: {username: 'a:b', password_file: /x}", "must not contain a colon"),
        ("basic_auth: {username: u, password_file: /x}\ntoken_file: /x", "exclude each other"),
        ("tls_config: {ca_file: /nonexistent}", r"tls_config\.ca_file: cannot load certificates"),
        ("tls_config: {cert_file: /x}", "needed together"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, message: str) -> None:
    """Each wrong setting is refused with its key at the start."""
    with pytest.raises(ConfigError, match=message):
        Credentials(config_of(text))


@pytest.mark.parametrize("content", ["", "\n", "a\x00b", "\x1b[31m"])
def test_no_secret(tmp_path: Path, content: str) -> None:
    """An empty secret, or one that no header can carry, is refused."""
    (tmp_path / "token").write_text(content)
    with pytest.raises(ConfigError):
        TokenFile(str(tmp_path / "token"))


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("Bearer sécret", True),
        ("bearer  sécret ", True),
        ("Bearer s\udcc3\udca9cret", True),  # as aiohttp gives bytes that it cannot decode
        ("Bearer \udcff", False),
        ("Bearer ", False),
        ("Basic sécret", False),
        ("", False),
        ("\udcff", False),
    ],
)
def test_token_accepts(tmp_path: Path, header: str, accepted: bool) -> None:
    """Any bytes may stand in a header; none of them is an error of ours."""
    (tmp_path / "token").write_text("sécret\n")
    assert TokenFile(str(tmp_path / "token")).accepts(header) is accepted


def test_credentials_in_urls_are_redacted() -> None:
    """Neither in messages about a setting nor in log fields of an error."""
    assert redact("cannot reach http://u:p@am:9093/x and https://v:w@b") == (
        "cannot reach http://***@am:9093/x and https://***@b"
    )
    assert redact("http://u:p/w@am") == "http://***@am"
    assert redact("http://am:9093/x") == "http://am:9093/x"
    for url in ("http://u:secret@am:0", "ftp://u:secret@am", "http://u:sec/ret@am:port"):
        with pytest.raises(ValueError, match=r"\*\*\*@") as refused:
            check_url("alertmanagers", url)
        assert "sec" not in str(refused.value)
    assert describe(TimeoutError()) == "TimeoutError"
    assert describe(ConnectionResetError(errno.ECONNRESET, "")) == "connection reset by peer"
    assert describe(aiohttp.InvalidURL("http://u:p@am")) == "http://***@am"


async def test_a_failed_connection_has_the_kernels_error_message() -> None:
    """Host, port and reason, without what the library thinks of it."""
    port = reserved_port()
    async with HttpClient(HttpClientConfig()) as client:
        with pytest.raises(aiohttp.ClientConnectorError) as error:
            await client.get(f"http://127.0.0.1:{port}/")
    assert describe(error.value) == f"127.0.0.1:{port}: connection refused"
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    named = aiohttp.ClientConnectorDNSError(error.value._conn_key._replace(host="gpu-9"), unknown)
    assert describe(named) == "gpu-9: name or service not known"


async def test_an_answer_without_end() -> None:
    """Whoever has the port of a server does not fill our memory."""

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(bytes(1 << 16))

    app = web.Application()
    app.router.add_get("/", endless)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with HttpClient(HttpClientConfig(timeout_s=60)) as client:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            with pytest.raises(BodyTooLargeError, match="1000000 bytes"):
                async with client.get(url) as response:
                    await read_body(response, 1_000_000)
    finally:
        await runner.cleanup()


def test_no_answer_of_a_server_is_read_without_a_bound() -> None:
    """`read` of a response takes what comes until memory ends; `text` and `json` do so too, and raise for charsets
    that make no text."""
    unbounded = re.compile(r"await (?:response|answer)\.(?:read|text|json)\(")
    product = (
        p for p in ROOT.glob("*/fabricpulse/**/*.py") if p.relative_to(ROOT).parts[0] not in _NOT_INSTALLED
    )
    found = [str(path.relative_to(ROOT)) for path in product if unbounded.search(path.read_text())]
    assert not found, "use read_body"
