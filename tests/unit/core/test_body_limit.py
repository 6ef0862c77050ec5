"""How much of its clients' bodies a server keeps: of one route, of all requests together, of those that broke off."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tests.fixtures.waiting import until

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.web.body_limit import body_limit
from fabricpulse.core.web.options import WebOptions
from fabricpulse.core.web.server import WebServer

SMALL, LARGE, TOGETHER = 1_000, 400_000, 1 << 20


async def metrics(_: TextFormat) -> bytes:
    return b""


class Handlers:
    @body_limit(LARGE)
    async def large(self, request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    async def small(self, request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    @body_limit(100 << 20)
    async def huge(self, request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))


@asynccontextmanager
async def serving() -> AsyncIterator[WebServer]:
    options = WebOptions(("127.0.0.1:0",), max_request_bytes=TOGETHER)
    server, handlers = WebServer("test", Lifetime(), metrics, options, max_body=SMALL), Handlers()
    server.router.add_post("/large", handlers.large)
    server.router.add_post("/small", handlers.small)
    server.router.add_post("/huge", handlers.huge)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def chunks(size: int) -> bytes:
    """A body of `size` bytes in chunks, without its end."""
    whole, rest = divmod(size, 10_000)
    pieces = [b"2710\r\n" + b"x" * 10_000 + b"\r\n"] * whole
    return b"".join(pieces) + (b"%x\r\n" % rest + b"x" * rest + b"\r\n" if rest else b"")


def head(path: str, length: int | None) -> bytes:
    kind = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{kind}\r\n\r\n".encode()


async def connect(
    server: WebServer, client: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*server.addresses[0], local_addr=(client, 0))


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and body of the next answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
    return int(head.split()[1]), (await reader.readexactly(int(fields["content-length"]))).decode()


async def ask(server: WebServer, path: str, size: int, *, chunked: bool) -> tuple[int, str]:
    reader, writer = await connect(server)
    body = chunks(size) + b"0\r\n\r\n" if chunked else b"x" * size
    writer.write(head(path, None if chunked else size) + body)
    try:
        return await answer(reader)
    finally:
        writer.close()


@pytest.mark.parametrize("chunked", [False, True])
async def test_each_route_has_its_limit(chunked: bool) -> None:
    """What one handler says holds for it alone; what none says is the server's; neither depends on how it is sent."""
    async with serving() as server:
        for path, most in (("/large", LARGE), ("/small", SMALL)):
            assert await ask(server, path, most, chunked=chunked) == (200, str(most))
            status, text = await ask(server, path, most + 1, chunked=chunked)
            assert (status, text.split(",")[0]) == (413, f"a body may have {most} bytes here")
        assert (await ask(server, "/nowhere", SMALL + 1, chunked=chunked))[0] == 413
        assert (await ask(server, "/nowhere", SMALL, chunked=chunked))[0] == 404


async def test_a_body_that_can_never_have_room_is_too_large() -> None:
    """413, which nobody sends again, and not 503; the text names the option."""
    async with serving() as server:
        assert await ask(server, "/huge", TOGETHER // 2, chunked=False) == (200, str(TOGETHER // 2))
        status, text = await ask(server, "/huge", TOGETHER // 2 + 1, chunked=False)
        assert (status, "--web.max-request-bytes" in text) == (413, True)


async def test_bodies_together_have_a_limit() -> None:
    """The greedy client's largest body makes room: 503, with the limit and the option that sets it, and its connection
    ends. What others send meanwhile is answered."""
    async with serving() as server:
        table = server.connections.table
        greedy = [await connect(server, "127.0.0.2") for _ in range(4)]
        for count, (_, writer) in enumerate(greedy[:3], start=1):
            writer.write(head("/large", None) + chunks(300_000))
            await until(lambda count=count: table.buffered > count * 300_000)  # type: ignore[misc]
        _, writer = greedy[3]
        writer.write(head("/large", None) + chunks(LARGE))
        refused = {asyncio.create_task(answer(reader)) for reader, _ in greedy}
        done, waiting = await asyncio.wait(refused, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [
            (
                503,
                f"requests in work have {TOGETHER} bytes together, the limit of --web.max-request-bytes; "
                "try again later\n",
            )
        ] * len(done)
        assert table.buffered <= TOGETHER
        assert await ask(server, "/small", SMALL, chunked=True) == (200, str(SMALL))
        assert server.responses[503] == server.connections.closed["buffer_limit"] == len(done)
        assert len(table) <= 4 - len(done) + 1
        for task in waiting:
            task.cancel()
        for _, writer in greedy:
            writer.close()
        await until(lambda: not table.buffered)
        assert await ask(server, "/large", LARGE, chunked=True) == (200, str(LARGE))


async def test_a_body_that_broke_off_is_not_kept() -> None:
    """Nor until garbage is looked for, which a daemon that handles few, large bodies does seldom."""
    async with serving() as server:
        table = server.connections.table
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(8):
                _, writer = await connect(server)
                writer.write(head("/large", None) + chunks(300_000))
                await until(lambda: table.buffered > 300_000)
                writer.close()
                await until(lambda: not len(table))
            assert tracemalloc.get_traced_memory()[0] - before < 600_000
        finally:
            tracemalloc.stop()
            gc.enable()
