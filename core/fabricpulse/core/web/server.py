"""The HTTP server of a daemon, as Prometheus users expect one.

Serves `/metrics` (as text 0.0.4 or OpenMetrics, as the scraper wants), `/-/healthy`, `/-/ready`, `POST /-/reload` and
a landing page, with TLS and basic authentication from an exporter-toolkit file, plus whatever routes the daemon adds.
"""

import asyncio
import gzip
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from html import escape
from importlib.metadata import version

from aiohttp import web

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.descriptors import files_in_use, raise_file_limit
from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.formats import TextFormat, accepts_gzip, negotiate
from fabricpulse.core.metrics.process import process_metrics
from fabricpulse.core.web.authentication import OwnAuthentication, authentication_middleware
from fabricpulse.core.web.body_limit import body_limit_of
from fabricpulse.core.web.connections import Connections
from fabricpulse.core.web.limits import Limits, connections_for
from fabricpulse.core.web.listeners import bind, own_address, reached_at, systemd_sockets
from fabricpulse.core.web.options import WebOptions
from fabricpulse.core.web.request_guard import RequestGuard
from fabricpulse.core.web.server_metrics import server_metrics
from fabricpulse.core.web.toolkit import WebConfig

log = get_logger(__name__)

# Listen backlog, capped by net.core.somaxconn: all sidecars connect to a restarted coordinator at once, and a full
# queue costs a client a retransmission of its SYN (1 s, 2 s, ...).
_BACKLOG = 4096
# For how long the rest of a body is read and discarded after its request was refused, so that the client reads the
# response and not a reset. With aiohttp's 10 s, four clients without credentials, whose bodies never end, delayed the
# responses to others by most of a second.
_LINGERING_S = 0.5
# aiohttp's own timeout; connection_table closes idle connections earlier.
_KEEPALIVE_S = 3600.0
# Memory for incomplete requests, in bodies of the largest size.
_BODIES, _LEAST_BUFFER = 4, 64 << 20
# All families of the daemon but those of its process, in this format and without its end.
MetricsSource = Callable[[TextFormat], Awaitable[bytes]]


class WebServer:
    """One daemon's HTTP server.

    name : of the command ("fabricpulse mesh"), for the landing page and the label `daemon`. metrics : called on each
    scrape. `router` may be extended before `start`; `landing_links` are (path, text) pairs for the landing page.
    not_ready : why a started daemon is not ready, "" if it is. limits : of connections; by default derived from the
    limit of open files. max_body : bytes of a request's body, where its handler has no `body_limit`.
    own_authentication : whether the daemon authenticates a request itself (its route is known), so that no password of
    the web file is required. addresses, tls : where it listens and whether by HTTPS, from `start` on.
    """

    def __init__(
        self,
        name: str,
        life: Lifetime,
        metrics: MetricsSource,
        options: WebOptions,
        *,
        landing_links: Sequence[tuple[str, str]] = (),
        max_body: int = 64 << 10,
        not_ready: Callable[[], str] = lambda: "",
        limits: Limits | None = None,
        own_authentication: OwnAuthentication = lambda _: False,
    ) -> None:
        self._name = name
        self._not_ready = not_ready
        self._life = life
        self._metrics = metrics
        self._options = options
        self._scrapes = 0
        self._links = [
            (options.telemetry_path, "Metrics"),
            ("/-/healthy", "Health"),
            ("/-/ready", "Readiness"),
            *landing_links,
        ]
        self._web_config = WebConfig.load(options.config) if options.config else None
        self._guard = RequestGuard(max_body)
        self.app = web.Application(middlewares=[self._guard.observe], client_max_size=max_body)
        if self._web_config:
            self.app.middlewares.append(authentication_middleware(self._web_config, own_authentication))
        if self._web_config:
            self.app.on_response_prepare.append(self._web_config.add_headers)
        self.app.router.add_get(options.telemetry_path, self._serve_metrics)
        if options.telemetry_path != "/":
            self.app.router.add_get("/", self._landing)
        self.app.router.add_get("/-/healthy", self._healthy)
        self.app.router.add_get("/-/ready", self._ready)
        self.app.router.add_post("/-/reload", self._reload)
        self._max_body = max_body
        self._limits = limits or Limits()
        self._own_limits = limits is not None
        self._runner: web.AppRunner | None = None
        self._connections: Connections | None = None
        self.addresses: list[tuple[str, int]] = []
        self.tls = False

    @property
    def router(self) -> web.UrlDispatcher:
        """Where the daemon adds its own routes."""
        return self.app.router

    @property
    def connections(self) -> Connections:
        """The connections; there are some from `start` on."""
        if self._connections is None:
            raise RuntimeError("the server has not been started")
        return self._connections

    @property
    def responses(self) -> Counter[int]:
        """Responses so far, by status code."""
        return self._guard.responses

    async def start(self) -> None:
        """Listens. Raises UserError for a malformed address, one that cannot be bound, sockets that are not there."""
        context = self._web_config.ssl_context() if self._web_config else None
        self.tls = context is not None
        files = raise_file_limit()
        if not self._own_limits:
            most = connections_for(files, files_in_use())
            self._limits = replace(self._limits, connections=most, per_client=most // 2)
        self._limits = replace(self._limits, buffered_bytes=self._buffered_bytes())
        # Last, so that what authenticates, the daemon's own too, comes before a body is read.
        self.app.middlewares.append(self._guard.read_body)
        self._runner = web.AppRunner(
            self.app,
            access_log=None,
            shutdown_timeout=2,
            logger=self._guard.protocol_logger,
            auto_decompress=False,
            keepalive_timeout=_KEEPALIVE_S,
            lingering_time=_LINGERING_S,
        )
        await self._runner.setup()
        if self._runner.server is None:
            raise RuntimeError("aiohttp has made no server")
        self._connections = self._guard.connections = Connections(self._runner.server, context, self._limits)
        try:
            listeners = systemd_sockets() if self._options.systemd_socket else await self._bind()
        except UserError:
            await self.stop()
            raise
        for listener in listeners:
            self.addresses += (
                reached_at(listener) if self._options.systemd_socket else [own_address(listener)]
            )
            self._connections.listen(listener)
        for host, port in self.addresses:
            log.info("listening", address=f"{host}:{port}", tls=context is not None)

    def _buffered_bytes(self) -> int:
        """The bound of all requests together: once all routes are known."""
        handlers = [route.handler for route in self.router.routes()]
        largest = max(body_limit_of(handler, self._max_body) for handler in handlers)
        return self._options.max_request_bytes or max(_LEAST_BUFFER, _BODIES * largest)

    async def _bind(self) -> list[socket.socket]:
        listeners: list[socket.socket] = []
        for address in self._options.listen:
            try:
                listeners += await bind(address, _BACKLOG)
            except UserError:
                for listener in listeners:
                    listener.close()
                raise
        return listeners

    async def stop(self) -> None:
        """Stops listening and lets requests in flight finish."""
        if self._connections is not None:
            await self._connections.stop()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        limit = self._options.max_requests
        if limit and self._scrapes >= limit:
            text = f"{limit} scrapes are being answered, the limit of --web.max-requests; try again later\n"
            return web.Response(status=503, text=text)
        self._scrapes += 1
        try:
            return await self._answer_scrape(request)
        finally:
            self._scrapes -= 1

    async def _answer_scrape(self, request: web.Request) -> web.Response:
        text_format = negotiate(request.headers.get("Accept", ""))
        body = b"".join(
            (
                await self._metrics(text_format),
                server_metrics(self._name, self.connections, self.responses, text_format),
                process_metrics(text_format),
                text_format.end,
            )
        )
        headers = {"Content-Type": text_format.value, "Vary": "Accept, Accept-Encoding"}
        if accepts_gzip(request.headers.get("Accept-Encoding", "")):
            # zlib releases the interpreter lock: a large scrape does not block the daemon.
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text=f"{self._name} is healthy.\n")

    async def _ready(self, _: web.Request) -> web.Response:
        reason = self._life.not_ready or self._not_ready()
        if not reason:
            return web.Response(text=f"{self._name} is ready.\n")
        return web.Response(status=503, text=f"{self._name} is not ready: {reason}.\n")

    async def _reload(self, _: web.Request) -> web.Response:
        try:
            await self._life.reload()
        except Exception as error:
            return web.Response(status=500, text=f"reload failed, the old settings stay in force: {error}\n")
        return web.Response(text="reloaded\n")

    async def _landing(self, _: web.Request) -> web.Response:
        links = "".join(f'<li><a href="{escape(path)}">{escape(text)}</a></li>' for path, text in self._links)
        name = escape(self._name)
        page = (
            f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{name}</title></head>"
            f"<body><h1>{name}</h1><p>Version {escape(version('fabricpulse'))}</p><ul>{links}</ul></body></html>\n"
        )
        return web.Response(text=page, content_type="text/html")
