"""A lost NIC goes straight to Alertmanager (API v2), under the very labels that the rule gives: one alert, not two.

The rule FabricNicDisconnected (mixins/alerts/nic.libsonnet) would say the same some seconds later. Alertmanager tells
alerts apart by their labels alone, so the push is only early, never extra. Alerts are sent again while they fire, with
an end in the future that holds for some repeats (as Prometheus does), so that an alert of a host that has died resolves
by itself, and once more with an end in the past when the NIC is back.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp

from fabricpulse.core.log import get_logger
from fabricpulse.core.waiting import wait_at_most
from fabricpulse.exporters.mesh.config import Alerting

log = get_logger(__name__)

ALERT_NAME = "FabricNicDisconnected"
RULE_LABELS = {"alertname": ALERT_NAME, "component": "mesh", "severity": "critical"}
RUNBOOK_URL = f"https://github.com/fabricpulse/fabricpulse/blob/main/docs/runbooks/{ALERT_NAME}.md"
# Prometheus lets an alert expire after four missed repeats; so does this.
_REPEATS_UNTIL_EXPIRY = 4
_TIMEOUT_S = 2.0


@dataclass
class NicAlert:
    """One disconnected NIC. starts_s, ends_s : seconds since 1970; ends_s None while it fires."""

    device: str
    network: str
    starts_s: float
    ends_s: float | None = None

    def body(self, config: Alerting, host: str, now_s: float) -> dict[str, Any]:
        """The alert as API v2 takes it."""
        labels = {**config.labels, **RULE_LABELS, "device": self.device, "network": self.network}
        instance = labels.get("instance", host)
        ends = self.ends_s if self.ends_s is not None else now_s + _REPEATS_UNTIL_EXPIRY * config.resend_s
        return {
            "labels": labels,
            "annotations": {
                "summary": "A NIC has lost the fabric.",
                "description": f"NIC {self.device} of {instance} reaches none of its peers on network {self.network}.",
                "runbook_url": RUNBOOK_URL,
            },
            "startsAt": rfc3339(self.starts_s),
            "endsAt": rfc3339(ends),
            "generatorURL": config.generator_url,
        }


def rfc3339(seconds: float) -> str:
    """A moment as Alertmanager reads it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class AlertPusher:
    """Keeps every Alertmanager told: one task each, so that a dead one delays none of the others."""

    def __init__(self, config: Alerting, host: str, clock: Callable[[], float]) -> None:
        """clock : seconds since 1970."""
        self._config = config
        self._host = host
        self._clock = clock
        self._alerts: dict[tuple[str, str], NicAlert] = {}
        self._changed = {url: asyncio.Event() for url in config.alertmanagers}
        self._resolved_left: dict[tuple[str, str], set[str]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._ssl: ssl.SSLContext | bool = True
        self.pushes = dict.fromkeys(config.alertmanagers, 0)
        self.failures = dict.fromkeys(config.alertmanagers, 0)

    async def start(self) -> None:
        """Starts the tasks. Raises OSError or ssl.SSLError for a ca_file that cannot be used."""
        if not self._config.alertmanagers:
            return
        if self._config.ca_file:
            self._ssl = await asyncio.to_thread(ssl.create_default_context, cafile=self._config.ca_file)
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        self._tasks = [asyncio.create_task(self._serve(url)) for url in self._config.alertmanagers]

    async def stop(self) -> None:
        """Ends the tasks; alerts that fire are left to expire, because a stopped exporter has not mended a NIC."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def fire(self, device: str, network: str) -> None:
        """The NIC is disconnected."""
        key = (device, network)
        alert = self._alerts.get(key)
        if alert is None or alert.ends_s is not None:
            self._alerts[key] = NicAlert(device, network, self._clock())
            self._resolved_left.pop(key, None)
            self._wake()

    def resolve(self, device: str, network: str) -> None:
        """The NIC is connected again, or is no longer ours."""
        key = (device, network)
        alert = self._alerts.get(key)
        if alert is not None and alert.ends_s is None:
            alert.ends_s = self._clock()
            self._resolved_left[key] = set(self._config.alertmanagers)
            self._wake()

    def firing(self) -> Mapping[tuple[str, str], NicAlert]:
        """The alerts that fire now, by device and network."""
        return {key: alert for key, alert in self._alerts.items() if alert.ends_s is None}

    def _wake(self) -> None:
        for event in self._changed.values():
            event.set()

    async def _serve(self, url: str) -> None:
        config = self._config
        pause = config.retry_s
        while True:
            event = self._changed[url]
            event.clear()
            batch = [
                (key, alert)
                for key, alert in self._alerts.items()
                if alert.ends_s is None or url in self._resolved_left.get(key, ())
            ]
            wait: float | None = config.resend_s if any(a.ends_s is None for _, a in batch) else None
            if batch:
                now = self._clock()
                body = [alert.body(config, self._host, now) for _, alert in batch]
                resolved = [key for key, alert in batch if alert.ends_s is not None]
                if await self._post(url, body):
                    pause = config.retry_s
                    self.pushes[url] += len(body)
                    for key in resolved:
                        self._confirm_resolved(key, url)
                else:
                    self.failures[url] += 1
                    wait, pause = pause, min(2 * pause, config.resend_s)
            await wait_at_most(event, wait)

    def _confirm_resolved(self, key: tuple[str, str], url: str) -> None:
        left = self._resolved_left.get(key)
        if left is None:  # it fires again
            return
        left.discard(url)
        if not left:
            del self._resolved_left[key]
            self._alerts.pop(key, None)

    async def _post(self, url: str, body: list[dict[str, Any]]) -> bool:
        assert self._session is not None  # noqa: S101 - start() made it
        try:
            async with self._session.post(
                f"{url.rstrip('/')}/api/v2/alerts", json=body, ssl=self._ssl
            ) as response:
                if response.status < 300:
                    return True
                text = (await response.text())[:200]
                log.warning("Alertmanager refused an alert", url=url, status=response.status, answer=text)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.warning("cannot reach Alertmanager", url=url, error=str(error) or type(error).__name__)
        return False
