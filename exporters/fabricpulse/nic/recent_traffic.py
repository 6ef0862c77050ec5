"""How many bytes each NIC moves a second (recent_growth.py): one series, where rules would read four counters of every
NIC of a fleet.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from fabricpulse.core.metrics.exposition import format_value
from fabricpulse.nic.metric_spec import LINK, gauge
from fabricpulse.nic.recent_growth import Key, RecentGrowth

RECENT_BYTES = gauge(
    "recent_bytes_per_second",
    "Bytes that a NIC has received and transmitted a second, over the last 2 minutes: those of the link and of RDMA, "
    "which the former leave out. No sample before the second scrape.",
    LINK,
)
# What RDMA moves is not in the counters of the netdev.
_FAMILIES = tuple(
    f"fabricpulse_nic_{name}_bytes_total"
    for name in ("link_received", "link_transmitted", "received", "transmitted")
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class RecentTraffic:
    """Takes in what the exporter is about to export."""

    def __init__(self) -> None:
        self._growth = RecentGrowth()

    def take(self, now: float, lines: Mapping[str, Sequence[str]]) -> None:
        """The rendered samples of one scrape by family. now : seconds of one clock."""
        self._growth.take(now, dict(_parsed(lines)))

    def lines(self) -> Iterator[tuple[str, str]]:
        """Family and line of each sample."""
        rates: dict[str, float] = {}
        for (device, *_), rate in self._growth.rates().items():
            rates[device] = rates.get(device, 0.0) + rate
        for device, rate in rates.items():
            # The name is escaped as it was.
            yield RECENT_BYTES.name, f'{RECENT_BYTES.name}{{device="{device}"}} {format_value(rate)}\n'


def _parsed(lines: Mapping[str, Sequence[str]]) -> Iterator[tuple[Key, float]]:
    for family in _FAMILIES:
        for line in lines.get(family, ()):
            start, _, value = line.rpartition(" ")
            labels = dict(_LABEL.findall(start))
            yield (labels.get("device", ""), labels.get("port", ""), family), float(value)
