"""The HTTP server of a daemon, over real sockets."""

import asyncio
import base64
import gc
import os
import socket
import ssl
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import aiohttp
import bcrypt
import pytest
import trustme
from aiohttp import web
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from tests.unit.core.test_exposition import filled

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.web.listeners import parse_address
from fabricpulse.core.web.options import WebOptions
from fabricpulse.core.web.server import MetricsSource, WebServer
from fabricpulse.core.web.server_metrics import daemon_of
from fabricpulse.core.web.token_file import TokenFile
from fabricpulse.core.web.toolkit import WebConfig

BODY = b"fabricpulse_x 1\n"
LOCAL = WebOptions(("127.0.0.1:0",))


async def metrics(_: TextFormat) -> bytes:
    return BODY


@asynccontextmanager
async def serving(
    web_config: Path | None = None,
    life: Lifetime | None = None,
    source: MetricsSource = metrics,
    options: WebOptions = LOCAL,
) -> AsyncIterator[str]:
    """A running server; yields "127.0.0.1:PORT"."""
    options = replace(options, config=web_config)
    server = WebServer("test", life or Lifetime(), source, options, landing_links=[("/x", "<X>")])
    await server.start()
    try:
        yield f"127.0.0.1:{server.addresses[0][1]}"
    finally:
        await server.stop()


async def test_metrics_plain_and_compressed() -> None:
    """/metrics is the source's bytes and those of the process, compressed for who asks for it."""
    async with serving() as address, aiohttp.ClientSession(auto_decompress=False) as session:
        async with session.get(f"http://{address}/metrics", headers={"Accept-Encoding": "identity"}) as plain:
            assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert "Content-Encoding" not in plain.headers
            body = await plain.read()
            assert body.startswith(BODY)
            assert b"\nprocess_resident_memory_bytes " in body
        async with session.get(f"http://{address}/metrics", headers={"Accept-Encoding": "gzip"}) as packed:
            assert packed.headers["Content-Encoding"] == "gzip"
            assert (await packed.read())[:2] == b"\x1f\x8b"
    async with (
        serving() as address,
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/metrics") as response,
    ):
        assert (await response.read()).startswith(BODY)


async def test_every_daemon_tells_of_itself() -> None:
    """Which fabricpulse it is, and how its server fares; counters are there at 0 before anything has happened."""
    async with serving() as address, aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.get(f"http://{address}/metrics") as response:
                text = await response.text()
    assert f'fabricpulse_build_info{{version="{version("fabricpulse")}",daemon="test",' in text
    assert 'fabricpulse_http_connections{phase="active"} 1\n' in text
    assert 'fabricpulse_http_responses_total{code="200"} 1\n' in text
    assert 'fabricpulse_http_responses_total{code="401"} 0\n' in text
    assert 'fabricpulse_http_connections_closed_total{reason="head_timeout"} 0\n' in text
    assert daemon_of("fabricpulse clocksync sidecar") == "clocksync-sidecar"


async def test_health_readiness_landing() -> None:
    """Healthy from the start, ready only when said so and not while stopping; the landing page links escaped names."""
    life = Lifetime()
    async with serving(life=life) as address, aiohttp.ClientSession(f"http://{address}") as session:

        async def status(path: str) -> int:
            async with session.get(path) as response:
                return response.status

        assert await status("/-/healthy") == 200
        assert await status("/-/ready") == 503
        life.ready()
        assert await status("/-/ready") == 200
        life.stop()
        assert await status("/-/ready") == 503
        assert await status("/absent") == 404
        async with session.get("/") as response:
            text = await response.text()
        assert response.content_type == "text/html"
        assert '<a href="/metrics">' in text
        assert "&lt;X&gt;" in text


async def test_reload() -> None:
    """POST /-/reload runs the hooks; a failure is told and GET is not offered."""
    life, calls = Lifetime(), []

    async def hook() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise UserError("bad file")

    life.on_reload(hook)
    async with serving(life=life) as address, aiohttp.ClientSession(f"http://{address}") as session:
        async with session.post("/-/reload") as good:
            assert good.status == 200
        async with session.post("/-/reload") as bad:
            assert bad.status == 500
            assert "bad file" in await bad.text()
        async with session.get("/-/reload") as wrong:
            assert wrong.status == 405
    assert len(calls) == 2


async def test_failing_scrape_is_one_failed_scrape(caplog: pytest.LogCaptureFixture) -> None:
    """A source that raises makes a 500 and the server lives on."""

    async def broken(_: TextFormat) -> bytes:
        raise RuntimeError("boom")

    async with serving(source=broken) as address, aiohttp.ClientSession(f"http://{address}") as session:
        for _ in range(2):
            async with session.get("/metrics") as response:
                assert response.status == 500
        async with session.get("/-/healthy") as response:
            assert response.status == 200
    assert "boom" in caplog.text


async def test_openmetrics_for_who_asks() -> None:
    """Prometheus' own header gets OpenMetrics, whole and with its end; the samples are those of the text format."""
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
    told = []

    async def source(text_format: TextFormat) -> bytes:
        told.append(text_format)
        return filled().render(text_format)

    async with serving(source=source) as address, aiohttp.ClientSession(f"http://{address}") as session:
        async with session.get("/metrics", headers={"Accept": accept}) as response:
            assert response.headers["Content-Type"] == TextFormat.OPENMETRICS.value
            assert response.headers["Vary"] == "Accept, Accept-Encoding"
            text = await response.text()
        async with session.get("/metrics") as response:
            assert response.headers["Content-Type"] == TextFormat.PLAIN.value
            plain = await response.text()
    assert told == [TextFormat.OPENMETRICS, TextFormat.PLAIN]
    names = {family.name for family in openmetrics_families(text)}
    assert {"fabricpulse_test_sent", "process_cpu_seconds", "process_open_fds"} <= names

    def series(exposition: str) -> list[str]:
        return [row.rpartition(" ")[0] for row in exposition.splitlines() if not row.startswith("#")]

    assert series(text) == series(plain)


async def test_telemetry_path() -> None:
    """The metrics are where the option says and nowhere else; the landing page knows. At / there is no such page."""
    options = replace(LOCAL, telemetry_path="/telemetry")
    async with serving(options=options) as address, aiohttp.ClientSession(f"http://{address}") as session:
        async with session.get("/telemetry") as response:
            assert (await response.read()).startswith(BODY)
        async with session.get("/metrics") as response:
            assert response.status == 404
        async with session.get("/") as response:
            assert '<a href="/telemetry">' in await response.text()
    options = replace(LOCAL, telemetry_path="/")
    async with serving(options=options) as address, aiohttp.ClientSession(f"http://{address}") as session:
        async with session.get("/") as response:
            assert (await response.read()).startswith(BODY)
        async with session.head("/") as response:
            assert response.status == 200


async def test_too_many_scrapes_at_a_time() -> None:
    """Above --web.max-requests it is 503 and the reason, for scrapes alone; a scrape that ends makes room."""
    entered, leave = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_: TextFormat) -> bytes:
        entered.release()
        await leave.wait()
        return BODY

    options = replace(LOCAL, max_requests=2)
    async with (
        serving(source=slow, options=options) as address,
        aiohttp.ClientSession(f"http://{address}") as session,
    ):

        async def scrape() -> int:
            async with session.get("/metrics") as response:
                return response.status

        running = [asyncio.create_task(scrape()) for _ in range(2)]
        for _ in running:
            await entered.acquire()
        async with session.get("/metrics") as response:
            assert response.status == 503
            assert "2 scrapes are being answered" in await response.text()
        async with session.get("/-/healthy") as response:
            assert response.status == 200
        leave.set()
        assert await asyncio.gather(*running) == [200, 200]
        assert await scrape() == 200


async def test_no_limit_of_scrapes() -> None:
    """--web.max-requests=0 is no limit."""
    async with (
        serving(options=replace(LOCAL, max_requests=0)) as address,
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/metrics") as response,
    ):
        assert response.status == 200


async def test_port_in_use() -> None:
    """A taken port is one sentence that names the address and the way out."""
    async with serving() as address:
        with pytest.raises(UserError) as caught:
            await WebServer("test", Lifetime(), metrics, WebOptions((address,))).start()

    assert str(caught.value) == (
        f"cannot listen on {address}: address already in use; choose another --web.listen-address"
    )


@pytest.mark.parametrize("address", ["9610", "h:port", "127.0.0.1:70000", "127.0.0.1:", ""])
def test_malformed_address(address: str) -> None:
    """What is not HOST:PORT is refused by name."""
    with pytest.raises(UserError, match="is not HOST:PORT"):
        parse_address(address)


@pytest.mark.parametrize(
    ("text", "parsed"), [(":9610", ("", 9610)), ("[::1]:80", ("::1", 80)), ("h0:1", ("h0", 1))]
)
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    """The forms that Prometheus' exporters take."""
    assert parse_address(text) == parsed


async def test_unknown_host() -> None:
    """A host name that does not resolve is a sentence."""
    with pytest.raises(UserError, match=r"cannot listen on nowhere\.invalid:1: "):
        await WebServer("test", Lifetime(), metrics, WebOptions(("nowhere.invalid:1",))).start()


# TLS and passwords.


def write_certificate(folder: Path, authority: trustme.CA, name: str = "localhost") -> None:
    """cert.pem and key.pem, replaced as a certificate manager does it."""
    certificate = authority.issue_cert(name, "127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(folder / "new-cert.pem")
    certificate.private_key_pem.write_to_path(folder / "new-key.pem")
    (folder / "new-cert.pem").replace(folder / "cert.pem")
    (folder / "new-key.pem").replace(folder / "key.pem")


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def tls_config(tmp_path: Path, authority: trustme.CA) -> Path:
    write_certificate(tmp_path, authority)
    path = tmp_path / "web.yml"
    path.write_text("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n")
    return path


def client_context(authority: trustme.CA, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate:
        certificate.configure_cert(context)
    return context


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


async def test_half_a_rotation_harms_nothing(tls_config: Path, authority: trustme.CA) -> None:
    """A certificate whose key has not come yet leaves the old pair in force; the key completes the rotation."""
    context = client_context(authority)
    other = authority.issue_cert("localhost", "127.0.0.1")
    async with serving(tls_config) as address:
        first = await peer_serial(address, context)

        other.cert_chain_pems[0].write_to_path(tls_config.parent / "cert.pem")
        assert await peer_serial(address, context) == first

        other.private_key_pem.write_to_path(tls_config.parent / "key.pem")
        assert await peer_serial(address, context) != first


async def get_with(address: str, context: ssl.SSLContext) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://{address}/metrics", ssl=context) as response,
    ):
        return response.status


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


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def hash_of(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


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


async def test_hundreds_may_connect_at_once() -> None:
    """While the daemon is busy: this loop accepts nobody until all have connected."""
    async with serving() as address:
        host, _, port = address.partition(":")
        clients = [socket.create_connection((host, int(port)), timeout=0.9) for _ in range(300)]
    for client in clients:
        client.close()


def test_a_service_may_have_more_open_files_than_it_begins_with() -> None:
    """systemd's soft limit is 1,024; the hard one counts."""
    child = (
        "import resource as r\n"
        "from fabricpulse.core.descriptors import raise_file_limit\n"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (256, hard))\n"
        "raise_file_limit()\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE)[0] == (65536 if hard == r.RLIM_INFINITY else min(hard, 65536)))\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (128, 300))\n"
        "raise_file_limit()\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE)[0])\n"
    )
    out = subprocess.run([sys.executable, "-I", "-c", child], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["True", "300"]


async def test_a_stopped_server_is_gone() -> None:
    """Nothing keeps it: what its handlers hold, native objects say, goes with it."""

    class Held:
        async def metrics(self, _: TextFormat) -> bytes:
            return BODY

    async def use() -> weakref.ref[Held]:
        held = Held()
        async with serving(source=held.metrics):  # no request: aiohttp caches the handlers of the last ones
            pass
        return weakref.ref(held)

    watcher = await asyncio.create_task(use())
    await asyncio.sleep(0)
    gc.collect()
    assert watcher() is None
