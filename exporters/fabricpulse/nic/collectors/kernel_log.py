"""Kernel log lines about NICs, counted by kind."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from fabricpulse.core.log import get_logger
from fabricpulse.hostinfo.inventory import Inventory
from fabricpulse.hostinfo.kernel_log import KINDS, KernelMessage, classify, parse_record
from fabricpulse.hostinfo.kmsg import KmsgReader
from fabricpulse.nic.collectors.base import HOST, Collector, Context, Environment, register
from fabricpulse.nic.flap_service import FlapService
from fabricpulse.nic.metric_spec import counter

KERNEL_MESSAGES = counter(
    "kernel_messages",
    "Kernel log lines about the device since the exporter started, by kind of fault (/dev/kmsg).",
    ("device", "kind"),
)

log = get_logger(__name__)


@register()
class KernelLogCollector(Collector):
    """Counts lines about known NICs from `start` on. service : whose event log gets the lines too."""

    name = "kernel_log"

    @classmethod
    def make(cls, environment: Environment) -> Self | None:
        kmsg = environment.sources.kmsg
        return cls(environment.flaps, kmsg) if kmsg is not None else None

    def __init__(self, service: FlapService, path: Path = Path("/dev/kmsg")) -> None:
        self._service = service
        self._counts: Counter[tuple[str, str]] = Counter()
        self._inventory = Inventory()
        self._reader = KmsgReader(path, self._record, self._overrun)

    def start(self, inventory: Inventory) -> None:
        """Follows the log from now on; without permission it says so and counts nothing."""
        self._inventory = inventory
        self._service.events["kernel_log"] += 0
        self._service.overruns["kernel_log"] += 0
        try:
            self._reader.start()
        except OSError as error:
            log.warning("the kernel log is not followed", error=str(error))

    def stop(self) -> None:
        self._reader.stop()

    def _record(self, record: bytes) -> None:
        text = parse_record(record)
        message = classify(text) if text is not None else None
        if message is None:
            return
        labels = self._labels(message)
        if labels is None:
            return
        self._counts[(labels[0], message.kind)] += 1
        self._service.events["kernel_log"] += 1
        # The link's own events are in the log already, with better times.
        if message.kind not in ("link_up", "link_down"):
            self._service.record(
                "kernel_message", labels, kind=message.kind, message=message.text, source="kernel_log"
            )

    def _overrun(self) -> None:
        self._service.overruns["kernel_log"] += 1

    def _labels(self, message: KernelMessage) -> tuple[str, str, str] | None:
        for netdev in self._inventory.netdevs:
            if netdev.name == message.netdev or (
                message.pci_address and netdev.pci_address == message.pci_address
            ):
                return netdev.port_labels
        for device in self._inventory.rdma:
            if device.name == message.rdma or (
                message.pci_address and device.pci_address == message.pci_address
            ):
                return (*device.labels, "")
        return None

    def targets(self, context: Context) -> Sequence[str]:
        self._inventory = context.inventory
        return [HOST]

    def collect(self, target: str, context: Context) -> None:
        # From 0 on for what is known: the first line about a NIC is an increase, too.
        known = {netdev.name for netdev in context.inventory.netdevs}
        known |= {device.labels[0] for device in context.inventory.rdma}
        counts = (
            dict.fromkeys(((device, kind) for device in known for kind in KINDS), 0) | self._counts.copy()
        )
        for (device, kind), count in sorted(counts.items()):
            context.sink.add(KERNEL_MESSAGES, (device, kind), count)
