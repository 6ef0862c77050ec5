"""RDMA resources: how many queue pairs and the like exist on each device, and optional counters of congestion control.

`resources` asks for totals, which the kernel keeps. `queue_pairs` (off by default) goes through every queue pair, of
which a host in use has tens of thousands.
"""

import errno
from collections.abc import Sequence
from typing import Self

from fabricpulse.hostinfo.inventory import RdmaDevice
from fabricpulse.hostinfo.netlink.rdma import RdmaSource
from fabricpulse.nic.collectors.base import Collector, Context, Environment, register
from fabricpulse.nic.collectors.link_base import DECLINED, DECLINED_PAUSE_S
from fabricpulse.nic.metric_spec import RDMA, counter, gauge

RESOURCES = gauge(
    "rdma_resources",
    "RDMA resources that exist on the device, by kind: qp, cq, mr, pd, cm_id, ctx, srq (RDMA netlink).",
    (*RDMA, "resource"),
)
QP_COUNT = gauge(
    "queue_pairs",
    "Queue pairs on the device by type and state (RDMA netlink; collector queue_pairs).",
    (*RDMA, "qp_type", "state"),
)
CC_MARKED_RECEIVED = counter(
    "cc_marked_packets_received",
    "RoCE packets received with the congestion mark (optional counter cc_rx_ce_pkts, RDMA netlink).",
)
CC_CNP_RECEIVED = counter(
    "cc_cnp_packets_received",
    "Congestion notification packets received (optional counter cc_rx_cnp_pkts, RDMA netlink).",
)
CC_CNP_SENT = counter(
    "cc_cnp_packets_sent",
    "Congestion notification packets sent (optional counter cc_tx_cnp_pkts, RDMA netlink).",
)

OPTIONAL_RECEIVED_BYTES = counter(
    "optional_received_bytes",
    "Octets of RDMA traffic received (optional counter rdma_rx_bytes, RDMA netlink).",
)
OPTIONAL_TRANSMITTED_BYTES = counter(
    "optional_transmitted_bytes",
    "Octets of RDMA traffic sent (optional counter rdma_tx_bytes, RDMA netlink).",
)
OPTIONAL_RECEIVED_PACKETS = counter(
    "optional_received_packets",
    "Packets of RDMA traffic received (optional counter rdma_rx_packets, RDMA netlink).",
)
OPTIONAL_TRANSMITTED_PACKETS = counter(
    "optional_transmitted_packets",
    "Packets of RDMA traffic sent (optional counter rdma_tx_packets, RDMA netlink).",
)

_OPTIONAL = {
    "rdma_rx_bytes": OPTIONAL_RECEIVED_BYTES,
    "rdma_rx_packets": OPTIONAL_RECEIVED_PACKETS,
    "rdma_tx_bytes": OPTIONAL_TRANSMITTED_BYTES,
    "rdma_tx_packets": OPTIONAL_TRANSMITTED_PACKETS,
    "cc_rx_ce_pkts": CC_MARKED_RECEIVED,
    "cc_rx_cnp_pkts": CC_CNP_RECEIVED,
    "cc_tx_cnp_pkts": CC_CNP_SENT,
}
# A kernel without RDMA netlink.
_NO_NETLINK = DECLINED | {errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.ECONNREFUSED}


class _RdmaCollector(Collector):
    """What both have in common: devices by index, and a pause after a device or the kernel has declined."""

    @classmethod
    def make(cls, environment: Environment) -> Self | None:
        rdma = environment.sources.rdma
        return cls(rdma()) if rdma is not None else None

    def __init__(self, source: RdmaSource) -> None:
        self._source = source
        self._devices: dict[str, RdmaDevice] = {}
        self._indices: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def targets(self, context: Context) -> Sequence[str]:
        self._devices = {device.name: device for device in context.inventory.rdma}
        return list(self._devices)

    def collect(self, target: str, context: Context) -> None:
        if context.now < self._not_before.get(target, 0.0):
            return
        try:
            if target not in self._indices:
                self._indices = dict(self._source.indices())
            if target in self._indices:
                self._collect(self._devices[target], self._indices[target], context)
        except OSError as error:
            # A device that was loaded anew has another index.
            self._indices.pop(target, None)
            if error.errno in _NO_NETLINK:
                self._not_before[target] = context.now + DECLINED_PAUSE_S
            else:
                reason = "permission" if error.errno in (errno.EPERM, errno.EACCES) else "rdma_netlink"
                context.errors.add(target, "rdma netlink", reason)

    def _collect(self, device: RdmaDevice, index: int, context: Context) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._source.close()


@register()
class ResourcesCollector(_RdmaCollector):
    """Totals by kind of resource, and the optional counters that are switched on."""

    name = "resources"

    def __init__(self, source: RdmaSource) -> None:
        super().__init__(source)
        self._no_counters_before: dict[str, float] = {}

    def _collect(self, device: RdmaDevice, index: int, context: Context) -> None:
        for resource, count in self._source.resources(index).items():
            context.sink.add(RESOURCES, (*device.labels, resource), count)
        # The answer holds all counters of the port, which sysfs has given already: asked for again only where some of
        # the optional ones are on.
        if context.now < self._no_counters_before.get(device.name, 0.0):
            return
        found = False
        for port in device.ports:
            counters = self._source.counters(index, port)
            for name, spec in _OPTIONAL.items():
                if name in counters:
                    found = True
                    context.sink.add(spec, device.port_labels(port), counters[name])
        if not found:
            self._no_counters_before[device.name] = context.now + DECLINED_PAUSE_S


@register()
class QueuePairsCollector(_RdmaCollector):
    """Queue pairs by type and state."""

    name = "queue_pairs"
    on_by_default = False

    def _collect(self, device: RdmaDevice, index: int, context: Context) -> None:
        for (kind, state), count in sorted(self._source.queue_pairs(index).items()):
            context.sink.add(QP_COUNT, (*device.labels, kind, state), count)
