"""Whether probes get through to this host's NICs, from /metrics of its mesh exporter."""

from dataclasses import dataclass, field

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from fabricpulse.core.web.client import HttpClient
from fabricpulse.remediation.protocol import MAX_NICS

_CONNECTED = "fabricpulse_nic_connected"
_DISCONNECTS = "fabricpulse_nic_disconnects_total"


@dataclass(frozen=True)
class MeshNics:
    """NICs that the mesh measures: whether probes get through now, and how often they did not."""

    connected: dict[str, bool] = field(default_factory=dict)
    disconnects: dict[str, float] = field(default_factory=dict)


async def scrape_mesh(client: HttpClient, url: str) -> MeshNics:
    """The NICs of this host; none when the exporter does not answer. Not measured is not listed."""
    try:
        async with client.get(url) as response:
            text = await response.text() if response.status == 200 else ""
    except (aiohttp.ClientError, OSError, ValueError):
        return MeshNics()
    return parse_mesh(text)


def parse_mesh(text: str) -> MeshNics:
    """The NICs in an exposition; none when the text is not one."""
    lines = "\n".join(line for line in text.splitlines() if _CONNECTED in line or _DISCONNECTS in line) + "\n"
    found = MeshNics()
    try:
        for family in text_string_to_metric_families(lines):
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
