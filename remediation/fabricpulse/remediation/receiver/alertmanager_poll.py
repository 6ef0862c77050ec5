"""Polls Alertmanager for active alerts; webhook delivery is at-least-once and unordered."""

import asyncio
import time
from collections.abc import Callable

import aiohttp

from fabricpulse.core.log import get_logger
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.core.web.urls import redact
from fabricpulse.remediation.receiver.payload import Alert, PayloadError, parse_polled

log = get_logger(__name__)

# Three times what 200,000 alerts take.
_MOST_BODY = 256 << 20
# After an answer, how long the others are waited for: the alerts of a leaf settle in five times as long.
_GRACE_S = 1.0
_QUERY = {"active": "true", "silenced": "true", "inhibited": "true", "unprocessed": "true"}


_Answer = asyncio.Task[tuple[Alert, ...] | None]


class AlertmanagerPolls:
    """Asks all Alertmanagers, and waits for none that hangs.

    Alerts that are not believed before they were asked wait for the answer. Those of one leaf must not come apart: some
    at once, and the others when a hanging Alertmanager has run out of its time, after the first ones have settled.
    """

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float] = time.time) -> None:
        """wake : called when an answer has come that no round waited for, so that the next one begins."""
        self._wake = wake
        self._clock = clock
        # By URL: what was asked and has not answered, in this round or in one before; and when, of each.
        self._asked: dict[str, _Answer] = {}
        self._asked_at: dict[str, float] = {}
        # When the newest of the questions was asked that the last round has an answer to. One that was late was asked
        # in a round before: what has begun since then may not be in it.
        self.answered_at = 0.0

    async def ask(self, client: HttpClient, urls: tuple[str, ...]) -> list[tuple[Alert, ...] | None]:
        """The active alerts of each Alertmanager, in the order of `urls`; None for one that did not answer, or has not
        a second after the first that did. Its answer counts in the next round."""
        for url in urls:
            if url not in self._asked:
                self._asked[url] = asyncio.create_task(_poll(client, url))
                self._asked_at[url] = self._clock()
        for url in self._asked.keys() - set(urls):
            self._asked.pop(url).cancel()
        waiting: set[_Answer] = set(self._asked.values())
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result() is not None for task in done):
                break
        if waiting:
            _, waiting = await asyncio.wait(waiting, timeout=_GRACE_S)
        for task in waiting:
            task.remove_done_callback(self._came)
            task.add_done_callback(self._came)
        answers = {url: task.result() for url, task in self._asked.items() if task not in waiting}
        self._asked = {url: task for url, task in self._asked.items() if task in waiting}
        given = [self._asked_at[url] for url, answer in answers.items() if answer is not None]
        self.answered_at = max(given, default=0.0)
        return [answers.get(url) for url in urls]

    def _came(self, task: _Answer) -> None:
        if not task.cancelled() and task.result() is not None:
            self._wake()

    def cancel(self) -> None:
        """Waits for no answer any more."""
        for task in self._asked.values():
            task.cancel()
        self._asked.clear()


async def _poll(client: HttpClient, url: str) -> tuple[Alert, ...] | None:
    target = url.rstrip("/") + "/api/v2/alerts"
    try:
        # No redirects: a server that is asked must not have others asked, which only this host may reach.
        async with client.get(target, params=_QUERY, allow_redirects=False) as response:
            if response.status != 200:
                log.warning(
                    "Alertmanager did not answer the poll", url=redact(target), status=response.status
                )
                return None
            body = await read_body(response, _MOST_BODY)
        return await asyncio.to_thread(parse_polled, body)
    except (aiohttp.ClientError, OSError, PayloadError) as error:
        log.warning("Alertmanager did not answer the poll", url=redact(target), error=describe(error))
        return None
