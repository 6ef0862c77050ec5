"""Answers that are long in a large fleet, or under attack.

Who may read asks as often as he likes, on as many connections as he likes, and need not take what he asked for. So a
long document is made once for all who ask at that time, entry by entry so that others are answered meanwhile, it goes
out in parts that wait until they are taken, and all that is kept so has a bound: beyond it 503.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from aiohttp import web

MAX_BYTES = 64 << 20
# Below this an answer is made for each who asks.
_SMALL = 64 << 10
# Entries that are encoded at a time: some 3 ms.
_ENTRIES = 2_000
# What one connection is handed at a time.
_PART = 64 << 10
# A document that took long to make is given out for so many times as long.
_SPACING = 10


class _Body:
    """Bytes that are being sent, by so many."""

    def __init__(self, content: bytes, until: float) -> None:
        self.content = content
        self.until = until
        self.users = 0


class Answers:
    """Sends long answers. held : bytes of those that are not sent yet."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.held = 0
        self._max_bytes = max_bytes
        self._made: dict[str, _Body] = {}
        self._making: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def document(self, request: web.Request, make: Callable[[], Any]) -> web.StreamResponse:
        """`make()` as JSON, the same for all who ask for this path: a long one may be somewhat old.

        Raises HTTPServiceUnavailable.
        """
        async with self._making[request.path]:
            body = self._made.get(request.path)
            if body is None or time.monotonic() >= body.until:
                self._made.pop(request.path, None)
                self._check()
                begun = time.monotonic()
                content = b"".join([part async for part in _encoded(make())])
                if len(content) <= _SMALL:
                    return web.Response(body=content, content_type="application/json")
                now = time.monotonic()
                self._made[request.path] = body = _Body(content, now + _SPACING * (now - begun))
        return await self._send(request, body)

    async def content(self, request: web.Request, content: bytes) -> web.StreamResponse:
        """JSON for one request. Raises HTTPServiceUnavailable."""
        if len(content) <= _SMALL:
            return web.Response(body=content, content_type="application/json")
        self._check()
        return await self._send(request, _Body(content, 0.0))

    async def lines(self, request: web.Request, pages: AsyncIterator[bytes]) -> web.StreamResponse:
        """JSON lines, read a page at a time. Raises HTTPServiceUnavailable; where there is no room for a later page,
        the connection is reset: its client must not take a part for the whole."""
        self._check()
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        async for page in pages:
            if self.held and self.held + len(page) > self._max_bytes:
                if request.transport is not None:
                    request.transport.abort()
                raise ConnectionResetError("answers that are not sent yet fill the memory for them")
            self.held += len(page)
            try:
                view = memoryview(page)
                for start in range(0, len(view), _PART):
                    await answer.write(view[start : start + _PART])
                    await asyncio.sleep(0)
            finally:
                self.held -= len(page)
        await answer.write_eof()
        return answer

    def _check(self) -> None:
        if self.held >= self._max_bytes:
            text = "answers that are not sent yet fill the memory for them; try again later\n"
            raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "1"})

    async def _send(self, request: web.Request, body: _Body) -> web.StreamResponse:
        if not body.users:
            self.held += len(body.content)
        body.users += 1
        try:
            answer = web.StreamResponse()
            answer.content_type = "application/json"
            answer.content_length = len(body.content)
            await answer.prepare(request)
            if request.method != "HEAD":
                view = memoryview(body.content)
                for start in range(0, len(view), _PART):
                    await answer.write(view[start : start + _PART])
                    # A client that takes everything at once must not hold up the others.
                    await asyncio.sleep(0)
            await answer.write_eof()
            return answer
        finally:
            body.users -= 1
            if not body.users:
                self.held -= len(body.content)


async def _encoded(document: Any) -> AsyncIterator[bytes]:
    """JSON as `msgspec.json.encode` makes it, in parts with a turn for others between those of a long list."""
    if isinstance(document, dict):
        begin = b"{"
        for key, value in document.items():
            yield begin + msgspec.json.encode(key) + b":"
            async for part in _encoded(value):
                yield part
            begin = b","
        yield b"}" if document else b"{}"
    elif isinstance(document, list) and len(document) > _ENTRIES:
        begin = b"["
        for start in range(0, len(document), _ENTRIES):
            yield begin + msgspec.json.encode(document[start : start + _ENTRIES])[1:-1]
            begin = b","
            await asyncio.sleep(0)
        yield b"]"
    else:
        yield msgspec.json.encode(document)
