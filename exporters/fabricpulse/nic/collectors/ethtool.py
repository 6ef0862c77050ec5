"""Statistics behind ethtool: PFC and drops per priority, PHY and FEC, pause, PCIe stalls; one target a netdev."""

import errno
from collections.abc import Callable, Mapping, Sequence

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import format_value, sample_prefix
from fabricpulse.hostinfo.inventory import Netdev
from fabricpulse.nic import ethtool_counters as c
from fabricpulse.nic.collectors.base import Context, register
from fabricpulse.nic.collectors.link_base import DECLINED, DECLINED_PAUSE_S, LinkCollector
from fabricpulse.nic.ethtool_counter_map import statistic

_FEC = {
    "corrected_blocks": c.FEC_CORRECTED,
    "uncorrectable_blocks": c.FEC_UNCORRECTABLE,
    "corrected_bits": c.FEC_CORRECTED_BITS,
}
_PAUSE = {"received": c.GLOBAL_PAUSE_RECEIVED, "transmitted": c.GLOBAL_PAUSE_TRANSMITTED}

Plan = list[tuple[int, str, str, int]]


class _Link:
    """What is kept of a netdev. plan : (position in the driver's list, metric, line prefix, divisor)."""

    def __init__(self, netdev: Netdev) -> None:
        self.netdev = netdev
        self.names: Sequence[str] | None = None
        self.plan: Plan = []
        self.not_before: dict[str, float] = {}


@register(c.METRICS)
class EthtoolCollector(LinkCollector[_Link]):
    """Statistics, FEC and pause frames of each netdev."""

    name = "ethtool"

    def new_link(self, netdev: Netdev) -> _Link:
        return _Link(netdev)

    def collect(self, target: str, context: Context) -> None:
        link = self._links[target]
        given: set[str] = set()
        self._part(link, "statistics", lambda: self._statistics(link, given, context), context)
        self._part(link, "fec", lambda: self._fec(link, given, context), context)
        self._part(link, "pause", lambda: self._pause(link, given, context), context)

    def _part(self, link: _Link, part: str, collect: Callable[[], None], context: Context) -> None:
        """Runs one part; a driver that declines it is not asked again for a while."""
        if context.now < link.not_before.get(part, 0.0):
            return
        try:
            collect()
        except OSError as error:
            if error.errno in DECLINED:
                link.not_before[part] = context.now + DECLINED_PAUSE_S
            else:
                reason = "permission" if error.errno in (errno.EPERM, errno.EACCES) else "ethtool"
                context.errors.add(link.netdev.name, f"ethtool {part}", reason)

    def _statistics(self, link: _Link, given: set[str], context: Context) -> None:
        statistics = self._source.statistics(link.netdev.name)
        if statistics.names is not link.names:
            link.plan = plan(statistics.names, link.netdev.labels)
            link.names = statistics.names
        values, lines = statistics.values, context.sink.lines
        for position, family, start, divisor in link.plan:
            value = values[position]
            text = str(value) if divisor == 1 else format_value(value / divisor)
            lines.setdefault(family, []).append(f"{start}{text}\n")
            given.add(family)

    def _fec(self, link: _Link, given: set[str], context: Context) -> None:
        self._named(_FEC, self._source.fec(link.netdev.name), link, given, context)

    def _pause(self, link: _Link, given: set[str], context: Context) -> None:
        self._named(_PAUSE, self._source.pause(link.netdev.name), link, given, context)

    @staticmethod
    def _named(
        specs: dict[str, MetricSpec],
        counts: Mapping[str, int],
        link: _Link,
        given: set[str],
        context: Context,
    ) -> None:
        for name, value in counts.items():
            spec = specs[name]
            # The driver's own list has it already, under its own name.
            if spec.name not in given:
                context.sink.add(spec, link.netdev.labels, value)


def plan(names: Sequence[str], labels: tuple[str]) -> Plan:
    """Which positions of a driver's list are exported, and how their lines begin.

    Of two names for one series the first is taken.
    """
    found: Plan = []
    taken: set[str] = set()
    for position, name in enumerate(names):
        mapped = statistic(name)
        if mapped is not None:
            start = sample_prefix(mapped.spec, (*labels, *mapped.extra))
            if start not in taken:
                taken.add(start)
                found.append((position, mapped.spec.name, start, mapped.divisor))
    return found
