"""What remediation has done about the NICs of a job: the newest lines of the receiver's journal that concern them."""

import re
from typing import Any

import aiohttp
import msgspec

from fabricpulse.core.output import printable
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.urls import redact
from fabricpulse.why.facts import Facts
from fabricpulse.why.report import Done

_LINES = 1000
_MOST_BODY = 16 << 20
_MOST_SHOWN = 20
_NAME = re.compile(r"[\w.-]+")


async def read_journal(
    url: str, config: HttpClientConfig, facts: Facts, since_s: float
) -> tuple[tuple[Done, ...] | None, str]:
    """Lines about NICs of the job from `since_s` on, newest first, and "" or why it could not be read. Never raises."""
    try:
        async with (
            HttpClient(config) as client,
            client.get(f"{url.rstrip('/')}/api/v1/events?last&limit={_LINES}") as response,
        ):
            body = await read_body(response, _MOST_BODY)
            if response.status != 200:
                return None, f"remediation receiver at {redact(url)} answers {response.status}"
        return select(msgspec.json.decode(body), facts, since_s), ""
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return None, f"remediation receiver at {redact(url)} cannot be reached: {printable(describe(error))}"
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return None, f"what answers at {redact(url)} is no receiver: {printable(str(error))}"


def select(lines: Any, facts: Facts, since_s: float) -> tuple[Done, ...]:
    """The lines of a journal that concern a NIC or host of the job. Lines of another form are passed over."""
    hosts = {host.name for host in facts.hosts}
    found = []
    for line in lines if isinstance(lines, list) else ():
        if not isinstance(line, dict):
            continue
        at_s, subject, event = line.get("at"), line.get("subject"), line.get("event")
        if not isinstance(at_s, int | float) or not isinstance(subject, str) or not isinstance(event, str):
            continue
        # Subjects are `host/device`, or an action's id whose detail names the target.
        about = f"{subject} {msgspec.json.encode(line.get('detail')).decode()}"
        # JSON's integers have any length.
        if since_s <= at_s < 1 << 63 and hosts & names_in(about):
            found.append(Done(float(at_s), subject, event))
    return tuple(sorted(found, key=lambda d: -d.at_s)[:_MOST_SHOWN])


def names_in(text: str) -> set[str]:
    """Whole names alone: `h1` is not in `h10/eth0`."""
    return set(_NAME.findall(text))
