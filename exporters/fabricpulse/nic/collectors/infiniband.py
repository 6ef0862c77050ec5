"""`/sys/class/infiniband`: devices and ports; their counters by `rdma_counter_files`."""

import re
from collections.abc import Mapping, Sequence
from typing import Self

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import sample_prefix
from fabricpulse.hostinfo.inventory import RdmaDevice
from fabricpulse.hostinfo.sysfs import NOT_AVAILABLE, CachedDirectory, DescriptorBudget
from fabricpulse.nic import rdma_counters as c
from fabricpulse.nic.collectors import rdma_counter_files as files
from fabricpulse.nic.collectors.base import Collector, Context, Environment, register
from fabricpulse.nic.flap_service import FlapService
from fabricpulse.nic.metric_spec import PORT, RDMA, gauge
from fabricpulse.nic.rdma_counter_map import HW_COUNTERS, PORT_COUNTERS, PORT_COUNTERS_EXTENDED

INFO = gauge(
    "info",
    "Always 1; the labels describe the RDMA device (sysfs fw_ver, board_id, hca_type, node_guid, node_type; driver and "
    "PCI address from the device link).",
    (*RDMA, "driver", "firmware", "board", "hca", "node_guid", "node_type", "pci_address"),
)
PORT_INFO = gauge(
    "port_info",
    "Always 1; joins an RDMA port to its netdev, which is `device`, and to its link layer (ports/N/link_layer, "
    "gid_attrs/ndevs).",
    (*PORT, "link_layer", "network"),
)
PORT_STATE = gauge(
    "port_state", "Logical state from ports/N/state: 1 down, 2 init, 3 armed, 4 active, 5 active deferred."
)
PORT_UP = gauge("port_up", "1 if ports/N/state is ACTIVE, else 0.")
PORT_PHYSICAL_STATE = gauge(
    "port_physical_state",
    "Physical state from ports/N/phys_state: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 recovery, 7 test.",
)
PORT_RATE = gauge("port_rate_bytes_per_second", "Signalling rate from ports/N/rate, bits converted to bytes.")
PORT_LID = gauge("port_lid", "Local identifier from ports/N/lid; InfiniBand only.")
PORT_SM_LID = gauge("port_subnet_manager_lid", "Subnet manager's LID from ports/N/sm_lid; InfiniBand only.")
PKEY_ENTRIES = gauge("pkey_entries", "Partition keys in ports/N/pkeys that are not 0.")
PKEY_DEFAULT = gauge(
    "pkey_first", "Partition key 0 as a number, from ports/N/pkeys/0: what RDMA CM uses by default."
)

_PORT_FILES = frozenset({"state", "phys_state", "rate", "link_layer", "lid", "sm_lid"})
_RATE = re.compile(rb"(\d{1,9}(?:\.\d{1,9})?) Gb/sec")
_U64 = (1 << 64) - 1


class _Port:
    """One port of one device."""

    def __init__(
        self, device: RdmaDevice, port: int, raw: bool, network: str, budget: DescriptorBudget
    ) -> None:
        path = f"{device.path}/ports/{port}"
        self.labels = device.port_labels(port)
        self._has_netdev = bool(device.netdev(port))
        self._network = network
        self._attributes = CachedDirectory(path, device.name, budget, _PORT_FILES)
        self._pkeys = CachedDirectory(f"{path}/pkeys", device.name, budget)
        hw_names = dict(HW_COUNTERS.get(device.family, {}))
        self._extended = files.CounterDirectory(
            f"{path}/counters_ext", self.labels, dict(PORT_COUNTERS_EXTENDED), raw, budget
        )
        self._counters = files.CounterDirectory(
            f"{path}/counters", self.labels, dict(PORT_COUNTERS), raw, budget
        )
        self._hw = files.CounterDirectory(f"{path}/hw_counters", self.labels, hw_names, raw, budget)
        self._prefixes = {
            spec.name: sample_prefix(spec, self.labels)
            for spec in (PORT_STATE, PORT_UP, PORT_PHYSICAL_STATE, PORT_RATE)
        }
        self._last_state = b""
        self.is_infiniband = False
        self._info: tuple[str, str] = ("", "")

    def collect(self, context: Context) -> None:
        errors, now, sink = context.errors, context.now, context.sink
        if not self._attributes.refresh(errors):
            return
        state = self._attributes.read("state", now, errors)
        self._number(PORT_STATE, state, "state", context)
        if state is not None and state[:1].isdigit():
            self._line(PORT_UP, "1" if state.startswith(b"4:") else "0", context)
        self._number(
            PORT_PHYSICAL_STATE, self._attributes.read("phys_state", now, errors), "phys_state", context
        )
        self._rate(context)
        link_layer = self._attributes.read_text("link_layer", now, errors)
        if self._info[0] != link_layer or not self._info[1]:
            values = (*self.labels, link_layer, self._network)
            self._info = (link_layer, sample_prefix(PORT_INFO, values))
        sink.line(PORT_INFO.name, f"{self._info[1]}1\n")
        self.is_infiniband = link_layer == "InfiniBand"
        if self.is_infiniband:
            self._lids(context)
        self._partition_keys(context)
        reset_likely = state is not None and self._last_state not in (b"", state)
        self._last_state = state or b""
        # The first that has a metric gives it: 64 bits before 32 that stop, and the IBTA's file before a driver's (bnxt_re,
        # irdma and efa have counters/ as well on some kernels).
        given: frozenset[str] = frozenset()
        for counters in (self._extended, self._counters, self._hw):
            counters.collect(context, without=given, reset_likely=reset_likely)
            given |= counters.families()

    def is_up(self) -> bool | None:
        """Whether an InfiniBand port without a netdev is active; None for other ports, whose links show it."""
        if not self.is_infiniband or self._has_netdev or not self._last_state:
            return None
        return self._last_state.startswith(b"4:")

    def _line(self, spec: MetricSpec, text: str, context: Context) -> None:
        context.sink.line(spec.name, f"{self._prefixes[spec.name]}{text}\n")

    def _number(self, spec: MetricSpec, raw: bytes | None, name: str, context: Context) -> None:
        """`4: ACTIVE` -> 4."""
        if raw is None:
            return
        number, colon, _ = raw.partition(b":")
        if colon and number.isdigit() and len(number) < 4:
            self._line(spec, number.decode(), context)
        elif not raw.startswith(NOT_AVAILABLE):
            reason = "unparsable" if raw else "empty"
            context.errors.add(self.labels[1], f"{self._attributes.path}/{name}", reason)

    def _rate(self, context: Context) -> None:
        raw = self._attributes.read("rate", context.now, context.errors)
        if raw is None:
            return
        match = _RATE.match(raw)
        if match is None:
            reason = "unparsable" if raw else "empty"
            context.errors.add(self.labels[1], f"{self._attributes.path}/rate", reason)
            return
        self._line(PORT_RATE, str(int(float(match.group(1)) * 1e9 / 8)), context)

    def _lids(self, context: Context) -> None:
        for spec, name in ((PORT_LID, "lid"), (PORT_SM_LID, "sm_lid")):
            raw = self._attributes.read(name, context.now, context.errors)
            value = _hexadecimal(raw)
            if value is not None:
                context.sink.add(spec, self.labels, value)

    def _partition_keys(self, context: Context) -> None:
        if not self._pkeys.refresh(context.errors):
            return
        values = {}
        for name, file in self._pkeys.files.items():
            raw = file.read(context.now, self.labels[1], context.errors)
            if raw is None:
                continue
            value = _hexadecimal(raw)
            if value is None:
                context.errors.add(self.labels[1], file.path, "unparsable" if raw else "empty")
                continue
            values[name] = value
        if values:
            context.sink.add(PKEY_ENTRIES, self.labels, sum(1 for value in values.values() if value))
        if "0" in values:
            context.sink.add(PKEY_DEFAULT, self.labels, values["0"])

    def close(self) -> None:
        for directory in (self._attributes, self._pkeys, self._extended, self._counters, self._hw):
            directory.close()


def _hexadecimal(raw: bytes | None) -> int | None:
    if not raw:
        return None
    try:
        value = int(raw, 0)
    except ValueError:
        return None
    return value if 0 <= value <= _U64 else None


@register((files.LIFESPAN, files.RAW), c.METRICS)
class InfinibandCollector(Collector):
    """State, identity and counters of RDMA devices; one target a device."""

    name = "infiniband"
    order = 10

    @classmethod
    def make(cls, environment: Environment) -> Self:
        return cls(
            environment.budget,
            environment.flaps,
            raw=environment.raw_counters,
            networks=environment.networks,
        )

    def __init__(
        self,
        budget: DescriptorBudget,
        flaps: FlapService,
        *,
        raw: bool = False,
        networks: Mapping[str, str] | None = None,
    ) -> None:
        self._budget = budget
        self._flaps = flaps
        self._raw = raw
        self._networks = networks or {}
        self._kept: dict[str, tuple[RdmaDevice, str, list[_Port]]] = {}

    def targets(self, context: Context) -> Sequence[str]:
        present = {device.name: device for device in context.inventory.rdma}
        for name, (device, _, ports) in list(self._kept.items()):
            if present.get(name) != device:
                for port in ports:
                    port.close()
                del self._kept[name]
        for name, device in present.items():
            if name not in self._kept:
                self._kept[name] = (
                    device,
                    self._info(device),
                    [self._port(device, port) for port in device.ports],
                )
        return list(present)

    def _port(self, device: RdmaDevice, port: int) -> _Port:
        network = self._networks.get(device.name) or self._networks.get(device.netdev(port), "")
        return _Port(device, port, self._raw, network, self._budget)

    def _info(self, device: RdmaDevice) -> str:
        values = (*device.labels, device.driver, device.firmware, device.board, device.hca, device.node_guid,
                  device.node_type, device.pci_address)  # fmt: skip
        return f"{sample_prefix(INFO, values)}1\n"

    def collect(self, target: str, context: Context) -> None:
        _, info, ports = self._kept[target]
        context.sink.line(INFO.name, info)
        for port in ports:
            port.collect(context)

    def after_scrape(self) -> None:
        self._flaps.port_states(self.port_states())

    def port_states(self) -> dict[tuple[str, int], bool]:
        """(device, port) -> whether it is active, of the ports that only this collector sees."""
        states = {}
        for name, (_, _, ports) in self._kept.items():
            for port in ports:
                up = port.is_up()
                if up is not None:
                    states[(name, int(port.labels[2]))] = up
        return states

    def close(self) -> None:
        for _, _, ports in self._kept.values():
            for port in ports:
                port.close()
        self._kept.clear()
