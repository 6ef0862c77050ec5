"""Alertmanager's webhook: 200 means that the body and what follows from it are in the journal."""

import asyncio
import hashlib
import time
import zlib
from bisect import bisect_left
from collections import Counter
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from fabricpulse.core.log import get_logger
from fabricpulse.core.log_limit import LogLimit
from fabricpulse.core.web.body_limit import body_limit
from fabricpulse.remediation import metrics
from fabricpulse.remediation.receiver.commit_loop import CommitLoop
from fabricpulse.remediation.receiver.payload import (
    Alert,
    DeadLetter,
    Notification,
    PayloadError,
    TooManyAlertsError,
    parse_notification,
)
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.transaction import Transaction
from fabricpulse.remediation.receiver.store.store import Delivery, StoreError
from fabricpulse.remediation.receiver.web.byte_gate import ByteGate

log = get_logger(__name__)

PATH = "/api/v1/alertmanager"
MAX_BODY = 64 << 20
# Bodies being worked on; more are answered 503, and Alertmanager sends them again.
_MAX_AT_ONCE = 512
# Below this a body is parsed in less time than handing it to a thread takes.
_INLINE_BYTES = 32 << 10
_PARSED_AT_ONCE = 2
# A body of more alerts is journaled in parts of so many: each part has the whole time that a commit may take, and what
# else comes in is answered between them. Sent again after a failure it goes on where it ended: an alert that is known
# already changes next to nothing.
_PART = 2_000
# As many NICs as the largest fleets have. More is answered 413, and their Alertmanagers are polled.
_MAX_ALERTS = 200_000
# Of one body: what is wrong with its alerts is wrong with most of them alike.
_MAX_DEAD_LETTERS = 100
_MOST_LETTER = 4_096


class Histogram:
    """Counts of observations, by the buckets of INGEST_SECONDS."""

    def __init__(self) -> None:
        self.counts = [0] * (len(metrics.INGEST_SECONDS.buckets) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Adds one."""
        self.counts[bisect_left(metrics.INGEST_SECONDS.buckets, seconds)] += 1
        self.total += seconds


class IngestStatistics:
    """Counters of the webhook since the start."""

    def __init__(self) -> None:
        self.deliveries: Counter[int] = Counter({200: 0, 400: 0, 413: 0, 503: 0})
        self.alerts = 0
        self.dead_letters = 0
        self.seconds = Histogram()


class Webhook:
    """`POST /api/v1/alertmanager`. poll : set when the Alertmanagers must be asked what is active."""

    def __init__(self, loop: CommitLoop, reconciler: Reconciler, poll: asyncio.Event) -> None:
        self._loop = loop
        self._reconciler = reconciler
        self._poll = poll
        self._working = 0
        self._gate = ByteGate(MAX_BODY)
        # Threads that parse take the interpreter from the event loop: each of them for 5 ms at a time.
        self._parsing = asyncio.Semaphore(_PARSED_AT_ONCE)
        self.statistics = IngestStatistics()
        self._limit = LogLimit(60.0)

    def add(self, router: web.UrlDispatcher) -> None:
        """Adds the route."""
        router.add_post(PATH, self._post)

    @body_limit(MAX_BODY)
    async def _post(self, request: web.Request) -> web.Response:
        """200 when the body and what follows from it are durable; 400 when it is no webhook; 413 when it is larger
        than any fleet needs; 503 for our own faults.

        Never 429 or any other 4xx for a fault of ours: Alertmanager drops what is answered so, and sends again what is
        answered 5xx, at each flush for as long as the alerts fire. So a body that is large must never be 503 for being
        large.
        """
        if self._working >= _MAX_AT_ONCE:
            return self._answer(503, "busy, try again\n")
        self._working += 1
        try:
            received_at, begun = self._loop.clock(), time.monotonic()
            body = await request.read()
            async with self._gate.hold(len(body)):
                return await self._take(body, received_at, begun)
        except StoreError as error:
            self._complain("delivery not accepted", reason=str(error))
            return self._answer(503, "journal unavailable, try again\n")
        finally:
            self._working -= 1

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts a body that was not taken in. One that is too large will not get smaller: the Alertmanagers are polled
        for its alerts."""
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            if request.path == PATH:
                self.statistics.deliveries[413] += 1
                self._poll.set()
            raise
        except web.HTTPServiceUnavailable:
            if request.path == PATH:
                self.statistics.deliveries[503] += 1
            raise

    async def _take(self, body: bytes, received_at: float, begun: float) -> web.Response:
        try:
            if len(body) <= _INLINE_BYTES:
                notification, delivery = _parse(body, received_at)
            else:
                async with self._parsing:
                    notification, delivery = await asyncio.to_thread(_parse, body, received_at)
        except TooManyAlertsError as error:
            self._complain("delivery has too many alerts", reason=str(error))
            self._poll.set()
            return self._answer(413, f"{error}; set max_alerts\n")
        except PayloadError as error:
            return await self._refuse(body, str(error))
        if self._reconciler.observed.must_come_again(
            self._loop.state, notification.alerts, self._loop.clock()
        ):
            return self._answer(503, "the Alertmanagers were not asked yet, try again\n")
        suspect, buried = False, 0
        for start in range(0, max(1, len(notification.alerts)), _PART):
            alerts = notification.alerts[start : start + _PART]
            # The whole body goes with the first part: nothing is decided about an alert that is not in the journal.
            unreadable = notification.dead_letters if start == 0 else ()
            room = max(0, _MAX_DEAD_LETTERS - buried)
            found = await self._take_part(alerts, delivery if start == 0 else None, unreadable, room)
            suspect |= found[0]
            buried += found[1]
            self.statistics.dead_letters += found[1]
        self.statistics.alerts += len(notification.alerts)
        self.statistics.seconds.observe(time.monotonic() - begun)
        if notification.truncated or suspect:
            self._poll.set()
        return self._answer(200, "journaled\n")

    def _complain(self, event: str, **fields: Any) -> None:
        """In the log, once a minute of each kind: who may send can cause thousands a second. All are counted."""
        if self._limit.allows(event):
            log.error(event, **fields, suppressed=self._limit.take_suppressed())

    async def _take_part(
        self,
        alerts: tuple[Alert, ...],
        delivery: Delivery | None,
        unreadable: tuple[DeadLetter, ...],
        room: int,
    ) -> tuple[bool, int]:
        """Whether an alert is suspect, and how many have come to nothing. room : of those that are kept."""
        suspect = False
        letters = list(unreadable[:room])
        unplaced: list[tuple[Alert, str]] = []

        def change(transaction: Transaction, now: float) -> None:
            nonlocal suspect
            suspect = self._reconciler.observed.on_alerts(transaction, alerts, now, unplaced)
            for alert, reason in unplaced[: room - len(letters)]:
                letters.append(DeadLetter(repr(alert.labels)[:_MOST_LETTER].encode(), reason))

        await self._loop.submit(change, delivery, letters, alerts=len(alerts))
        return suspect, len(unreadable) + len(unplaced)

    async def _refuse(self, body: bytes, reason: str) -> web.Response:
        digest = hashlib.sha256(body).hexdigest()
        self._complain("body is not a webhook", reason=reason, bytes=len(body), sha256=digest)
        letter = DeadLetter(body[:_MOST_LETTER], f"not a webhook, sha256 {digest}: {reason}"[:_MOST_LETTER])
        await self._loop.submit(lambda _transaction, _now: None, dead_letters=(letter,))
        return self._answer(400, "not an Alertmanager webhook, version 4\n")

    def _answer(self, status: int, text: str) -> web.Response:
        self.statistics.deliveries[status] += 1
        return web.Response(status=status, text=text)


def _parse(body: bytes, received_at: float) -> tuple[Notification, Delivery]:
    notification = parse_notification(body, _MAX_ALERTS)
    if len(body) <= _INLINE_BYTES:
        return notification, Delivery(received_at, notification.digest, body)
    return notification, Delivery(received_at, notification.digest, zlib.compress(body, 1), deflated=True)
