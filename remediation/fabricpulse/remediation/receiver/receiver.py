"""The receiver daemon: start, serve, poll the Alertmanagers, stop."""

import asyncio
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.supervision import supervised
from fabricpulse.core.threads import DaemonThreads
from fabricpulse.core.waiting import wait_with_timeout
from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.server import WebServer
from fabricpulse.core.web.toolkit import WebConfig
from fabricpulse.remediation.receiver.alertmanager_poll import AlertmanagerPolls
from fabricpulse.remediation.receiver.commit_loop import CommitLoop
from fabricpulse.remediation.receiver.config import ReceiverConfig, is_postgres
from fabricpulse.remediation.receiver.drain_hooks import DrainHooks
from fabricpulse.remediation.receiver.exposition import Scrapes, expose
from fabricpulse.remediation.receiver.notifier import Notifier
from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.policy import Policy, ReloadStatus, changes, reload_policy
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.transaction import Transaction, Transition
from fabricpulse.remediation.receiver.store.database import Database
from fabricpulse.remediation.receiver.store.sql_store import SqlStore
from fabricpulse.remediation.receiver.store.sqlite_database import SqliteDatabase
from fabricpulse.remediation.receiver.store.store import StoreError
from fabricpulse.remediation.receiver.wall_clock import MonotonicWallClock, follow_wall
from fabricpulse.remediation.receiver.web.agent_api import AgentApi
from fabricpulse.remediation.receiver.web.auth import AccessControl
from fabricpulse.remediation.receiver.web.operator_api import OperatorApi
from fabricpulse.remediation.receiver.web.origin import addresses_of
from fabricpulse.remediation.receiver.web.webhook import Webhook

log = get_logger(__name__)

STALE_HEARTBEAT_S = 10.0
_RETRY_POLL_S = 5.0


class Receiver:
    """One receiver; `run` serves until the daemon stops."""

    def __init__(self, policy: Policy, life: Lifetime, database: Database) -> None:
        """database : closed at the end of `run`. Raises UserError when the journal cannot be used."""
        self._database = database
        self._policy = policy
        self._life = life
        self._auth: AccessControl
        self._reconciler = Reconciler(policy.config, policy.inventory, policy.leaves)
        self._store = SqlStore(database, policy.config.keep_deliveries_bytes)
        self._clock = MonotonicWallClock(self._store.last_commit_at(), database.now())
        self._loop = CommitLoop(self._store, self._reconcile, self._clock)
        self._poll = asyncio.Event()
        self._poller: HttpClient
        self._webhook = Webhook(self._loop, self._reconciler, self._poll)
        self._agents = AgentApi(self._loop, self._reconciler, life, policy.seal, database.lease_left_s)
        self._operator = OperatorApi(self._loop, self._reconciler, self._store, self._not_ready)
        self._loop.on_commit(self._agents.wake)
        self._notifiers = {
            entry.name: Notifier(entry, self._loop, self._store) for entry in policy.config.notify
        }
        self._loop.on_commit(self._wake_notifiers)
        self._hooks = DrainHooks(self._loop, self._reconciler, database.lease_left_s)
        self._loop.on_commit(lambda _: self._hooks.wake())
        self._reload = ReloadStatus(True, time.time())
        self._scrapes = Scrapes()

    def _wake_notifiers(self, _: list[Transition]) -> None:
        for notifier in self._notifiers.values():
            notifier.wake()

    def _reconcile(self, transaction: Transaction, now: float) -> None:
        follow_wall(transaction, self._clock.behind_wall())
        self._reconciler.decisions.reconcile(transaction, now)
        self._reconciler.rebalancer.reconcile(transaction, now)
        self._reconciler.drains.reconcile(transaction, now)

    def _on_start(self, transaction: Transaction, now: float) -> None:
        self._reconciler.observed.on_start(transaction, now)
        if self._store.edited:
            log.error("journal was edited while the receiver was stopped", reason=self._store.edited)
            transaction.log("fleet", "journal_edited", reason=self._store.edited)

    async def run(self, options: DaemonOptions) -> None:
        """Serves until it is stopped."""
        try:
            await self._serve(options)
        finally:
            self._store.close()

    async def _serve(self, options: DaemonOptions) -> None:
        has_passwords = _check_web(options, self._policy.config)
        self._auth = AccessControl(self._policy.access, has_passwords)
        self._auth.all_known = not self._policy.config.alertmanagers
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
            not_ready=self._not_ready,
            own_authentication=self._auth.covers,
        )
        server.app.middlewares.extend([self._auth.middleware, self._webhook.middleware])
        for part in (self._webhook, self._agents, self._operator):
            part.add(server.router)
        self._warn_if_open(options)
        self._poller = HttpClient(self._policy.config.http_client)
        try:
            try:
                await self._loop.start(self._on_start)
            except StoreError as error:
                raise UserError(str(error)) from error
            await server.start()
            self._life.on_reload(partial(self._on_reload, options))
            try:
                async with supervised(self._life) as tasks:
                    tasks.start("commit loop", self._loop.run())
                    tasks.start("Alertmanager poll", self._poll_forever())
                    tasks.start("drain hooks", self._hooks.run())
                    for name, notifier in self._notifiers.items():
                        tasks.start(f"notify {name}", notifier.run())
                    if self._database.lease_left_s() < float("inf"):
                        tasks.start("lease", self._hold_lease())
                    self._life.ready()
                    await self._life.stopped()
                    self._agents.wake_all()
            finally:
                await server.stop()
        finally:
            await self._poller.close()

    def _warn_if_open(self, options: DaemonOptions) -> None:
        config = self._policy.config
        if (
            self._policy.access.is_open
            and not options.web.config
            and any(rule.mode == "auto" and rule.action != "notify" for rule in config.rules)
        ):
            log.warning(
                "rules act, and anybody who reaches the port can speak for a host; set access or --web.config.file"
            )

    def _not_ready(self) -> str:
        if self._loop.failure:
            return self._loop.failure
        age = time.monotonic() - self._loop.heartbeat
        return f"nothing was decided or written for {age:.0f} s" if age > STALE_HEARTBEAT_S else ""

    async def _hold_lease(self) -> None:
        """Renews the lease. Raises UserError when it is lost: the daemon ends, and starts again as a standby."""
        every_s = self._policy.config.lease_s / 4
        # Its own: what waits for the threads that all share must not cost the lease.
        thread = DaemonThreads(1)
        try:
            while True:
                await asyncio.sleep(every_s)
                try:
                    await asyncio.get_running_loop().run_in_executor(thread, self._database.renew_lease)
                except StoreError as error:
                    if self._database.lease_left_s() <= 0:
                        raise UserError(f"this receiver leads no more: {error}") from error
                    log.warning("lease not renewed, trying again", error=str(error))
        finally:
            thread.shutdown(wait=False)

    # --- reload --------------------------------------------------------------------------------------------------

    async def _on_reload(self, options: DaemonOptions) -> None:
        """Applies the whole file or nothing of it, between two commits; the journal says what changed."""
        try:
            new = await asyncio.to_thread(reload_policy, options.config, self._policy)
            _check_web(options, new.config)
            poller = HttpClient(new.config.http_client)
        except UserError:
            self._reload = ReloadStatus(False, self._reload.at)
            raise
        old = self._policy
        if new.digest == old.digest:
            # Nothing to write: who may reload again and again must not fill the journal.
            await poller.close()
            self._reload = ReloadStatus(True, time.time())
            return
        try:
            await self._loop.submit(partial(self._apply_policy, old, new))
        except StoreError as error:
            await poller.close()
            self._reload = ReloadStatus(False, self._reload.at)
            raise UserError(f"the change could not be written to the journal: {error}") from error
        poller, self._poller = self._poller, poller
        await poller.close()
        self._policy = new
        self._reconciler.set_policy(new.config, new.inventory, new.leaves)
        self._auth.access = new.access
        if new.config.alertmanagers != old.config.alertmanagers:
            self._auth.all_known = not new.config.alertmanagers
        self._agents.seal = new.seal
        self._agents.wake_all()  # what agents are to do may have changed; else they learn it up to half a minute later
        self._reload = ReloadStatus(True, time.time())
        self._warn_if_open(options)
        self._poll.set()

    @staticmethod
    def _apply_policy(old: Policy, new: Policy, transaction: Transaction, _now: float) -> None:
        transaction.log(
            "fleet", "policy_reloaded", digest=new.digest, changes=changes(old.config, new.config)
        )

    # --- Alertmanager and metrics --------------------------------------------------------------------------------

    async def _poll_forever(self) -> None:
        polls = AlertmanagerPolls(self._poll.set, self._loop.clock)
        try:
            while True:
                await self._poll_once(polls)
        finally:
            polls.cancel()

    async def _poll_once(self, polls: AlertmanagerPolls) -> None:
        self._poll.clear()
        complete = True
        config = self._policy.config
        if config.alertmanagers:
            known = self._auth.alertmanagers
            found = await addresses_of(config.alertmanagers, known)
            if config is self._policy.config:  # not replaced meanwhile
                self._auth.alertmanagers, self._auth.all_known = found
            answers = await polls.ask(self._poller, config.alertmanagers)
            complete = None not in answers
            with suppress(StoreError):  # the commit loop has logged it
                count = sum(len(answer or ()) for answer in answers)
                await self._loop.submit(partial(self._on_poll, answers, polls.answered_at), alerts=count)
        interval = config.alertmanager_poll_s
        await wait_with_timeout(self._poll, interval if complete else min(_RETRY_POLL_S, interval))
        await asyncio.sleep(0.2)  # a storm of suspect alerts polls a few times a second, not for each

    def _on_poll(
        self,
        answers: list[tuple[Alert, ...] | None],
        asked_at: float,
        transaction: Transaction,
        now: float,
    ) -> None:
        self._reconciler.observed.on_poll(transaction, answers, now, asked_at)

    async def _metrics(self, text_format: TextFormat) -> bytes:
        return self._scrapes.answer(text_format, self._expose, time.monotonic)

    def _expose(self, text_format: TextFormat) -> bytes:
        return expose(
            self._policy,
            self._reload,
            self._loop,
            self._clock,
            self._store,
            self._webhook.statistics,
            self._database.lease_left_s() == float("inf"),
            self._auth.refused,
            self._agents.refused,
            {name: notifier.counts for name, notifier in self._notifiers.items()},
            text_format,
        )


async def run_receiver(policy: Policy, life: Lifetime, options: DaemonOptions) -> None:
    """Runs a receiver on the journal of its policy: at once with SQLite, once it leads with PostgreSQL."""
    if not is_postgres(policy.config.journal):
        await Receiver(policy, life, SqliteDatabase(Path(policy.config.journal))).run(options)
        return
    try:
        from fabricpulse.remediation.receiver.standby import Standby
        from fabricpulse.remediation.receiver.store.postgres_database import PostgresDatabase
    except ImportError as error:
        raise UserError(
            f"journal is a PostgreSQL URL, and its driver is missing ({error}): pip install 'fabricpulse[postgres]'"
        ) from error
    database = PostgresDatabase(policy.config.journal, policy.config.lease_s)
    try:
        if await Standby(database, life).lead(options):
            await Receiver(policy, life, database).run(options)
    finally:
        database.close()


def _check_web(options: DaemonOptions, config: ReceiverConfig) -> bool:
    """Whether the web configuration asks for passwords. Raises UserError where an entry of access needs them."""
    users = WebConfig.load(options.web.config).content.basic_auth_users if options.web.config else {}
    unknown = [entry.user for entry in config.access if entry.user and entry.user not in users]
    if unknown:
        raise UserError(f"access: user {unknown[0]} is not in basic_auth_users of --web.config.file")
    return bool(users)
