"""TLS handshakes of one client do not delay those of others."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import trustme
from tests.unit.core.web_serving import LOCAL, client_context, metrics, write_certificate

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.web import connections
from fabricpulse.core.web.fair_queue import FairQueue
from fabricpulse.core.web.server import WebServer


@asynccontextmanager
async def tls_server(folder: Path) -> AsyncIterator[tuple[connections.Connections, int, ssl.SSLContext]]:
    """Its connections and port, and the context of its clients."""
    authority = trustme.CA()
    write_certificate(folder, authority)
    config = folder / "web.yml"
    config.write_text("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n")
    server = WebServer("test", Lifetime(), metrics, replace(LOCAL, config=config))
    await server.start()
    try:
        assert server._connections is not None
        yield server._connections, server.addresses[0][1], client_context(authority)
    finally:
        await server.stop()


def test_round_robin_over_clients() -> None:
    """A client with many items delays its own and has a limited number in progress; removed items are skipped."""
    queue: FairQueue[str] = FairQueue(limit=2)
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        queue.add(name[0], name)
    queue.remove("b", "b1")
    queue.remove("b", "b1")
    queue.remove("d", "d1")
    assert [queue.take() for _ in range(5)] == ["a1", "b2", "c1", "a2", None]
    queue.done("c")
    assert queue.take() is None
    queue.done("a")
    assert [queue.take(), queue.take()] == ["a3", None]
    queue.done("a")
    queue.done("a")
    assert queue.take() == "a4"


async def test_unfinished_handshakes_do_not_delay_another_client(tmp_path: Path) -> None:
    """A hundred connections of one address send one byte each: a few handshakes begin, one in each iteration of the
    event loop, and another address is served at once, long before any of them times out."""
    loop, rounds, begun = asyncio.get_running_loop(), [0], []

    def count() -> None:
        rounds[0] += 1
        loop.call_soon(count)

    def noted(connection: connections._Connection) -> None:
        begun.append(rounds[0])
        begin(connection)

    async with tls_server(tmp_path) as (table, port, context):
        begin = table._begin
        table._begin = noted  # type: ignore[method-assign]
        held = []
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            held.append(writer)
        count()
        for writer in held:
            writer.write(b"\x16")
        _, other = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost", local_addr=("127.0.0.2", 0)
        )
        other.close()
        for _ in range(2_000):  # rounds of the event loop
            await asyncio.sleep(0)
        count = lambda: None  # noqa: E731 - no more rounds
        assert len(begun) == len(set(begun)) == connections._HANDSHAKES_AT_ONCE + 1
        assert len(table._waiting) == 100 - connections._HANDSHAKES_AT_ONCE
        for writer in held:
            writer.close()
    assert not table._handshakes


async def test_all_connections_of_one_client_are_served(tmp_path: Path) -> None:
    """Also when there are more at a time than handshakes in progress."""
    async with tls_server(tmp_path) as (table, port, context):

        async def connect() -> str:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname="localhost"
            )
            version = writer.get_extra_info("ssl_object").version()
            writer.close()
            return str(version)

        assert await asyncio.gather(*(connect() for _ in range(40))) == ["TLSv1.3"] * 40
    assert not table._handshake_queue._in_progress
