"""Tells others what was decided: a webhook for each line of the journal, or an annotation in Grafana.

The journal is the outbox: lines are sent in order, each until it is accepted, and how far it got is part of the state.
A restart may send the last lines again; `id` tells them apart. A destination that does not answer holds up only itself.
"""

import asyncio
import html
from collections import Counter
from typing import Any

import aiohttp

from fabricpulse.core.log import get_logger
from fabricpulse.core.output import printable
from fabricpulse.core.waiting import wait_with_timeout
from fabricpulse.core.web.client import HttpClient, describe
from fabricpulse.core.web.urls import redact
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.receiver.commit_loop import CommitLoop
from fabricpulse.remediation.receiver.config import NotifyConfig
from fabricpulse.remediation.receiver.state.transaction import Transaction
from fabricpulse.remediation.receiver.store.store import Store, StoreError

log = get_logger(__name__)

_PAGE = 500
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0
# No event wakes it for the lines that it has not read yet because the page was full, or the store busy.
_POLL_S = 30.0
_TEXT = 500


class Notifier:
    """One destination. counts : lines by `sent` and `failed`, failed once a try."""

    def __init__(self, config: NotifyConfig, loop: CommitLoop, store: Store) -> None:
        self._config = config
        self._loop = loop
        self._store = store
        self._wake = asyncio.Event()
        self.counts: Counter[str] = Counter({"sent": 0, "failed": 0})

    def wake(self) -> None:
        """There are new lines."""
        self._wake.set()

    async def run(self) -> None:
        """Sends until cancelled."""
        client = HttpClient(self._config.http_client)
        try:
            while True:
                self._wake.clear()
                try:
                    more = await self._send_page(client)
                except StoreError:
                    more = False  # the commit loop has logged it
                if not more:
                    await wait_with_timeout(self._wake, _POLL_S)
        finally:
            await client.close()

    async def _send_page(self, client: HttpClient) -> bool:
        """Sends the next lines; True when there may be more."""
        done = self._loop.state.notified.get(self._config.name)
        if done is None:
            # A new destination does not get earlier events.
            await self._note(self._store.seal().length)
            return True
        lines = await asyncio.to_thread(self._store.transitions, done, _PAGE)
        for line in lines:
            if line["event"] in self._config.events:
                await self._send(client, line)
                failpoints.reach("receiver.after_notification")
                await self._note(line["id"])
        if lines and lines[-1]["id"] != self._loop.state.notified.get(self._config.name):
            await self._note(lines[-1]["id"])
        return len(lines) == _PAGE

    async def _note(self, number: int) -> None:
        def change(transaction: Transaction, _now: float) -> None:
            transaction.set(notified={**transaction.notified, self._config.name: number})

        await self._loop.submit(change)

    async def _send(self, client: HttpClient, line: dict[str, Any]) -> None:
        """Returns once the line is accepted, or refused for good (4xx): trying that again does not help."""
        body = message_of(self._config, line)
        wait_s, logged = _FIRST_RETRY_S, ""
        while True:
            try:
                async with client.request("POST", self._config.target, json=body) as answer:
                    status = answer.status
                if status < 300:
                    self.counts["sent"] += 1
                    return
                reason = f"HTTP {status}"
            except (aiohttp.ClientError, OSError) as error:
                status, reason = 0, describe(error)
            self.counts["failed"] += 1
            if reason != logged:
                logged = reason
                log.warning(
                    "notification not delivered",
                    name=self._config.name,
                    url=redact(self._config.url),
                    reason=reason,
                )
            if 400 <= status < 500 and status not in (401, 403, 408, 429):
                return
            await asyncio.sleep(wait_s)
            wait_s = min(_LAST_RETRY_S, wait_s * 2)


def message_of(config: NotifyConfig, line: dict[str, Any]) -> dict[str, Any]:
    """The body for one line of the journal.

    Grafana shows the text of an annotation as HTML: what came from elsewhere is escaped.
    """
    host, _, device = line["subject"].partition("/")
    if config.kind == "webhook":
        return {
            "version": "1",
            "id": line["id"],
            "at": line["at"],
            "event": line["event"],
            "host": host,
            "device": device,
            "detail": line["detail"],
        }
    reason = str(line["detail"].get("reason") or line["detail"].get("message") or "")[:_TEXT]
    text = f"{line['subject']} {line['event']}" + (f": {reason}" if reason else "")
    return {
        "time": int(line["at"] * 1000),
        "tags": ["fabricpulse", line["event"], host, *([device] if device else [])],
        "text": html.escape(printable(text)),
    }
