"""Whether probes get through to this host's NICs, from /metrics of its mesh exporter."""

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from fabricpulse.core.web.client import HttpClient

_FAMILY = "fabricpulse_nic_connected"


async def connected_nics(client: HttpClient, url: str) -> dict[str, bool]:
    """NIC -> whether probes get through; empty when the exporter does not answer. Not measured is not listed."""
    try:
        async with client.get(url) as answer:
            text = await answer.text() if answer.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError):
        return {}
    return parse_connected(text)


def parse_connected(text: str) -> dict[str, bool]:
    """The samples of fabricpulse_nic_connected in an exposition, by device; {} when the text is not one."""
    lines = "\n".join(line for line in text.splitlines() if _FAMILY in line) + "\n"
    try:
        families = list(text_string_to_metric_families(lines))
    except ValueError:
        return {}
    return {
        sample.labels["device"]: sample.value == 1
        for family in families
        for sample in family.samples
        if sample.name == _FAMILY and "device" in sample.labels
    }
