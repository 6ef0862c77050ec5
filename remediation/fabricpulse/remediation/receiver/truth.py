"""Asking the Alertmanagers what is active: notifications get lost, repeat and lie; the list does not."""

import asyncio

import aiohttp

from fabricpulse.core.log import get_logger
from fabricpulse.remediation.receiver.payload import Alert, PayloadError, parse_pulled

log = get_logger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=5)


async def pull_active(session: aiohttp.ClientSession, urls: tuple[str, ...]) -> tuple[list[Alert], bool]:
    """The alerts that any Alertmanager holds active, and whether all of them answered."""
    answers = await asyncio.gather(*(_pull(session, url) for url in urls))
    active: dict[str, Alert] = {}
    for alerts in answers:
        for alert in alerts or ():
            active[alert.fingerprint] = alert
    return list(active.values()), bool(urls) and all(alerts is not None for alerts in answers)


async def _pull(session: aiohttp.ClientSession, url: str) -> tuple[Alert, ...] | None:
    target = url.rstrip("/") + "/api/v2/alerts"
    try:
        async with session.get(
            target, params={"active": "true", "silenced": "false", "inhibited": "false"}, timeout=_TIMEOUT
        ) as answer:
            if answer.status != 200:
                log.warning("Alertmanager did not give its alerts", url=target, status=answer.status)
                return None
            return parse_pulled(await answer.read())
    except (aiohttp.ClientError, TimeoutError, PayloadError) as error:
        log.warning(
            "Alertmanager did not give its alerts", url=target, error=str(error) or type(error).__name__
        )
        return None
