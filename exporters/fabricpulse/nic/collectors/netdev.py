"""`/sys/class/net`: carrier, its counts, speed, MTU, traffic and errors of each link."""

from collections.abc import Sequence

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.nic.collectors.contract import Context, prefix
from fabricpulse.nic.inventory import Netdev
from fabricpulse.nic.metrics import netdev as m
from fabricpulse.nic.reader import DescriptorBudget, KeptDirectory

_COUNTERS: dict[str, MetricSpec] = {
    "carrier_changes": m.CARRIER_CHANGES,
    "carrier_up_count": m.CARRIER_UP,
    "carrier_down_count": m.CARRIER_DOWN,
}
_STATISTICS: dict[str, MetricSpec] = {
    "rx_bytes": m.LINK_RECEIVED_BYTES,
    "tx_bytes": m.LINK_TRANSMITTED_BYTES,
    "rx_errors": m.LINK_RECEIVE_ERRORS,
    "tx_errors": m.LINK_TRANSMIT_ERRORS,
    "rx_dropped": m.LINK_RECEIVE_DROPS,
    "tx_dropped": m.LINK_TRANSMIT_DROPS,
    "rx_crc_errors": m.LINK_CRC_ERRORS,
}
_ATTRIBUTES = frozenset({*_COUNTERS, "carrier", "operstate", "flags", "speed", "mtu"})
_GAUGES = (m.LINK_CARRIER, m.LINK_OPERATIONAL, m.LINK_ADMIN_UP, m.LINK_SPEED, m.LINK_MTU)
_IFF_UP = 1


class _Link:
    def __init__(self, netdev: Netdev, budget: DescriptorBudget) -> None:
        self.device = netdev.device
        # carrier and speed decline while the link is administratively down.
        self.attributes = KeptDirectory(netdev.path, netdev.device, budget, _ATTRIBUTES, pauses=False)
        self.statistics = KeptDirectory(
            f"{netdev.path}/statistics", netdev.device, budget, frozenset(_STATISTICS)
        )
        specs = (*_COUNTERS.values(), *_STATISTICS.values(), *_GAUGES)
        self.prefixes = {spec.name: prefix(spec, netdev.labels) for spec in specs}

    def close(self) -> None:
        self.attributes.close()
        self.statistics.close()


class NetdevCollector:
    """State and counters of links; one target a netdev."""

    name = "netdev"

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
        if link.attributes.refresh(context.faults):
            self._counters(link, link.attributes, _COUNTERS, context)
            self._state(link, context)
        if link.statistics.refresh(context.faults):
            self._counters(link, link.statistics, _STATISTICS, context)

    def _counters(
        self, link: _Link, directory: KeptDirectory, names: dict[str, MetricSpec], context: Context
    ) -> None:
        for name, spec in names.items():
            file = directory.files.get(name)
            if file is None:
                continue
            raw = file.read(context.now, link.device, context.faults)
            if raw is None:
                continue
            if raw.isdigit() and len(raw) <= 20:
                context.sink.line(spec.name, f"{link.prefixes[spec.name]}{raw.decode('ascii')}\n")
            else:
                context.faults.add(link.device, file.path, "unparsable" if raw else "empty")

    def _state(self, link: _Link, context: Context) -> None:
        directory, now, faults = link.attributes, context.now, context.faults

        def line(spec: MetricSpec, value: int) -> None:
            context.sink.line(spec.name, f"{link.prefixes[spec.name]}{value}\n")

        flags = directory.read("flags", now, faults)
        if flags is not None:
            try:
                admin_up = bool(int(flags, 16) & _IFF_UP)
                line(m.LINK_ADMIN_UP, int(admin_up))
            except ValueError:
                faults.add(link.device, f"{directory.path}/flags", "unparsable" if flags else "empty")
                admin_up = True
        else:
            admin_up = True
        # The kernel answers EINVAL for carrier and speed of a link that is administratively down: not worth a call.
        if admin_up:
            carrier = directory.read("carrier", now, faults)
            if carrier in (b"0", b"1"):
                line(m.LINK_CARRIER, int(carrier))
            elif carrier is not None:
                faults.add(link.device, f"{directory.path}/carrier", "unparsable" if carrier else "empty")
            self._speed(link, context)
        operstate = directory.read("operstate", now, faults)
        if operstate:
            line(m.LINK_OPERATIONAL, int(operstate == b"up"))
        mtu = directory.read("mtu", now, faults)
        if mtu is not None:
            if mtu.isdigit() and len(mtu) < 11:
                line(m.LINK_MTU, int(mtu))
            else:
                faults.add(link.device, f"{directory.path}/mtu", "unparsable" if mtu else "empty")

    def _speed(self, link: _Link, context: Context) -> None:
        raw = link.attributes.read("speed", context.now, context.faults)
        if raw is None or raw in (b"-1", b"4294967295"):
            return
        if raw.isdigit() and len(raw) < 12:
            name = m.LINK_SPEED.name
            context.sink.line(name, f"{link.prefixes[name]}{int(raw) * 125_000}\n")
        else:
            context.faults.add(link.device, f"{link.attributes.path}/speed", "unparsable" if raw else "empty")

    def close(self) -> None:
        for _, link in self._kept.values():
            link.close()
        self._kept.clear()
