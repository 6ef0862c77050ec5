"""The receiver daemon: start, serve, poll the Alertmanagers, stop."""

import asyncio
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import aiohttp

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.membership import load_membership
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.waiting import wait_at_most
from fabricpulse.core.web.server import WebServer
from fabricpulse.core.web.token_file import TokenFile
from fabricpulse.remediation.receiver.agent_api import AgentApi
from fabricpulse.remediation.receiver.alertmanager_poll import poll_alertmanagers
from fabricpulse.remediation.receiver.auth import BearerAuth
from fabricpulse.remediation.receiver.commit_loop import CommitLoop
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.exposition import expose
from fabricpulse.remediation.receiver.operator_api import OperatorApi
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.reconciler import Inventory, Reconciler
from fabricpulse.remediation.receiver.sql_store import SqlStore
from fabricpulse.remediation.receiver.sqlite_database import SqliteDatabase
from fabricpulse.remediation.receiver.store import StoreError
from fabricpulse.remediation.receiver.transaction import Transaction
from fabricpulse.remediation.receiver.wall_clock import MonotonicWallClock
from fabricpulse.remediation.receiver.webhook import MAX_BODY, Webhook

log = get_logger(__name__)

STALE_HEARTBEAT_S = 10.0
_RETRY_POLL_S = 5.0


class Receiver:
    """One receiver; `run` serves until the daemon stops."""

    def __init__(self, config: ReceiverConfig, life: Lifetime) -> None:
        """Raises UserError when the journal, the token or the membership file cannot be used."""
        self._config = config
        self._life = life
        self._auth = BearerAuth(TokenFile(config.token_file))
        self._reconciler = Reconciler(config, load_inventory(config.membership))
        self._store = SqlStore(SqliteDatabase(Path(config.journal)))
        self._clock = MonotonicWallClock(self._store.last_commit_at())
        self._loop = CommitLoop(self._store, self._reconcile, self._clock)
        self._poll = asyncio.Event()
        self._webhook = Webhook(self._loop, self._reconciler, self._poll)
        self._agents = AgentApi(self._loop, self._reconciler, life)
        self._operator = OperatorApi(self._loop, self._reconciler, self._store)
        self._loop.on_commit(self._agents.wake)

    def _reconcile(self, transaction: Transaction, now: float) -> None:
        self._reconciler.decisions.reconcile(transaction, now)

    async def run(self, options: DaemonOptions) -> None:
        """Serves until told to stop."""
        try:
            await self._serve(options)
        finally:
            self._store.close()

    async def _serve(self, options: DaemonOptions) -> None:
        server = WebServer(
            "fabricpulse remediation receiver",
            self._life,
            self._metrics,
            options.web,
            landing_links=[
                ("/api/v1/status", "Status"),
                ("/api/v1/targets", "NICs"),
                ("/api/v1/actions", "Actions"),
                ("/api/v1/episodes", "Episodes"),
                ("/api/v1/events", "Journal"),
            ],
            max_body=MAX_BODY,
            not_ready=self._not_ready,
        )
        server.app.middlewares.append(self._auth.middleware)
        for part in (self._webhook, self._agents, self._operator):
            part.add(server.router)
        if not (self._config.token_file or options.web.config) and any(
            rule.mode == "auto" for rule in self._config.rules
        ):
            log.warning(
                "rules act, and anybody who reaches the port can trigger them; set token_file or --web.config.file"
            )
        try:
            await self._loop.start(self._reconciler.observed.on_start)
        except StoreError as error:
            raise UserError(str(error)) from error
        await server.start()
        async with aiohttp.ClientSession() as session:
            work = [
                asyncio.create_task(self._loop.run()),
                asyncio.create_task(self._poll_forever(session)),
            ]
            stop = asyncio.create_task(self._life.stopped())
            self._life.ready()
            try:
                # A background task that exits is a bug: the daemon fails.
                done, _ = await asyncio.wait({*work, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._agents.wake_all()
                for task in (*work, stop):
                    task.cancel()
                await server.stop()
                await asyncio.gather(*work, stop, return_exceptions=True)
            for task in done - {stop}:
                task.result()

    def _not_ready(self) -> str:
        age = time.monotonic() - self._loop.heartbeat
        return f"nothing was decided or written for {age:.0f} s" if age > STALE_HEARTBEAT_S else ""

    async def _poll_forever(self, session: aiohttp.ClientSession) -> None:
        while True:
            self._poll.clear()
            complete = True
            if self._config.alertmanagers:
                answers = await poll_alertmanagers(session, self._config.alertmanagers)
                complete = None not in answers
                with suppress(StoreError):  # the commit loop has logged it
                    await self._loop.submit(partial(self._on_poll, answers))
            interval = self._config.reconcile_interval_s
            await wait_at_most(self._poll, interval if complete else min(_RETRY_POLL_S, interval))
            await asyncio.sleep(0.2)  # a storm of suspect alerts polls a few times a second, not for each

    def _on_poll(self, answers: list[tuple[Alert, ...] | None], transaction: Transaction, now: float) -> None:
        self._reconciler.observed.on_poll(transaction, answers, now)

    async def _metrics(self, text_format: TextFormat) -> bytes:
        return expose(
            self._config,
            self._loop,
            self._clock,
            self._store,
            self._webhook.statistics,
            self._auth.refused,
            text_format,
        )


def load_inventory(membership: str) -> Inventory:
    """Host -> devices from a membership file, {} for "". Raises ConfigError."""
    if not membership:
        return {}
    hosts = load_membership(Path(membership)).hosts
    return {host.name: frozenset(nic.device for nic in host.nics) for host in hosts}
