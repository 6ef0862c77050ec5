"""An alert goes straight to Alertmanager (API v2), under the very labels that a rule gives: one alert, not two.

The rule raises the same some seconds later. Alertmanager identifies alerts by their labels alone, so the push is
only early, never extra. Alerts are sent again while they fire, with an end in the future that holds for some repeats
(as Prometheus does), so that an alert of a host that has died resolves by itself, and once more with an end in the past
when their fault is over.

That end is held back for `resolve_hold_s`: until Prometheus has scraped the recovery and evaluated the rule, its own
copy still fires, and would fire the alert anew that the push has just ended. If Prometheus resolves its copy within
that time, Alertmanager ends the alert then: an explicit end outweighs our end in the future.

Prometheus repeats a resolved alert each minute for a quarter of an hour, and such a repeat resolves a newer alert too.
So an alert that fires again within that time is sent each second until the rule can have fired anew.

Times are monotonic internally and converted to each Alertmanager's clock when sent: AlertmanagerTime.
"""

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import aiohttp

from fabricpulse.core.alerting.alertmanager_time import AlertmanagerTime
from fabricpulse.core.alerting.config import Alerting
from fabricpulse.core.log import get_logger
from fabricpulse.core.rfc3339 import rfc3339
from fabricpulse.core.waiting import wait_with_timeout
from fabricpulse.core.web.client import HttpClient, describe
from fabricpulse.core.web.urls import redact

log = get_logger(__name__)

Key = TypeVar("Key", bound=Hashable)

# Prometheus lets an alert expire after four missed repeats; so does this.
_REPEATS_UNTIL_EXPIRY = 4
_FLUSH_S = 2.0
# For how long Prometheus repeats a resolved alert, and how often an alert is sent that such a repeat may resolve.
_RESOLVE_REPEATED_S = 15 * 60.0
_CONTESTED_RESEND_S = 1.0


@dataclass(frozen=True)
class AlertContent:
    """Labels and annotations of an alert. labels : those of the rule, alertname and severity included."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    generator_url: str = ""


@dataclass
class PushedAlert:
    """One alert. All times are monotonic seconds, so that no clock step moves them.

    ended : None while it fires. due : when the end may be sent. contested_until : a repeated resolve for the previous
    time that it fired may arrive until then.
    """

    content: AlertContent
    started: float
    contested_until: float = 0.0
    ended: float | None = None
    due: float = 0.0

    def body(self, resend_s: float, now: float, wall_s: float, past_s: float) -> dict[str, Any]:
        """The alert as API v2 takes it.

        now : monotonic seconds. wall_s : the same moment for Alertmanager, as far as that is known. past_s : one that
        is over for it. Both are seconds since 1970.
        """
        starts_s = wall_s + self.started - now
        if self.ended is None:
            ends_s = wall_s + _REPEATS_UNTIL_EXPIRY * resend_s
        else:
            # An endsAt only slightly in the future resolves nothing: the later endsAt that was sent before wins.
            ends_s = min(wall_s + self.ended - now, past_s)
        return {
            "labels": dict(self.content.labels),
            "annotations": dict(self.content.annotations),
            "startsAt": _timestamp(min(starts_s, ends_s)),
            "endsAt": _timestamp(ends_s),
            "generatorURL": self.content.generator_url,
        }


def _timestamp(seconds: float) -> str:
    return rfc3339(round(seconds * 1e6) * 1000, 6)


class PushCounters:
    """Of one Alertmanager. requests : pushes. refused, unreachable : those that it did not take, and that did not reach
    it. taken : whether the last one was taken, None before the first.
    """

    def __init__(self) -> None:
        self.requests = self.refused = self.unreachable = 0
        self.taken: bool | None = None


class Pusher(Generic[Key]):
    """Keeps every Alertmanager up to date: one task each (`serve`), so that a dead one delays none of the others.

    Key : what identifies an alert here.
    """

    def __init__(
        self,
        config: Alerting,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock : seconds since 1970."""
        self._config = config
        self._clock = clock
        self._monotonic = monotonic
        self._times = {url: AlertmanagerTime() for url in config.alertmanagers}
        self._last_ended: dict[Key, float] = {}
        self._alerts: dict[Key, PushedAlert] = {}
        self._changed = {url: asyncio.Event() for url in config.alertmanagers}
        self._resolved_left: dict[Key, set[str]] = {}
        self._all_resolved = asyncio.Event()
        self._client: HttpClient | None = None
        self.pushes = {url: PushCounters() for url in config.alertmanagers}

    async def open(self) -> None:
        """Must come before `serve`. Raises ConfigError when a file of alerting.http_client cannot be used."""
        if self._config.alertmanagers:
            self._client = HttpClient(self._config.http_client)

    async def flush(self) -> None:
        """Before the tasks are cancelled: sends resolved alerts that are still held back, if the Alertmanagers accept
        them within two seconds. Firing alerts are left to expire, because a stopped daemon has fixed nothing.
        """
        if self._resolved_left:
            for key in self._resolved_left:
                self._alerts[key].due = 0.0
            self._wake()
            self._all_resolved.clear()
            await wait_with_timeout(self._all_resolved, _FLUSH_S)

    async def close(self) -> None:
        """Closes the connections, once the tasks have ended."""
        if self._client is not None:
            await self._client.close()

    def set_firing(self, key: Key, content: AlertContent) -> None:
        """The alert fires. No effect while it fires already."""
        alert = self._alerts.get(key)
        if alert is None or alert.ended is not None:
            now = self._monotonic()
            contested = now - self._last_ended.get(key, -_RESOLVE_REPEATED_S) < _RESOLVE_REPEATED_S
            until = now + self._config.resolve_hold_s if contested else now
            self._alerts[key] = PushedAlert(content, now, until)
            self._resolved_left.pop(key, None)
            self._wake()

    def set_resolved(self, key: Key) -> None:
        """The fault is over, or its state is no longer known."""
        alert = self._alerts.get(key)
        if alert is not None and alert.ended is None:
            if not self._config.alertmanagers:
                del self._alerts[key]
                return
            alert.ended = self._monotonic()
            alert.due = alert.ended + self._config.resolve_hold_s
            # From when the rule's copy ends at the latest.
            self._last_ended[key] = alert.due
            self._resolved_left[key] = set(self._config.alertmanagers)
            self._wake()

    def firing(self) -> Mapping[Key, PushedAlert]:
        """The alerts that fire now."""
        return {key: alert for key, alert in self._alerts.items() if alert.ended is None}

    def _wake(self) -> None:
        for event in self._changed.values():
            event.set()

    async def serve(self, url: str) -> None:
        """Keeps one Alertmanager up to date, until cancelled."""
        config = self._config
        pause = config.retry_s
        repeated = False
        await self._query_time(url)
        while True:
            event = self._changed[url]
            event.clear()
            now = self._monotonic()
            firing = [alert for alert in self._alerts.values() if alert.ended is None]
            ended = [(key, self._alerts[key]) for key, urls in self._resolved_left.items() if url in urls]
            due = [(key, alert) for key, alert in ended if alert.due <= now]
            held = [alert.due - now for _, alert in ended if alert.due > now]
            waits = [*held, *(self._resend_s(alert, now) for alert in firing)]
            wait = min(waits, default=None)
            ahead_s = self._times[url].ahead_s
            host_s = self._clock()
            wall_s, past_s = host_s + ahead_s, host_s + self._times[url].min_ahead_s
            to_send = [*firing, *(alert for _, alert in due)]
            if to_send:
                body = [alert.body(config.resend_s, now, wall_s, past_s) for alert in to_send]
                self.pushes[url].requests += 1
                if await self._post(url, body):
                    pause = config.retry_s
                    if self._times[url].ahead_s != ahead_s and not repeated:
                        repeated = True  # once: behind a proxy may be several, each with a clock of its own
                        continue
                    for key, alert in due:
                        self._confirm_resolved(key, alert, url)
                else:
                    wait, pause = pause, min(2 * pause, config.resend_s)
            repeated = False
            await wait_with_timeout(event, wait)

    def _resend_s(self, alert: PushedAlert, now: float) -> float:
        often = now < alert.contested_until
        return min(_CONTESTED_RESEND_S, self._config.resend_s) if often else self._config.resend_s

    def _confirm_resolved(self, key: Key, alert: PushedAlert, url: str) -> None:
        if self._alerts.get(key) is not alert:  # it fires again
            return
        left = self._resolved_left[key]
        left.discard(url)
        if not left:
            del self._resolved_left[key]
            del self._alerts[key]
        if not self._resolved_left:
            self._all_resolved.set()

    async def _query_time(self, url: str) -> None:
        """So that the first alert already carries the right times; without an answer the first push learns them."""
        assert self._client is not None  # noqa: S101 - open() made it
        sent_s = self._clock()
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with self._client.get(f"{url.rstrip('/')}/api/v2/status") as response:
                self._learn_time(url, response, sent_s)

    def _learn_time(self, url: str, response: aiohttp.ClientResponse, sent_s: float) -> None:
        clock = self._times[url]
        if clock.learn(response.headers.get("Date", ""), sent_s, self._clock()):
            log.warning(
                "the clock of an Alertmanager is not ours; alerts carry its time",
                url=redact(url),
                ahead_s=round(clock.ahead_s),
            )

    async def _post(self, url: str, body: list[dict[str, Any]]) -> bool:
        assert self._client is not None  # noqa: S101 - open() made it
        sent_s = self._clock()
        pushes = self.pushes[url]
        try:
            async with self._client.post(f"{url.rstrip('/')}/api/v2/alerts", json=body) as response:
                self._learn_time(url, response, sent_s)
                pushes.taken = response.status < 300
                if pushes.taken:
                    return True
                pushes.refused += 1
                # From a proxy it may be no text at all, or claim an unknown charset.
                text = (await response.content.read(200)).decode(errors="replace")
                log.warning(
                    "Alertmanager refused an alert", url=redact(url), status=response.status, answer=text
                )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            pushes.taken = False
            pushes.unreachable += 1
            log.warning("cannot reach Alertmanager", url=redact(url), error=describe(error))
        return False
