"""Polls Alertmanager for active alerts; webhook delivery is at-least-once and unordered."""

import asyncio

import aiohttp

from fabricpulse.core.log import get_logger
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.core.web.urls import redact
from fabricpulse.remediation.receiver.payload import Alert, PayloadError, parse_polled

log = get_logger(__name__)

# Three times what 200,000 alerts take.
_MOST_BODY = 256 << 20
_QUERY = {"active": "true", "silenced": "true", "inhibited": "true", "unprocessed": "true"}


async def poll_alertmanagers(client: HttpClient, urls: tuple[str, ...]) -> list[tuple[Alert, ...] | None]:
    """The active alerts of each Alertmanager, in the order of `urls`; None for one that did not answer."""
    return list(await asyncio.gather(*(_poll(client, url) for url in urls)))


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
