"""The HTTP server of a daemon, as Prometheus users expect one.

Serves `/metrics`, `/-/healthy`, `/-/ready`, `POST /-/reload` and a landing page, with TLS and basic authentication
from an exporter-toolkit file, plus whatever routes the daemon adds.
"""

import asyncio
import gzip
import os
from collections.abc import Awaitable, Callable, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path

from aiohttp import web

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.exposition import CONTENT_TYPE
from fabricpulse.core.web.toolkit import WebConfig, authentication_middleware

log = get_logger(__name__)

MetricsSource = Callable[[], Awaitable[bytes]]


class WebServer:
    """One daemon's HTTP server.

    name : what the landing page calls the daemon. metrics : called on each scrape. `router` may be extended before
    `start`; `landing_links` are (path, text) pairs for the landing page. not_ready : says why a daemon that has started
    is not ready all the same, "" if it is.
    """

    def __init__(
        self,
        name: str,
        life: Lifetime,
        metrics: MetricsSource,
        *,
        web_config: Path | None = None,
        landing_links: Sequence[tuple[str, str]] = (),
        max_body: int = 1 << 20,
        not_ready: Callable[[], str] = lambda: "",
    ) -> None:
        self._name = name
        self._not_ready = not_ready
        self._life = life
        self._metrics = metrics
        self._links = [
            ("/metrics", "Metrics"),
            ("/-/healthy", "Health"),
            ("/-/ready", "Readiness"),
            *landing_links,
        ]
        self._web_config = WebConfig.load(web_config) if web_config else None
        middlewares = [authentication_middleware(self._web_config)] if self._web_config else []
        self.app = web.Application(middlewares=middlewares, client_max_size=max_body)
        if self._web_config:
            self.app.on_response_prepare.append(self._web_config.add_headers)
        self.app.router.add_get("/", self._landing)
        self.app.router.add_get("/metrics", self._serve_metrics)
        self.app.router.add_get("/-/healthy", self._healthy)
        self.app.router.add_get("/-/ready", self._ready)
        self.app.router.add_post("/-/reload", self._reload)
        self._runner: web.AppRunner | None = None
        self.addresses: list[tuple[str, int]] = []

    @property
    def router(self) -> web.UrlDispatcher:
        """Where the daemon adds its own routes."""
        return self.app.router

    async def start(self, listen: Sequence[str]) -> None:
        """Listens on each address. Raises UserError for a malformed address or one that cannot be bound."""
        context = self._web_config.ssl_context() if self._web_config else None
        self._runner = web.AppRunner(self.app, access_log=None, shutdown_timeout=2)
        await self._runner.setup()
        for address in listen:
            host, port = parse_address(address)
            site = web.TCPSite(self._runner, host or None, port, ssl_context=context, reuse_address=True)
            try:
                await site.start()
            except OSError as error:
                await self.stop()
                raise UserError(
                    f"cannot listen on {address}: {_reason(error)}; choose another --web.listen-address"
                ) from error
        self.addresses = [(str(a[0]), int(a[1])) for a in self._runner.addresses]
        for host, port in self.addresses:
            log.info("listening", address=f"{host}:{port}", tls=context is not None)

    async def stop(self) -> None:
        """Stops listening and lets requests in flight finish."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        body = await self._metrics()
        headers = {"Content-Type": CONTENT_TYPE}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            # zlib lets go of the interpreter lock: a large scrape does not hold up the daemon.
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text=f"{self._name} is healthy.\n")

    async def _ready(self, _: web.Request) -> web.Response:
        reason = self._not_ready() if self._life.is_ready else "it is starting or stopping"
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


def parse_address(address: str) -> tuple[str, int]:
    """`HOST:PORT`, `[V6]:PORT` or `:PORT` (all addresses) as (host, port). Raises UserError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UserError(f"listen address {address!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _reason(error: OSError) -> str:
    # asyncio wraps the system's words, differently in each version of Python; the number is what it was. Those of name
    # resolution are below 0 and have words of their own.
    if error.errno and error.errno > 0:
        return os.strerror(error.errno).lower()
    return error.strerror or str(error)
