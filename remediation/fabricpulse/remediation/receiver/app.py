"""The receiver: the life of the daemon, and the webhook."""

import asyncio
import hashlib
import time
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import web

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.membership import load_membership
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.waiting import wait_at_most
from fabricpulse.core.web.server import WebServer
from fabricpulse.core.web.token_file import TokenFile
from fabricpulse.remediation.receiver.agents import AgentRoutes
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.door import Door
from fabricpulse.remediation.receiver.exposition import Ingest, expose
from fabricpulse.remediation.receiver.model import State
from fabricpulse.remediation.receiver.payload import (
    Alert,
    DeadLetter,
    Notification,
    PayloadError,
    parse_notification,
)
from fabricpulse.remediation.receiver.people import PeopleRoutes
from fabricpulse.remediation.receiver.reconciler import Reconciler, Step
from fabricpulse.remediation.receiver.service import Engine, SteadyClock
from fabricpulse.remediation.receiver.sqlite_store import SqliteStore
from fabricpulse.remediation.receiver.store import Delivery, StoreError
from fabricpulse.remediation.receiver.truth import pull_active

log = get_logger(__name__)

MAX_BODY = 64 << 20
STALE_HEARTBEAT_S = 10.0
# Bodies being worked on; more are answered 503, and Alertmanager sends them again.
_MAX_BYTES_AT_ONCE = 256 << 20
_MAX_AT_ONCE = 512
# Below this a body is parsed in less time than handing it to a thread takes.
_INLINE_BYTES = 32 << 10
_RETRY_PULL_S = 5.0


class Receiver:
    """One receiver; `run` is its life."""

    def __init__(self, config: ReceiverConfig, life: Lifetime) -> None:
        """Raises UserError when the journal, the token or the membership file cannot be used."""
        self._config = config
        self._life = life
        self._door = Door(TokenFile(config.token_file))
        nics = _nics(config.membership)
        self._reconciler = Reconciler(config, nics)
        self._store = SqliteStore(Path(config.journal))
        self._clock = SteadyClock(self._store.last_commit_at())
        self._engine = Engine(self._store, self._reconciler.on_tick, self._clock)
        self._agents = AgentRoutes(config, self._engine, self._reconciler, life, set(nics))
        self._people = PeopleRoutes(config, self._engine, self._reconciler, self._store)
        self._engine.on_commit(self._agents.wake)
        self._pull = asyncio.Event()
        self._ingest = Ingest()
        self._bytes_at_once = 0
        self._at_once = 0

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
            not_ready=self._stalled,
        )
        server.app.middlewares.append(self._door.middleware)
        server.router.add_post("/api/v1/alertmanager", self._webhook)
        self._agents.add(server.router)
        self._people.add(server.router)
        if not (self._config.token_file or options.web.config) and any(
            rule.mode == "auto" for rule in self._config.rules
        ):
            log.warning(
                "rules act, and anybody who reaches the port can trigger them; set token_file or --web.config.file"
            )
        try:
            await self._engine.start(self._reconciler.on_start)
        except StoreError as error:
            raise UserError(str(error)) from error
        await server.start()
        async with aiohttp.ClientSession() as session:
            work = [
                asyncio.create_task(self._engine.run()),
                asyncio.create_task(self._pull_forever(session)),
            ]
            stop = asyncio.create_task(self._life.stopped())
            self._life.ready()
            try:
                # Work that ends by itself is a defect; the daemon ends with it rather than sit there deaf.
                done, _ = await asyncio.wait({*work, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._agents.wake_all()
                for task in (*work, stop):
                    task.cancel()
                await server.stop()
                await asyncio.gather(*work, stop, return_exceptions=True)
            for task in done - {stop}:
                task.result()

    def _stalled(self) -> str:
        age = time.monotonic() - self._engine.heartbeat
        return f"nothing was decided or written for {age:.0f} s" if age > STALE_HEARTBEAT_S else ""

    # --- the webhook ---------------------------------------------------------------------------------------------

    async def _webhook(self, request: web.Request) -> web.Response:
        """200 when the body and what follows from it are durable; 400 when it is no webhook; 503 for our own faults.

        Never 429 or any other 4xx for a fault of ours: Alertmanager drops what is answered so.
        """
        size = request.content_length or 0
        if self._at_once >= _MAX_AT_ONCE or self._bytes_at_once + size > _MAX_BYTES_AT_ONCE:
            return self._answer(503, "busy, try again\n")
        self._at_once += 1
        self._bytes_at_once += size
        try:
            return await self._receive(await request.read())
        except web.HTTPRequestEntityTooLarge:
            # It will not get smaller. What it would have said, the Alertmanagers are asked.
            self._ingest.deliveries[413] += 1
            self._pull.set()
            raise
        except StoreError as error:
            log.error("delivery not accepted", reason=str(error))
            return self._answer(503, "journal unavailable, try again\n")
        finally:
            self._at_once -= 1
            self._bytes_at_once -= size

    async def _receive(self, body: bytes) -> web.Response:
        received_at = self._clock()
        begun = time.monotonic()
        try:
            if len(body) <= _INLINE_BYTES:
                notification, delivery = _read_body(body, received_at)
            else:
                notification, delivery = await asyncio.to_thread(_read_body, body, received_at)
        except PayloadError as error:
            return await self._refuse(body, str(error))
        dead = notification.dead_letters + self._without_target(notification)
        suspect = False

        def change(state: State, now: float) -> Step:
            nonlocal suspect
            step, suspect = self._reconciler.on_alerts(state, notification.alerts, now)
            return step

        await self._engine.submit(change, delivery, dead)
        self._ingest.alerts += len(notification.alerts)
        self._ingest.dead_letters += len(dead)
        self._ingest.seconds.observe(time.monotonic() - begun)
        if notification.truncated or suspect:
            self._pull.set()
        return self._answer(200, "journaled\n")

    async def _refuse(self, body: bytes, reason: str) -> web.Response:
        digest = hashlib.sha256(body).hexdigest()
        log.error("body is not a webhook", reason=reason, bytes=len(body), sha256=digest)
        letter = DeadLetter(body[:4096], f"not a webhook, sha256 {digest}: {reason}"[:4096])
        await self._engine.submit(lambda state, _: Step(state), dead_letters=(letter,))
        return self._answer(400, "not an Alertmanager webhook, version 4\n")

    def _without_target(self, notification: Notification) -> tuple[DeadLetter, ...]:
        letters = []
        for alert in notification.alerts:
            target = self._reconciler.knowledge.target_of(alert)
            if isinstance(target, str):
                letters.append(DeadLetter(repr(alert.labels)[:4096].encode(), target))
        return tuple(letters)

    def _answer(self, status: int, text: str) -> web.Response:
        self._ingest.deliveries[status] += 1
        return web.Response(status=status, text=text)

    # --- the truth -----------------------------------------------------------------------------------------------

    async def _pull_forever(self, session: aiohttp.ClientSession) -> None:
        while True:
            self._pull.clear()
            complete = True
            if self._config.alertmanagers:
                answers = await pull_active(session, self._config.alertmanagers)
                complete = None not in answers
                with suppress(StoreError):  # the engine has logged it
                    await self._engine.submit(partial(self._on_truth, answers))
            interval = self._config.reconcile_interval_s
            await wait_at_most(self._pull, interval if complete else min(_RETRY_PULL_S, interval))
            await asyncio.sleep(0.2)  # a storm of suspect alerts asks a few times a second, not for each

    def _on_truth(self, answers: list[tuple[Alert, ...] | None], state: State, now: float) -> Step:
        return self._reconciler.on_truth(state, answers, now)

    async def _metrics(self, text_format: TextFormat) -> bytes:
        return expose(self._config, self._engine, self._clock, self._store, self._ingest, text_format)


def _read_body(body: bytes, received_at: float) -> tuple[Notification, Delivery]:
    notification = parse_notification(body)
    if len(body) <= _INLINE_BYTES:
        return notification, Delivery(received_at, notification.digest, body)
    return notification, Delivery(received_at, notification.digest, zlib.compress(body, 1), deflated=True)


def _nics(membership: str) -> dict[str, frozenset[str]]:
    if not membership:
        return {}
    return {
        host.name: frozenset(nic.device for nic in host.nics)
        for host in load_membership(Path(membership)).hosts
    }
