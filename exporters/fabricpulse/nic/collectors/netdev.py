"""`/sys/class/net`: carrier, its counts, speed, MTU, traffic and errors of each link."""

from collections.abc import Sequence
from typing import Self

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import sample_prefix
from fabricpulse.hostinfo.inventory import Netdev
from fabricpulse.hostinfo.sysfs import CachedDirectory, DescriptorBudget
from fabricpulse.nic.collectors.base import Collector, Context, Environment, register
from fabricpulse.nic.metric_spec import LINK, counter, gauge

LINK_CARRIER = gauge(
    "link_carrier",
    "1 if the netdev has a carrier (class/net/IF/carrier); absent while it is administratively down.",
    LINK,
)
LINK_OPERATIONAL = gauge("link_operational", "1 if class/net/IF/operstate is up, else 0.", LINK)
LINK_ADMIN_UP = gauge(
    "link_admin_up", "1 if the netdev is administratively up (IFF_UP of class/net/IF/flags).", LINK
)
LINK_SPEED = gauge(
    "link_speed_bytes_per_second",
    "Speed from class/net/IF/speed, Mb/s converted to bytes per second; absent when the driver does not know it.",
    LINK,
)
LINK_MTU = gauge("link_mtu_bytes", "Maximum transmission unit from class/net/IF/mtu.", LINK)
CARRIER_CHANGES = counter(
    "carrier_changes",
    "Carrier changes, up and down, counted by the kernel since the netdev exists (class/net/IF/carrier_changes).",
    LINK,
)
CARRIER_UP = counter(
    "carrier_up_changes",
    "Times the carrier came up, counted by the kernel (class/net/IF/carrier_up_count).",
    LINK,
)
CARRIER_DOWN = counter(
    "carrier_down_changes",
    "Times the carrier was lost, counted by the kernel (class/net/IF/carrier_down_count).",
    LINK,
)
LINK_RECEIVED_BYTES = counter(
    "link_received_bytes", "Octets received by the netdev (statistics/rx_bytes).", LINK
)
LINK_TRANSMITTED_BYTES = counter(
    "link_transmitted_bytes", "Octets transmitted by the netdev (statistics/tx_bytes).", LINK
)
LINK_RECEIVE_ERRORS = counter(
    "link_receive_errors", "Receive errors of the netdev (statistics/rx_errors).", LINK
)
LINK_TRANSMIT_ERRORS = counter(
    "link_transmit_errors", "Transmit errors of the netdev (statistics/tx_errors).", LINK
)
LINK_RECEIVE_DROPS = counter(
    "link_receive_drops", "Packets dropped on receive (statistics/rx_dropped).", LINK
)
LINK_TRANSMIT_DROPS = counter(
    "link_transmit_drops", "Packets dropped on transmit (statistics/tx_dropped).", LINK
)
LINK_CRC_ERRORS = counter("link_crc_errors", "Frames with a wrong CRC (statistics/rx_crc_errors).", LINK)

_COUNTERS: dict[str, MetricSpec] = {
    "carrier_changes": CARRIER_CHANGES,
    "carrier_up_count": CARRIER_UP,
    "carrier_down_count": CARRIER_DOWN,
}
_STATISTICS: dict[str, MetricSpec] = {
    "rx_bytes": LINK_RECEIVED_BYTES,
    "tx_bytes": LINK_TRANSMITTED_BYTES,
    "rx_errors": LINK_RECEIVE_ERRORS,
    "tx_errors": LINK_TRANSMIT_ERRORS,
    "rx_dropped": LINK_RECEIVE_DROPS,
    "tx_dropped": LINK_TRANSMIT_DROPS,
    "rx_crc_errors": LINK_CRC_ERRORS,
}
_ATTRIBUTES = frozenset({*_COUNTERS, "carrier", "operstate", "flags", "speed", "mtu"})
_GAUGES = (LINK_CARRIER, LINK_OPERATIONAL, LINK_ADMIN_UP, LINK_SPEED, LINK_MTU)
_IFF_UP = 1


class _Link:
    def __init__(self, netdev: Netdev, budget: DescriptorBudget) -> None:
        self.device = netdev.name
        # carrier and speed decline while the link is administratively down.
        self.attributes = CachedDirectory(netdev.path, netdev.name, budget, _ATTRIBUTES, pauses=False)
        self.statistics = CachedDirectory(
            f"{netdev.path}/statistics", netdev.name, budget, frozenset(_STATISTICS)
        )
        specs = (*_COUNTERS.values(), *_STATISTICS.values(), *_GAUGES)
        self.prefixes = {spec.name: sample_prefix(spec, netdev.labels) for spec in specs}

    def close(self) -> None:
        self.attributes.close()
        self.statistics.close()


@register()
class NetdevCollector(Collector):
    """State and counters of links; one target a netdev."""

    name = "netdev"
    order = 20

    @classmethod
    def make(cls, environment: Environment) -> Self:
        return cls(environment.budget)

    def __init__(self, budget: DescriptorBudget) -> None:
        self._budget = budget
        self._kept: dict[str, tuple[Netdev, _Link]] = {}

    def targets(self, context: Context) -> Sequence[str]:
        present = {netdev.name: netdev for netdev in context.inventory.netdevs}
        for name, (netdev, link) in list(self._kept.items()):
            if present.get(name) != netdev:
                link.close()
                del self._kept[name]
        for name, netdev in present.items():
            if name not in self._kept:
                self._kept[name] = (netdev, _Link(netdev, self._budget))
        return list(present)

    def collect(self, target: str, context: Context) -> None:
        link = self._kept[target][1]
        if link.attributes.refresh(context.errors):
            self._counters(link, link.attributes, _COUNTERS, context)
            self._state(link, context)
        if link.statistics.refresh(context.errors):
            self._counters(link, link.statistics, _STATISTICS, context)

    def _counters(
        self, link: _Link, directory: CachedDirectory, names: dict[str, MetricSpec], context: Context
    ) -> None:
        for name, spec in names.items():
            file = directory.files.get(name)
            if file is None:
                continue
            raw = file.read(context.now, link.device, context.errors)
            if raw is None:
                continue
            if raw.isdigit() and len(raw) <= 20:
                context.sink.line(spec.name, f"{link.prefixes[spec.name]}{raw.decode('ascii')}\n")
            else:
                context.errors.add(link.device, file.path, "unparsable" if raw else "empty")

    def _state(self, link: _Link, context: Context) -> None:
        directory, now, errors = link.attributes, context.now, context.errors

        def line(spec: MetricSpec, value: int) -> None:
            context.sink.line(spec.name, f"{link.prefixes[spec.name]}{value}\n")

        flags = directory.read("flags", now, errors)
        if flags is not None:
            try:
                admin_up = bool(int(flags, 16) & _IFF_UP)
                line(LINK_ADMIN_UP, int(admin_up))
            except ValueError:
                errors.add(link.device, f"{directory.path}/flags", "unparsable" if flags else "empty")
                admin_up = True
        else:
            admin_up = True
        # The kernel answers EINVAL for carrier and speed of a link that is administratively down: not worth a call.
        if admin_up:
            carrier = directory.read("carrier", now, errors)
            if carrier in (b"0", b"1"):
                line(LINK_CARRIER, int(carrier))
            elif carrier is not None:
                errors.add(link.device, f"{directory.path}/carrier", "unparsable" if carrier else "empty")
            self._speed(link, context)
        operstate = directory.read("operstate", now, errors)
        if operstate:
            line(LINK_OPERATIONAL, int(operstate == b"up"))
        mtu = directory.read("mtu", now, errors)
        if mtu is not None:
            if mtu.isdigit() and len(mtu) < 11:
                line(LINK_MTU, int(mtu))
            else:
                errors.add(link.device, f"{directory.path}/mtu", "unparsable" if mtu else "empty")

    def _speed(self, link: _Link, context: Context) -> None:
        raw = link.attributes.read("speed", context.now, context.errors)
        if raw is None or raw in (b"-1", b"4294967295"):
            return
        if raw.isdigit() and len(raw) < 12:
            name = LINK_SPEED.name
            context.sink.line(name, f"{link.prefixes[name]}{int(raw) * 125_000}\n")
        else:
            context.errors.add(link.device, f"{link.attributes.path}/speed", "unparsable" if raw else "empty")

    def close(self) -> None:
        for _, link in self._kept.values():
            link.close()
        self._kept.clear()
