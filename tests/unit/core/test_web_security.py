"""Certificates, passwords and tokens of a daemon's HTTP server, over real sockets."""

import asyncio
import os
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from aiohttp import web
from tests.fixtures.descriptors import none_left
from tests.fixtures.web.credentials import basic
from tests.unit.core.web_serving import (
    BODY,
    LOCAL,
    client_context,
    get_with,
    hash_of,
    metrics,
    serving,
    write_certificate,
)

from fabricpulse.core import reread
from fabricpulse.core.config import load_config
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.web.options import parse_address
from fabricpulse.core.web.server import WebServer
from fabricpulse.core.web.token_file import TokenFile
from fabricpulse.core.web.toolkit import WebConfig


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def tls_config(tmp_path: Path, authority: trustme.CA) -> Path:
    write_certificate(tmp_path, authority)
    path = tmp_path / "web.yml"
    path.write_text("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n")
    return path


async def peer_serial(address: str, context: ssl.SSLContext, server_hostname: str = "localhost") -> str:
    """Serial number of the certificate that the server shows."""
    host, port = parse_address(address)
    _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=server_hostname)
    serial = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    await writer.wait_closed()
    return str(serial)


async def test_tls_serves_and_rotates(tls_config: Path, authority: trustme.CA) -> None:
    """The next handshake after a new certificate has been written gets it, with a server name or by address."""
    context = client_context(authority)
    async with serving(tls_config) as address:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://{address}/metrics", ssl=context) as response,
        ):
            assert (await response.read()).startswith(BODY)
        first = await peer_serial(address, context)
        assert await peer_serial(address, context) == first

        write_certificate(tls_config.parent, authority)

        second = await peer_serial(address, context)
        assert second != first
        assert await peer_serial(address, context, "127.0.0.1") == second


async def test_half_a_rotation_keeps_the_old_certificates(tls_config: Path, authority: trustme.CA) -> None:
    """A certificate whose key has not come yet leaves the old pair in force; the key completes the rotation."""
    context = client_context(authority)
    other = authority.issue_cert("localhost", "127.0.0.1")
    async with serving(tls_config) as address:
        first = await peer_serial(address, context)

        other.cert_chain_pems[0].write_to_path(tls_config.parent / "cert.pem")
        assert await peer_serial(address, context) == first

        other.private_key_pem.write_to_path(tls_config.parent / "key.pem")
        assert await peer_serial(address, context) != first


async def test_client_certificates(tls_config: Path, authority: trustme.CA) -> None:
    """Only a certificate of the listed authority with a listed name gets in; an authority taken off is out at once."""
    authority.cert_pem.write_to_path(tls_config.parent / "ca.pem")
    tls_config.write_text(
        "tls_server_config:\n"
        "  cert_file: cert.pem\n"
        "  key_file: key.pem\n"
        "  client_auth_type: RequireAndVerifyClientCert\n"
        "  client_ca_file: ca.pem\n"
        "  client_allowed_sans: [prometheus.example]\n"
    )
    stranger = trustme.CA(key_type=trustme.KeyType.ECDSA)
    good = client_context(authority, authority.issue_cert("prometheus.example"))
    async with serving(tls_config) as address:
        assert await get_with(address, good) == 200
        assert (
            await get_with(address, client_context(authority, authority.issue_cert("other.example"))) == 403
        )
        for context in (
            client_context(authority),
            client_context(authority, stranger.issue_cert("prometheus.example")),
        ):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await get_with(address, context)

        stranger.cert_pem.write_to_path(tls_config.parent / "ca.pem")
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await get_with(address, good)
        assert (
            await get_with(address, client_context(authority, stranger.issue_cert("prometheus.example")))
            == 200
        )


async def test_basic_authentication(tmp_path: Path) -> None:
    """Known user and password get in, everything else is 401; a changed file counts from the next request on."""
    path = tmp_path / "web.yml"
    path.write_text(
        f"basic_auth_users: {{prom: '{hash_of('secret')}'}}\nhttp_server_config: {{headers: {{X-A: b}}}}\n"
    )
    async with serving(path) as address, aiohttp.ClientSession(f"http://{address}") as session:

        async def get(user: str, password: str, target: str = "/metrics") -> int:
            header = basic(user, password)
            async with session.get(target, headers={"Authorization": header}) as response:
                assert response.headers["X-A"] == "b"
                return response.status

        assert await get("prom", "secret") == 200
        assert await get("prom", "secret") == 200
        assert await get("prom", "secret", "/absent") == 404
        assert await get("prom", "wrong") == 401
        assert await get("nobody", "secret") == 401
        assert await get("prom", "s" * 100) == 401
        for header in ("", "Basic", "Basic !!!", "Bearer x", "Basic eA=="):
            async with session.get("/metrics", headers={"Authorization": header}) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"] == 'Basic realm="fabricpulse"'
        async with session.post("/-/reload") as response:
            assert response.status == 401

        path.write_text(path.read_text().replace(path.read_text().split("'")[1], hash_of("changed")))
        assert await get("prom", "secret") == 401
        assert await get("prom", "changed") == 200


async def test_passwords_and_a_token_of_the_daemon(tmp_path: Path) -> None:
    """Where the daemon asks for its token, no password is asked for as well: a request shows one of them."""
    path, token_file = tmp_path / "web.yml", tmp_path / "token"
    path.write_text(f"basic_auth_users: {{prom: '{hash_of('secret')}'}}\n")
    token_file.write_text("t0ken")
    token = TokenFile(str(token_file))

    async def api(request: web.Request) -> web.Response:
        shown = token.accepts(request.headers.get("Authorization", ""))
        return web.Response(status=200 if shown else 401)

    options = replace(LOCAL, config=path)
    server = WebServer(
        "test", Lifetime(), metrics, options, own_authentication=lambda r: r.match_info.handler == api
    )
    server.router.add_post("/api", api)
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.addresses[0][1]}") as session:

            async def ask(method: str, target: str, header: str) -> int:
                async with session.request(method, target, headers={"Authorization": header}) as response:
                    return response.status

            password = basic("prom", "secret")
            assert await ask("POST", "/api", "Bearer t0ken") == 200
            assert await ask("POST", "/api", password) == 401
            assert await ask("GET", "/metrics", password) == 200
            assert await ask("GET", "/metrics", "Bearer t0ken") == 401
            assert await ask("POST", "/api/", "Bearer t0ken") == 401
            assert await ask("GET", "/%61pi", "") == 401
    finally:
        await server.stop()


async def test_bad_change_keeps_the_old_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that has become invalid, or asks for what cannot change, is logged and the old one holds."""
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{prom: '{hash_of('secret')}'}}\n")
    config = WebConfig.load(path)
    users = config.content.basic_auth_users

    for text in ("basic_auth_userz: {}", "tls_server_config: {cert_file: a, key_file: b}"):
        path.write_text(text)
        config.refresh()
        assert config.content.basic_auth_users == users
        assert "the old one stays in force" in caplog.text
        caplog.clear()
        config.refresh()
        assert not caplog.text


def test_a_change_is_read_again_until_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords were changed while no descriptor was left: the old ones were in force for ever."""
    monkeypatch.setattr(reread, "AGAIN_S", 0.0)
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{prom: '{hash_of('secret')}'}}\n")
    config = WebConfig.load(path)
    path.write_text(f"basic_auth_users: {{grafana: '{hash_of('other')}'}}\n")
    with none_left():
        config.refresh()
        assert list(config.content.basic_auth_users) == ["prom"]
    config.refresh()
    assert list(config.content.basic_auth_users) == ["grafana"]


def test_a_change_while_it_is_read_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stamped after it had been read: what replaced it in between was never read."""
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{one: '{hash_of('secret')}'}}\n")
    config = WebConfig.load(path)

    def replaced_meanwhile(*parts: Any) -> Any:
        content = load_config(*parts)
        path.write_text(f"basic_auth_users: {{the_third: '{hash_of('secret')}'}}\n")
        return content

    path.write_text(f"basic_auth_users: {{second: '{hash_of('secret')}'}}\n")
    with monkeypatch.context() as patched:
        patched.setattr("fabricpulse.core.web.toolkit.load_config", replaced_meanwhile)
        config.refresh()
    assert list(config.content.basic_auth_users) == ["second"]
    config.refresh()
    assert list(config.content.basic_auth_users) == ["the_third"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tls_server_config: {cert_file: a}", "are needed together"),
        ("tls_server_config: {key: a}", "are needed together"),
        ("tls_server_config: {cert_file: a, key_file: b}", "cannot load the certificates"),
        ("tls_server_config: {client_auth_type: RequestClientCert}", "need a server certificate"),
        ("tls_server_config: {cert: a, key: b, client_ca: c}", "without client_auth_type"),
        ("tls_server_config: {cert: a, key: b, cipher_suites: [TLS_X]}", "unknown cipher 'TLS_X'"),
        ("tls_server_config: {cert: a, key: b, curve_preferences: [CurveP257]}", "curve_preferences"),
        ("tls_server_config: {cert: a, key: b, min_version: TLS10, max_version: TLS11}", "cannot be offered"),
        (
            "http_server_config: {headers: {X-Frame-Options: foo}}",
            "X-Frame-Options must be deny or sameorigin",
        ),
        ('http_server_config: {headers: {X-A: "b\\nSet-Cookie: c"}}', "control character"),
        ("rate_limit: {interval: 1x, burst: 1}", "no duration"),
        ("rate_limit: {interval: 1s, burst: -1}", "burst"),
        ("tls_server_config: {client_allowed_sans: [a]}", "client_allowed_sans needs"),
        ("tls_server_config: {min_version: TLS13, max_version: TLS12}", "min_version is above max_version"),
        ("basic_auth_users: {a: plain}", "must be a bcrypt hash"),
        ("basic_auth_user: {}", "did you mean 'basic_auth_users'"),
    ],
)
def test_bad_web_configuration(tmp_path: Path, text: str, words: str) -> None:
    """A file that cannot be honoured stops the daemon with a sentence."""
    path = tmp_path / "web.yml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=words) as caught:
        WebConfig.load(path)

    assert str(path) in str(caught.value)


def test_certificate_without_permission(tls_config: Path) -> None:
    """A key that may not be read is a sentence."""
    user = os.geteuid()
    (tls_config.parent / "key.pem").chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match="Permission denied"):
            WebConfig.load(tls_config)
    finally:
        os.seteuid(user)
