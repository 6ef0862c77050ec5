"""What happens to every request of a daemon, before and after its handler: bodies, errors, logs and counts.

    observe ─▶ authentication ─▶ read_body ─▶ handler

`observe` is outermost: nothing that a client sends ends in a traceback per request. `read_body` is innermost: a handler
is entered with a complete body, so that what it reserves is not held by clients that are slow.
"""

import asyncio
import logging
from collections import Counter

from aiohttp import http_exceptions, web
from aiohttp.typedefs import Handler

from fabricpulse.core.log import get_logger
from fabricpulse.core.log_limit import LogLimit
from fabricpulse.core.web.body_limit import body_limit_of
from fabricpulse.core.web.connections import Connections
from fabricpulse.core.web.limits import Limits

log = get_logger(__name__)

_INTERVAL_S = 60.0
_MOST_PATH = 100


class RequestGuard:
    """The middlewares of one server. responses : by status code, malformed requests included."""

    def __init__(self, max_body: int) -> None:
        self.responses: Counter[int] = Counter()
        self.connections: Connections | None = None
        self._max_body = max_body
        self._limit = LogLimit(_INTERVAL_S)
        # Not by getLogger, which would keep it, its filter and this server for ever.
        self.protocol_logger = logging.Logger(f"{__name__}.protocol")
        self.protocol_logger.parent = logging.getLogger(__name__)
        self.protocol_logger.setLevel(logging.DEBUG)  # aiohttp logs what is no HTTP at all at this level
        self.protocol_logger.addFilter(self._of_aiohttp)

    @web.middleware
    async def observe(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts the response, logs refusals, and makes a 500 of whatever a handler raises."""
        if self.connections is not None:
            self.connections.begin(request)
        try:
            response = _cross_site(request) or await handler(request)
        except web.HTTPException as raised:
            self._count(request, raised)
            raise
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if request.transport is None:
                return web.Response(status=499)  # the client has gone; nginx' code for it, which is not sent
            if self._limit.allows(f"500 {type(error).__name__}"):
                log.exception(
                    "request failed",
                    method=request.method,
                    path=request.path[:_MOST_PATH],
                    suppressed=self._limit.take_suppressed(),
                )
            response = web.Response(status=500, text="500 Internal Server Error: the log says more\n")
        finally:
            if self.connections is not None:
                self.connections.end(request)
        self._count(request, response)
        return response

    @web.middleware
    async def read_body(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reads the whole body, however it is sent; `request.read()` has it then.

        413 for one that is larger than its handler takes (`body_limit`), 503 for one that has to make room, as the
        bodies of all requests are more than the server keeps. Compressed bodies are refused (415): what they grow to
        is known too late.
        """
        if request.can_read_body:
            if request.headers.get("Content-Encoding", "identity").lower() != "identity":
                return web.Response(status=415, text="send the body as it is, without Content-Encoding\n")
            # One that cannot have room is too large: 503 would have it sent again and again.
            limit = min(body_limit_of(request.match_info.handler, self._max_body), self._most_together() // 2)
            if (size := request.content_length or 0) > limit:
                raise _too_large(limit, size)
            try:
                # Where aiohttp's own read() keeps it. That one raises the buffer of the connection to the limit, and a
                # body that did not come to its end stays until garbage is looked for.
                request._read_bytes = await self._read(request, limit)
            except (web.RequestPayloadError, http_exceptions.HttpProcessingError) as error:
                return web.Response(status=400, text=f"the body cannot be read: {error}\n")
        if self.connections is not None:
            self.connections.body_complete(request)
        return await handler(request)

    async def _read(self, request: web.Request, limit: int) -> bytes:
        """Raises HTTPRequestEntityTooLarge, HTTPServiceUnavailable, and what aiohttp does of a broken body."""
        body, chunk = bytearray(), b""
        try:
            async with asyncio.timeout(None) as read_timeout:
                if self.connections is not None:
                    self.connections.reading(request, read_timeout)
                while chunk := await request.content.readany():
                    body += chunk
                    if len(body) > limit:
                        raise _too_large(limit, len(body))
            if read_timeout.when() is None:
                return bytes(body)
        except TimeoutError:
            pass
        finally:
            # The frame may stay as long as the traceback does, and that is in a cycle.
            body.clear()
            chunk = b""
        most = self._most_together()
        text = f"requests in work have {most} bytes together, the limit of --web.max-request-bytes; try again later\n"
        busy = web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "1"})
        busy.force_close()  # it is in the table of connections no more
        raise busy

    def _most_together(self) -> int:
        """Bytes of all requests in work."""
        limits = Limits() if self.connections is None else self.connections.table.limits
        return limits.buffered_bytes

    def _count(self, request: web.Request, response: web.StreamResponse) -> None:
        status = response.status
        self.responses[status] += 1
        if status in (401, 403) and self._limit.allows(f"{status} {request.remote}"):
            text = response.text if isinstance(response, web.Response) else ""
            log.warning(
                "request refused",
                status=status,
                client=request.remote,
                method=request.method,
                path=request.path[:_MOST_PATH],
                reason=(text or "").strip()[:_MOST_PATH],
                suppressed=self._limit.take_suppressed(),
            )

    def _of_aiohttp(self, record: logging.LogRecord) -> bool:
        """A filter for aiohttp's own log records: a request that it cannot parse is one line, without traceback."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, http_exceptions.HttpProcessingError):
            self.responses[400] += 1
            client = record.args[0] if isinstance(record.args, tuple) and record.args else ""
            if self._limit.allows(f"400 {client}"):
                log.warning(
                    "malformed request",
                    client=client,
                    reason=str(error.message)[:_MOST_PATH],
                    suppressed=self._limit.take_suppressed(),
                )
            return False
        return record.levelno >= logging.INFO and self._limit.allows(f"aiohttp {type(error).__name__}")


def _too_large(limit: int, size: int) -> web.HTTPRequestEntityTooLarge:
    text = f"a body may have {limit} bytes here, and never more than half of --web.max-request-bytes\n"
    return web.HTTPRequestEntityTooLarge(limit, size, text=text)


def _cross_site(request: web.Request) -> web.Response | None:
    """403 for a request that changes something and that a page of another site has made a browser send.

    The browser adds the user's password or certificate by itself. It names the page's origin, which programs do not.
    """
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return None
    origin = request.headers.get("Origin")
    own = request.headers.get("Host", "")
    same = origin is None or origin.partition("://")[2].lower() == own.lower()
    if same and request.headers.get("Sec-Fetch-Site", "same-origin") in ("same-origin", "none"):
        return None
    return web.Response(status=403, text="requests from pages of other sites change nothing here\n")


def query_int(request: web.Request, name: str, default: int, minimum: int, maximum: int) -> int:
    """An integer in the query. Raises HTTPBadRequest for what is none, or outside of [minimum, maximum]."""
    text = request.query.get(name)
    if text is None:
        return default
    # Not int() alone: it takes digits of any script, "1_000" and " 7 ".
    if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20:
        value = int(text)
        if minimum <= value <= maximum:
            return value
    raise web.HTTPBadRequest(text=f"{name} must be an integer from {minimum} to {maximum}\n")
