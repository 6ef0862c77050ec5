"""Polls Alertmanager for active alerts; webhook delivery is at-least-once and unordered."""

import asyncio

import aiohttp

from fabricpulse.core.log import get_logger
from fabricpulse.remediation.receiver.payload import Alert, PayloadError, parse_polled

log = get_logger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=5)
_QUERY = {"active": "true", "silenced": "true", "inhibited": "true", "unprocessed": "true"}


async def poll_alertmanagers(
    session: aiohttp.ClientSession, urls: tuple[str, ...]
) -> list[tuple[Alert, ...] | None]:
    """The active alerts of each Alertmanager, in the order of `urls`; None for one that did not answer."""
    return list(await asyncio.gather(*(_poll(session, url) for url in urls)))


async def _poll(session: aiohttp.ClientSession, url: str) -> tuple[Alert, ...] | None:
    target = url.rstrip("/") + "/api/v2/alerts"
    try:
        async with session.get(target, params=_QUERY, timeout=_TIMEOUT) as answer:
            if answer.status != 200:
                log.warning("Alertmanager did not give its alerts", url=target, status=answer.status)
                return None
            body = await answer.read()
        return await asyncio.to_thread(parse_polled, body)
    except (aiohttp.ClientError, TimeoutError, OSError, PayloadError) as error:
        log.warning(
            "Alertmanager did not give its alerts", url=target, error=str(error) or type(error).__name__
        )
        return None
