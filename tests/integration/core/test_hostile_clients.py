"""A daemon's server among clients that are slow, many or broken: who is not still gets an answer."""

import asyncio
import errno
import io
import logging
import random
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

import aiohttp
import pytest
import trustme
from aiohttp import web
from tests.fixtures.waiting import until
from tests.fixtures.web.hostile_clients import IDLE, SLOW, hostile_clients

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.web.connection_table import Phase
from fabricpulse.core.web.limits import Limits
from fabricpulse.core.web.options import WebOptions
from fabricpulse.core.web.request_guard import query_int
from fabricpulse.core.web.server import WebServer


async def metrics(_: TextFormat) -> bytes:
    return b"fabricpulse_x 1\n"


@asynccontextmanager
async def serving(limits: Limits | None = None, max_body: int = 1 << 20) -> AsyncIterator[WebServer]:
    """A server like the receiver's: webhook, kill switch, metrics."""
    server = WebServer(
        "test", Lifetime(), metrics, WebOptions(("127.0.0.1:0",)), limits=limits, max_body=max_body
    )

    async def webhook(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    async def events(request: web.Request) -> web.Response:
        return web.Response(text=str(query_int(request, "limit", 100, 1, 1000)))

    async def fails(_: web.Request) -> web.Response:
        raise ZeroDivisionError("ours")

    server.router.add_post("/api/v1/alertmanager", webhook)
    server.router.add_post("/api/v1/pause", webhook)
    server.router.add_get("/api/v1/events", events)
    server.router.add_get("/fails", fails)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ask(server: WebServer, method: str, path: str, body: bytes = b"", source: str = "127.0.0.1") -> int:
    """The status of one request on a connection of its own."""
    host, port = server.addresses[0]
    connector = aiohttp.TCPConnector(local_addr=(source, 0))
    async with (
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session,
        session.request(
            method, f"http://{host}:{port}{path}", data=io.BytesIO(body) if body else None
        ) as response,
    ):
        await response.read()
        return response.status


async def raw(server: WebServer, data: bytes) -> bytes:
    """The first line of what the server says to these bytes."""
    reader, writer = await asyncio.open_connection(*server.addresses[0])
    writer.write(data)
    answer = await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("connections", "source"),
    [(1_024, "127.0.0.2"), (1_024, "127.0.0.1"), (16_384, "127.0.0.2")],
    ids=["few descriptors", "same address", "many descriptors"],
)
async def test_2000_idle_and_1200_slow(
    connections: int, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every scrape, webhook and kill switch is answered, and the log stays readable."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4 * (IDLE + SLOW):
        pytest.skip("hardware: the limit of open files is below what both sides of the test need")
    limits = Limits(connections=connections, per_client=connections // 2, head_s=60, body_s=60)
    async with (
        serving(limits) as server,
        hostile_clients(server.addresses[0], source=source) as clients,
    ):
        assert len(clients) == IDLE + SLOW
        for _ in range(10):
            assert await ask(server, "GET", "/metrics") == 200
            assert await ask(server, "POST", "/api/v1/alertmanager", b"x" * 100_000) == 200
            assert await ask(server, "POST", "/api/v1/pause", b"{}") == 200
        assert len(server.connections.table) <= connections
        expected = max(0, IDLE + SLOW - connections // 2)
        assert sum(server.connections.closed.values()) >= expected
    assert len(caplog.records) < 20


async def test_late_clients_are_let_go() -> None:
    """Half a head, half a body, and nothing: each ends within its time, those that began with a 408. Who sent nothing
    has no answer to anything: it would be taken for that to the next request."""
    limits = Limits(head_s=0.5, body_s=0.5, idle_s=1.0)
    async with serving(limits) as server, hostile_clients(server.addresses[0], idle=10, slow=30) as clients:
        loop = asyncio.get_running_loop()
        answers = await asyncio.gather(*(asyncio.wait_for(loop.sock_recv(c, 100), 60) for c in clients))
        assert answers[:10] == 10 * [b""]
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers[10:])
        # On a busy machine a body may come so late that its head was late already.
        closed = server.connections.closed
        assert closed["head_timeout"] >= 20
        assert closed["head_timeout"] + closed["body_timeout"] == closed.total() == 40
        async with aiohttp.ClientSession() as session:
            host, port = server.addresses[0]
            async with session.get(f"http://{host}:{port}/metrics"):
                pass
            await until(lambda: not len(server.connections.table))
        assert server.connections.closed["idle_timeout"] == 1


async def test_a_silent_connection_costs_a_socket_only() -> None:
    """No task, no transport and no protocol object: others wait in the queue for what each of thousands costs. It is
    counted, has its time like others, and is gone when its client is.
    """
    async with serving(Limits(head_s=60)) as server:
        before = len(asyncio.all_tasks())
        async with hostile_clients(server.addresses[0], idle=200, slow=0):
            await until(lambda: server.connections.table.count(Phase.HEAD) == 200)
            assert len(asyncio.all_tasks()) == before
            assert server.connections._by_handler == {}
            assert await ask(server, "GET", "/metrics") == 200
        await until(lambda: not len(server.connections.table))
        assert not server.connections._waiting
        assert server.connections.closed.total() == 0


async def test_a_client_that_does_not_read() -> None:
    """Its answer does not stay in memory for ever; one that reads slowly but reads gets all of it."""
    big = b"x" * (16 << 20)

    async def large(_: TextFormat) -> bytes:
        return big

    limits = Limits(write_s=1.0, min_rate=1 << 20)
    server = WebServer("test", Lifetime(), large, WebOptions(("127.0.0.1:0",)), limits=limits)
    await server.start()
    try:
        reader, writer = await asyncio.open_connection(*server.addresses[0], limit=1 << 10)
        _, stuck_writer = await asyncio.open_connection(*server.addresses[0], limit=1 << 10)
        for one in (writer, stuck_writer):
            one.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: identity\r\n\r\n")
        read = 0
        while read < len(big):
            read += len(await asyncio.wait_for(reader.read(1 << 18), 60))
            await asyncio.sleep(0.02)
        await until(lambda: server.connections.closed["write_timeout"] == 1)
        writer.close()
        stuck_writer.close()
    finally:
        await server.stop()


async def test_many_clients_that_do_not_read() -> None:
    """Their answers do not fill the memory, and others are answered."""
    big = b"x" * (4 << 20)

    async def large(_: TextFormat) -> bytes:
        return big

    limits = Limits(write_s=60.0, unsent_bytes=16 << 20)
    server = WebServer("test", Lifetime(), large, WebOptions(("127.0.0.1:0",)), limits=limits)
    await server.start()
    writers = []
    try:
        for _ in range(100):
            _, writer = await asyncio.open_connection(*server.addresses[0], limit=1 << 10)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: identity\r\n\r\n")
            writers.append(writer)
        await until(lambda: server.responses[200] + server.connections.closed["unsent_limit"] >= 97)
        unsent = [connection.unsent() for connection in server.connections._by_handler.values()]
        assert sum(unsent) <= limits.unsent_bytes
        assert await ask(server, "GET", "/metrics", source="127.0.0.2") == 200
    finally:
        for writer in writers:
            writer.close()
        await server.stop()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"POST /api/v1/alertmanager HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /api/v1/alertmanager HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n", 413),
        (
            b"POST /api/v1/alertmanager HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
            415,
        ),
        (b"GET /api/v1/events?limit=%C2%B2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        (b"GET /api/v1/events?limit=\xb2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        (b"GET /api/v1/events?limit=1_0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        (b"GET /api/v1/events?limit=0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        (b"GET /api/v1/events?limit=7 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: [::\r\nConnection: close\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\nConnection: close\r\n\r\n", 200),
    ],
)
async def test_malformed_requests(
    request_bytes: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What a client sends wrong is its own fault: an answer of 4xx, no traceback, one line at most."""
    async with serving() as server:
        answer = await raw(server, request_bytes)
        assert answer.split(b" ", 2)[1] == str(status).encode(), answer
        assert server.responses[status] == 1
        for _ in range(50):
            await raw(server, request_bytes)
        assert await ask(server, "GET", "/metrics") == 200
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) <= 1
    assert not any(record.exc_info for record in lines)


async def test_our_own_fault_is_a_500_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that raises is logged with its traceback, not each time that somebody asks for it."""
    async with serving() as server:
        for _ in range(20):
            assert await ask(server, "GET", "/fails") == 500
        assert server.responses[500] == 20
    assert len([record for record in caplog.records if record.exc_info]) == 1
    assert "ZeroDivisionError" in caplog.text


async def test_chunked_bodies_are_counted() -> None:
    """Bodies without a length fill the memory for requests only up to its limit; the greedy client loses its own."""
    async with serving(max_body=8 << 20) as server:
        server.connections.table.limits = Limits(buffered_bytes=20 << 20)
        head = b"POST /api/v1/alertmanager HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        piece = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
        writers = []
        for _ in range(8):
            _, writer = await asyncio.open_connection(
                *server.addresses[0], local_addr=("127.0.0.2", 0), limit=1 << 10
            )
            writers.append(writer)
            writer.write(head + 6 * piece)
        await until(lambda: server.connections.closed["buffer_limit"] > 0)
        assert server.connections.table.buffered <= 20 << 20
        assert await ask(server, "POST", "/api/v1/alertmanager", b"x" * (4 << 20)) == 200
        assert await ask(server, "POST", "/api/v1/alertmanager", b"x" * (9 << 20)) == 413
        for writer in writers:
            writer.close()


class Exhausted(socket.socket):
    """A listening socket whose process has run out of descriptors for a while."""

    failures = 0

    @classmethod
    def listening(cls) -> Self:
        """On a free port."""
        listener = cls(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        return listener

    def accept(self) -> tuple[socket.socket, object]:
        if Exhausted.failures:
            Exhausted.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_out_of_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    """Accepting pauses instead of spinning, says so once, and an idle connection gives its descriptor back."""
    listener = Exhausted.listening()
    async with serving() as server:
        server.connections.listen(listener)
        async with hostile_clients(server.addresses[0], idle=3, slow=0):
            await until(lambda: len(server.connections.table) == 3)
            Exhausted.failures = 2
            _, writer = await asyncio.open_connection(*listener.getsockname())
            await until(lambda: server.connections.exhausted == 2 and len(server.connections.table) == 2)
            writer.close()
    assert server.connections.exhausted == 2
    assert server.connections.closed["no_descriptors"] == 2
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == 1


async def test_silent_clients_take_descriptors_for_a_moment_only() -> None:
    """One is dropped for each accept that fails: with a pause after each, sixty kept all others out for 12 s."""
    listener = Exhausted.listening()
    async with serving() as server:
        server.connections.listen(listener)
        async with hostile_clients(server.addresses[0], idle=60, slow=0):
            await until(lambda: len(server.connections.table) == 60)
            Exhausted.failures = 60
            _, writer = await asyncio.open_connection(*listener.getsockname())
            await until(lambda: len(server.connections.table) == 1, 6.0, "all are dropped")
            writer.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://HOST"}, 200),
        ({"Origin": "http://HOST", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://HOST.evil.example"}, 403),
    ],
)
async def test_pages_of_other_sites_change_nothing(headers: dict[str, str], status: int) -> None:
    """A browser would send the operator's password along; programs name no origin, and reading is nobody's harm."""
    async with serving() as server, aiohttp.ClientSession() as session:
        host, port = server.addresses[0]
        sent = {name: value.replace("HOST", f"{host}:{port}") for name, value in headers.items()}
        async with session.post(f"http://{host}:{port}/api/v1/pause", data=b"{}", headers=sent) as response:
            assert response.status == status
        async with session.get(f"http://{host}:{port}/metrics", headers=sent) as response:
            assert response.status == 200


async def test_tls_handshakes_that_never_end(tmp_path: Path) -> None:
    """Connections that do not begin a handshake, or send rubbish, make room as well; nothing stays behind."""
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    server = WebServer(
        "test",
        Lifetime(),
        metrics,
        WebOptions(("127.0.0.1:0",), config=tmp_path / "web.yml"),
        limits=Limits(connections=100, per_client=50),
    )
    await server.start()
    try:
        async with hostile_clients(server.addresses[0], idle=300, slow=100):
            for _ in range(5):
                async with (
                    aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session,
                    session.get(f"https://127.0.0.1:{server.addresses[0][1]}/metrics", ssl=trust) as response,
                ):
                    assert response.status == 200
            assert len(server.connections.table) <= 100
            await until(lambda: server.connections.closed["handshake_failed"] > 0)
        await until(lambda: not len(server.connections.table))
    finally:
        await server.stop()


async def test_mutated_requests(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is changed in requests: no 5xx, no traceback, and the server goes on."""
    rng = random.Random(1)
    good = [
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain;q=0.5\r\nAccept-Encoding: gzip\r\n\r\n",
        b"GET /api/v1/events?limit=10&a=%20 HTTP/1.1\r\nHost: x\r\nAuthorization: Basic dTpw\r\n\r\n",
        b"POST /api/v1/alertmanager HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /api/v1/alertmanager HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ]
    pieces = [
        b"\r\n",
        b"\0",
        b"\xff\xfe",
        b"%",
        b"%00",
        b"\xc2\xb2",
        b" ",
        b":",
        b"9" * 30,
        b"-1",
        b";q=",
        b"//",
        b"?",
    ]
    async with serving(Limits(head_s=0.5, body_s=0.5)) as server:

        async def send(data: bytes) -> None:
            reader, writer = await asyncio.open_connection(*server.addresses[0])
            writer.write(data)
            with suppress(ConnectionError):
                await asyncio.wait_for(reader.read(1 << 16), 60)
            writer.close()

        for _ in range(40):
            batch = []
            for _ in range(50):
                data = bytearray(rng.choice(good))
                for _ in range(rng.randrange(1, 4)):
                    at = rng.randrange(len(data))
                    if rng.random() < 0.5:
                        data[at : at + rng.randrange(3)] = rng.choice(pieces)
                    else:
                        data[at] = rng.randrange(256)
                batch.append(send(bytes(data)))
            await asyncio.gather(*batch)
        assert await ask(server, "GET", "/metrics") == 200
        assert sum(count for code, count in server.responses.items() if code >= 500) == 0
        assert server.responses[400] > 100
    assert not any(record.exc_info for record in caplog.records)
