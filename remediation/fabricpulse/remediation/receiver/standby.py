"""A receiver that stands by: it waits for the lease, answers health and metrics, and everything else with 503."""

import asyncio
from contextlib import AsyncExitStack

from aiohttp import web

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.web.server import WebServer
from fabricpulse.remediation import metrics
from fabricpulse.remediation.receiver.store.postgres_database import PostgresDatabase
from fabricpulse.remediation.receiver.store.store import StoreError

log = get_logger(__name__)

_ASK_AGAIN_S = 0.5


class Standby:
    """Waits for the lease of `database`."""

    def __init__(self, database: PostgresDatabase, life: Lifetime) -> None:
        self._database = database
        self._life = life
        self._waits_for = "it asks for the lease"

    async def lead(self, options: DaemonOptions) -> bool:
        """True once the lease is ours, False when stopped before. Raises UserError when the port is taken, or the
        database cannot be used at the start."""
        if await self._ask(first=True):
            return True
        async with AsyncExitStack() as resources:
            server = WebServer(
                "fabricpulse remediation receiver",
                self._life,
                self._metrics,
                options.web,
                not_ready=lambda: self._waits_for,
            )
            server.router.add_route("*", "/api/{rest:.*}", self._refuse)
            await server.start()
            resources.push_async_callback(server.stop)
            self._life.ready()
            stopped = asyncio.ensure_future(self._life.stopped())
            try:
                while not stopped.done():
                    if await self._ask(first=False):
                        return True
                    await asyncio.wait([stopped], timeout=_ASK_AGAIN_S)
            finally:
                stopped.cancel()
        return False

    async def _ask(self, *, first: bool) -> bool:
        try:
            holder = await asyncio.to_thread(self._database.take_lease)
        except StoreError as error:
            if first:
                raise UserError(str(error)) from error
            self._waits_for = f"standby, {error}"
            return False
        waits_for = f"standby, {holder} leads" if holder else ""
        if waits_for != self._waits_for:
            log.info("standby" if holder else "lease taken, this receiver leads", holder=holder)
        self._waits_for = waits_for
        return not holder

    async def _refuse(self, _: web.Request) -> web.Response:
        return web.Response(status=503, text="standby, another receiver leads\n")

    async def _metrics(self, text_format: TextFormat) -> bytes:
        out = Exposition()
        out.add(metrics.LEADER, (), 0)
        return out.render(text_format)
