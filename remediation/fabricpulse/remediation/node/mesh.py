"""Whether probes get through to this host's NICs, from /metrics of its mesh exporter."""

import asyncio
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from fabricpulse.core.web.client import HttpClient, read_body
from fabricpulse.remediation.node.listeners import listeners
from fabricpulse.remediation.protocol import MAX_NICS

_CONNECTED = "fabricpulse_nic_connected"
_DISCONNECTS = "fabricpulse_nic_disconnects_total"
# Any local user can have the port of an exporter that does not run. Bytes of an exposition; of its lines about NICs so
# many are parsed, with so many characters each.
_MOST_BODY = 64 << 20
_MOST_LINES = 8 * MAX_NICS
_MOST_LINE = 4096


@dataclass(frozen=True)
class MeshNics:
    """NICs that the mesh measures: whether probes get through now, and how often they did not."""

    connected: dict[str, bool] = field(default_factory=dict)
    disconnects: dict[str, float] = field(default_factory=dict)


class SquattedError(Exception):
    """Another user than those of the mesh exporter listens on its port."""


async def scrape_mesh(client: HttpClient, url: str, users: AbstractSet[int] = frozenset()) -> MeshNics:
    """The NICs of this host; none when the exporter does not answer. Not measured is not listed.

    users : ids of the users one of whom the exporter runs as; any, if empty. Raises SquattedError when others listen on
    its port, where `url` is_local.
    """
    try:
        _check_listeners(url, users)
        # No redirects: who has the port must not have others asked, which only this host, or root, may reach.
        async with client.get(url, allow_redirects=False) as response:
            body = await read_body(response, _MOST_BODY) if response.status == 200 else b""
        # Again: one that has gone since then may have answered.
        _check_listeners(url, users)
    except (aiohttp.ClientError, OSError, ValueError):
        return MeshNics()
    # Not by the charset that the answer claims: there are codecs that make no text.
    return await asyncio.to_thread(lambda: parse_mesh(body.decode("utf-8", "replace")))


def _check_listeners(url: str, users: AbstractSet[int]) -> None:
    if users and (others := listeners(url) - users):
        raise SquattedError(f"user {min(others)} listens on the port of {url}, and is none of mesh_users")


def parse_mesh(text: str) -> MeshNics:
    """The NICs in an exposition; none when the text is not one."""
    own = (line for line in text.splitlines() if _CONNECTED in line or _DISCONNECTS in line)
    lines = [line for line in islice(own, _MOST_LINES) if len(line) <= _MOST_LINE]
    found = MeshNics()
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                device = sample.labels.get("device", "")
                if not 0 < len(device) <= 64 or len(found.connected) >= MAX_NICS:
                    continue
                if sample.name == _CONNECTED:
                    found.connected[device] = sample.value == 1
                elif sample.name == _DISCONNECTS:
                    found.disconnects[device] = float(sample.value)
    except ValueError:
        return MeshNics()
    return found
