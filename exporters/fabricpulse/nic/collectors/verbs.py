"""Asynchronous events of verbs devices: ports of InfiniBand, GID changes, fatal errors; one target for the host."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Self

from fabricpulse.core.log import get_logger
from fabricpulse.hostinfo.inventory import Inventory, RdmaDevice
from fabricpulse.hostinfo.libibverbs import PortAttributes, Verbs, VerbsDevice
from fabricpulse.nic.collectors.base import Collector, Context, Environment, register
from fabricpulse.nic.flap_service import FlapService
from fabricpulse.nic.gid_changes import GidChanges
from fabricpulse.nic.metric_spec import PORT, RDMA, counter, gauge

VERBS_OPEN = gauge(
    "verbs_device_open",
    "1 if the verbs device could be opened and its asynchronous events are followed.",
    RDMA,
)
VERBS_MAX_QP = gauge(
    "verbs_queue_pairs_max", "Queue pairs that the device can have (ibv_query_device max_qp).", RDMA
)
VERBS_MTU = gauge(
    "verbs_active_mtu_bytes",
    "Path MTU of RDMA on the port (ibv_query_port active_mtu): 4096 at best; what the netdev's MTU leaves room for.",
)
VERBS_BAD_PKEYS = counter(
    "verbs_partition_key_violations",
    "Packets with a partition key that did not fit (ibv_query_port bad_pkey_cntr; InfiniBand's stops at 65535).",
)
VERBS_BAD_QKEYS = counter(
    "verbs_queue_key_violations",
    "Packets with a queue key that did not fit (ibv_query_port qkey_viol_cntr; InfiniBand's stops at 65535).",
)
ASYNC_EVENTS = counter(
    "verbs_async_events",
    "Asynchronous events of the verbs device, by kind (ibv_get_async_event).",
    (*PORT, "event"),
)

log = get_logger(__name__)

# What rules ask for: exported before it happens.
DEVICE_EVENTS = ("device_fatal", "qp_fatal", "cq_err")
PORT_EVENTS_COUNTED = ("port_active", "port_err", "gid_change")
# A device that could not be opened is tried again after this many seconds.
RETRY_S = 60.0
# Ports are queried this often, and after each event of the device: it is a firmware command.
PORT_REFRESH_S = 60.0


@register()
class VerbsCollector(Collector):
    """One target a device. Without libibverbs there are none."""

    name = "verbs"

    @classmethod
    def make(cls, environment: Environment) -> Self | None:
        if not environment.sources.verbs:
            return None
        return cls(environment.flaps, environment.gid_changes)

    def __init__(self, service: FlapService, gid_changes: GidChanges, library: str | None = None) -> None:
        self._service = service
        self._gid_changes = gid_changes
        self._verbs: Verbs | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[str, VerbsDevice] = {}
        self._max_qp: dict[str, int] = {}
        self._ports: dict[str, list[tuple[int, PortAttributes]]] = {}
        self._ports_next_at: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}
        self._devices: dict[str, RdmaDevice] = {}
        self._counts: Counter[tuple[str, str, str]] = Counter()
        try:
            self._verbs = Verbs(library)
        except (OSError, AttributeError) as error:
            log.debug("no libibverbs, no asynchronous events", error=str(error))

    def start(self, inventory: Inventory) -> None:
        """Events go to this loop from now on."""
        self._loop = asyncio.get_running_loop()
        if self._verbs is not None:
            self._service.events["verbs"] += 0

    def targets(self, context: Context) -> Sequence[str]:
        if self._verbs is None or self._loop is None:
            return []
        self._devices = {device.name: device for device in context.inventory.rdma}
        for removed in [
            name for name, device in self._open.items() if name not in self._devices or not device.is_open
        ]:
            del self._open[removed]
            self._ports_next_at.pop(removed, None)
        for removed in [name for name in self._retry_at if name not in self._devices]:
            del self._retry_at[removed]
        return list(self._devices)

    def collect(self, target: str, context: Context) -> None:
        if target not in self._open and context.now >= self._retry_at.get(target, 0.0):
            self._try_open(target, context)
        context.sink.add(VERBS_OPEN, self._devices[target].labels, int(target in self._open))
        if target in self._open:
            context.sink.add(VERBS_MAX_QP, self._devices[target].labels, self._max_qp[target])
            self._query_ports(target, context)
        device = self._devices[target]
        # From 0 on: the first such event is an increase, too.
        counts = {("", event): 0 for event in DEVICE_EVENTS if target in self._open}
        counts |= {
            (str(port), event): 0
            for port in device.ports
            for event in PORT_EVENTS_COUNTED
            if target in self._open
        }
        counts |= {
            (port, event): n for (name, port, event), n in self._counts.copy().items() if name == target
        }
        for (port, event), count in sorted(counts.items()):
            netdev = device.netdev(int(port or 0)) or device.labels[0]
            context.sink.add(ASYNC_EVENTS, (netdev, target, port, event), count)

    def _query_ports(self, target: str, context: Context) -> None:
        if context.now >= self._ports_next_at.get(target, 0.0):
            self._ports_next_at[target] = context.now + PORT_REFRESH_S
            self._ports[target] = []
            for number in self._devices[target].ports:
                try:
                    self._ports[target].append((number, self._open[target].port(number)))
                except OSError as error:
                    log.debug("a port cannot be queried", device=target, port=number, error=str(error))
                    context.errors.add(target, f"ibv_query_port {number}", "verbs")
        for number, attributes in self._ports[target]:
            labels = self._devices[target].port_labels(number)
            if attributes.active_mtu:
                context.sink.add(VERBS_MTU, labels, attributes.active_mtu)
            context.sink.add(VERBS_BAD_PKEYS, labels, attributes.bad_pkeys)
            context.sink.add(VERBS_BAD_QKEYS, labels, attributes.bad_qkeys)

    def _try_open(self, target: str, context: Context) -> None:
        if self._verbs is None:
            return
        try:
            device = self._verbs.open(target)
            self._max_qp[target] = device.max_queue_pairs()
        except OSError as error:
            self._retry_at[target] = context.now + RETRY_S
            log.info("no verbs events of this device", device=target, error=str(error))
            return
        self._open[target] = device
        device.follow(self._from_thread)

    def _from_thread(self, device: str, event: str, port: int) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._take, device, event, port)

    def _take(self, device: str, event: str, port: int) -> None:
        number = str(port) if port else ""
        self._counts[(device, number, event)] += 1
        self._service.events["verbs"] += 1
        self._ports_next_at.pop(device, None)
        known = self._devices.get(device)
        netdev = known.netdev(port) or known.labels[0] if known is not None else device
        self._service.record("verbs_event", (netdev, device, number), kind=event, source="verbs")
        if event in ("gid_change", "port_active", "port_err"):
            self._gid_changes.touch(device, time.monotonic())
        if event in ("port_active", "port_err"):
            self._service.port_event(device, port, event == "port_active")

    # Devices are given back when the process ends: see VerbsDevice.follow.
