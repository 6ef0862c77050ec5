"""TLS handshakes of one client hold nobody else up."""

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
from fabricpulse.core.web.server import WebServer
from fabricpulse.core.web.turns import Turns


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


def test_each_client_in_turn() -> None:
    """One with many waits behind its own, and has so many under way at most; who leaves is passed over."""
    turns: Turns[str] = Turns(at_once=2)
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        turns.add(name[0], name)
    turns.remove("b", "b1")
    turns.remove("b", "b1")
    turns.remove("d", "d1")
    assert [turns.take() for _ in range(5)] == ["a1", "b2", "c1", "a2", None]
    turns.done("c")
    assert turns.take() is None
    turns.done("a")
    assert [turns.take(), turns.take()] == ["a3", None]
    turns.done("a")
    turns.done("a")
    assert turns.take() == "a4"


async def test_handshakes_that_are_held_back_hold_nobody_up(tmp_path: Path) -> None:
    """A hundred of one address say one byte each: a few of them are begun, one in each round of the event loop, and
    another address is answered at once, long before any of them is late."""
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
        assert len(table._silent) == 100 - connections._HANDSHAKES_AT_ONCE
        for writer in held:
            writer.close()
    assert not table._handshakes


async def test_all_of_one_client_come_through(tmp_path: Path) -> None:
    """More at once than are under way at once: each is answered."""
    async with tls_server(tmp_path) as (table, port, context):

        async def connect() -> str:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname="localhost"
            )
            version = writer.get_extra_info("ssl_object").version()
            writer.close()
            return str(version)

        assert await asyncio.gather(*(connect() for _ in range(40))) == ["TLSv1.3"] * 40
    assert not table._turns._under_way
