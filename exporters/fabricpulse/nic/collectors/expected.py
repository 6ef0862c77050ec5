"""Whether the host has as many ports at the rate that the configuration expects: a NIC that is gone has no series."""

from collections.abc import Sequence
from typing import Self

from fabricpulse.hostinfo.inventory import Netdev, RdmaDevice
from fabricpulse.hostinfo.sysfs import CachedDirectory, DescriptorBudget
from fabricpulse.nic.collectors.base import HOST, Collector, Context, Environment, register
from fabricpulse.nic.metric_spec import gauge
from fabricpulse.nic.sections import ExpectedSection

EXPECTED_PORTS = gauge("expected_ports", "Ports that this host has when it is whole (expected.ports).", ())
EXPECTED_RATE = gauge(
    "expected_port_rate_bytes_per_second",
    "The least rate of each expected port (expected.rate_gbit_s, converted).",
    (),
)
EXPECTED_PORTS_UP = gauge(
    "expected_ports_up",
    "RDMA ports that are active (without RDMA: links of PCI functions with a carrier) at the expected rate or above.",
    (),
)


@register()
class ExpectedCollector(Collector):
    """One target, the host; none without expectations."""

    name = "expected"
    order = 12

    @classmethod
    def make(cls, environment: Environment) -> Self | None:
        return cls(environment.expected, environment.budget) if environment.expected.ports else None

    def __init__(self, expected: ExpectedSection, budget: DescriptorBudget) -> None:
        self._expected = expected
        self._rate = round(expected.rate_gbit_s * 1e9 / 8)
        self._budget = budget
        self._directories: dict[str, CachedDirectory] = {}

    def targets(self, context: Context) -> Sequence[str]:
        return [HOST]

    def collect(self, target: str, context: Context) -> None:
        inventory = context.inventory
        ports = [(device, port) for device in inventory.rdma for port in device.ports]
        if inventory.rdma or inventory.unreadable_rdma:
            rates = [self._port_rate(device, port, context) for device, port in ports]
        else:
            rates = [self._link_rate(netdev, context) for netdev in inventory.netdevs if netdev.pci_address]
        context.sink.add(EXPECTED_PORTS, (), self._expected.ports)
        if self._rate:
            context.sink.add(EXPECTED_RATE, (), self._rate)
        up = sum(1 for rate in rates if rate is not None and rate >= self._rate)
        context.sink.add(EXPECTED_PORTS_UP, (), up)
        used = {self._port_path(*port) for port in ports} | {netdev.path for netdev in inventory.netdevs}
        for path in self._directories.keys() - used:
            self._directories.pop(path).close()

    @staticmethod
    def _port_path(device: RdmaDevice, port: int) -> str:
        return f"{device.path}/ports/{port}"

    def _directory(self, path: str, device: str, names: frozenset[str]) -> CachedDirectory:
        found = self._directories.get(path)
        if found is None:
            found = self._directories[path] = CachedDirectory(path, device, self._budget, names, pauses=False)
        return found

    def _port_rate(self, device: RdmaDevice, port: int, context: Context) -> int | None:
        """Bytes per second of an active port; None of one that is not, 0 where the rate is unknown."""
        directory = self._directory(self._port_path(device, port), device.name, frozenset({"state", "rate"}))
        if not directory.refresh(context.errors):
            return None
        state = directory.read("state", context.now, context.errors)
        if state is None or not state.startswith(b"4:"):
            return None
        number = (directory.read("rate", context.now, context.errors) or b"").partition(b" ")[0]
        try:
            return round(float(number) * 1e9 / 8)
        except (ValueError, OverflowError):
            return 0

    def _link_rate(self, netdev: Netdev, context: Context) -> int | None:
        """As `_port_rate`, of a link."""
        directory = self._directory(netdev.path, netdev.name, frozenset({"carrier", "speed"}))
        if not directory.refresh(context.errors):
            return None
        if directory.read("carrier", context.now, context.errors) != b"1":
            return None
        speed = directory.read("speed", context.now, context.errors) or b""
        return int(speed) * 125_000 if speed.isdigit() and len(speed) < 10 else 0

    def close(self) -> None:
        for directory in self._directories.values():
            directory.close()
        self._directories.clear()
