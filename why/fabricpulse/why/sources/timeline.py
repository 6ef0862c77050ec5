"""What the qp exporters of a job's hosts know of single collectives: `/api/v1/timeline` of each, at once.

The answers are those of other daemons on other hosts: so many bytes of each and of all, so many hosts at a time, and
one that does not answer costs its own part of the timeline and is named.
"""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlencode

import aiohttp
import msgspec

from fabricpulse.core.output import printable
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.plugin_ipc.timeline import HostTimeline

_AT_ONCE = 32
_MOST_BODY = 32 << 20
# An answer takes several times as much memory once it is decoded.
MOST_BYTES = 128 << 20
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})")
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Exporters:
    """Where the qp exporters are. url : with {host} in it. workload, seconds : what is asked for, back from now."""

    url: str
    config: HttpClientConfig
    workload: str
    seconds: int


async def read_timelines(
    exporters: Exporters, hosts: Iterable[str]
) -> tuple[list[HostTimeline], tuple[str, ...]]:
    """What the hosts say, by name, and sentences about those that say nothing. Raises ConfigError for a
    file that the configuration names and that cannot be used, nothing else."""
    found: list[HostTimeline] = []
    silent: dict[str, str] = {}
    received = 0
    places = asyncio.Semaphore(_AT_ONCE)

    async def ask(client: HttpClient, host: str) -> None:
        nonlocal received
        async with places:
            if received > MOST_BYTES:
                silent[host] = f"not asked: the others have sent {MOST_BYTES >> 20} MB"
                return
            try:
                query = urlencode({"workload": exporters.workload, "seconds": exporters.seconds})
                url = exporters.url.replace("{host}", host).rstrip("/")
                async with client.get(f"{url}/api/v1/timeline?{query}") as response:
                    body = await read_body(response, _MOST_BODY)
                    received += len(body)
                    if response.status != 200:
                        silent[host] = f"status {response.status}"
                        return
                found.append(_checked(msgspec.json.decode(body, type=HostTimeline)))
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                silent[host] = printable(describe(error))
            except (msgspec.DecodeError, RecursionError, ValueError) as error:
                silent[host] = f"what answers is no qp exporter of this version: {printable(str(error))}"

    async with HttpClient(exporters.config, connections=_AT_ONCE) as client:
        # A host is what a label says: a name, not a piece of a URL.
        named = sorted(set(hosts))
        silent |= {host: "no host name" for host in named if not _HOST_NAME.fullmatch(host)}
        await asyncio.gather(*(ask(client, host) for host in named if _HOST_NAME.fullmatch(host)))
    problems = [f"{host} ({reason})" for host, reason in sorted(silent.items())]
    notes = [f"cut at the newest entries: {t.host}" for t in found if t.cut]
    if problems:
        more = f", … ({len(problems)} in all)" if len(problems) > _MOST_SHOWN else ""
        notes.append(f"no timeline of {', '.join(problems[:_MOST_SHOWN])}{more}")
    return sorted(found, key=lambda t: t.host), tuple(notes)


def _checked(timeline: HostTimeline) -> HostTimeline:
    """Raises ValueError for a number that no exporter has: JSON's have any length, and floats do not hold them."""
    for p in timeline.processes:
        numbers = [p.pid, p.rank or 0]
        numbers += [
            n for o in p.operations for n in (o.number, o.rank, o.end_ns, o.bound_ns, o.took_ns, o.size)
        ]
        numbers += [n for c in p.changes for n in (c.at_ns, c.bound_ns, c.value)]
        if max(numbers) >= 1 << 64 or min(numbers) < -(1 << 63):
            raise ValueError("a number in it has more than 64 bits")
    return timeline
