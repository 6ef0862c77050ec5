"""Kernel log lines about NICs, counted by kind."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fabricpulse.core.log import get_logger
from fabricpulse.nic.collectors.contract import HOST, Context
from fabricpulse.nic.flap_service import FlapService
from fabricpulse.nic.inventory import Inventory
from fabricpulse.nic.kernel.kmsg import KmsgReader
from fabricpulse.nic.kernel_log import KernelMessage, classify, parse_record
from fabricpulse.nic.metrics import kernel_log as m

log = get_logger(__name__)


class KernelLogCollector:
    """Counts lines about known NICs from `start` on. service : whose event log gets the lines too."""

    name = "kernel_log"

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
                return netdev.labels
        for device in self._inventory.rdma:
            if device.name == message.rdma or (
                message.pci_address and device.pci_address == message.pci_address
            ):
                return (device.name, "", "")
        return None

    def targets(self, context: Context) -> Sequence[str]:
        self._inventory = context.inventory
        return [HOST]

    def collect(self, target: str, context: Context) -> None:
        for (device, kind), count in sorted(self._counts.copy().items()):
            context.sink.add(m.KERNEL_MESSAGES, (device, kind), count)

    def close(self) -> None:
        """The log is given back by `stop`."""
