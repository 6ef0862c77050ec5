"""PCIe link, errors and place of each NIC: what makes a 400 Gb/s port deliver 200."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from fabricpulse.core.metrics.exposition import sample_prefix
from fabricpulse.hostinfo.sysfs import (
    CachedDirectory,
    DescriptorBudget,
    ReadErrors,
    clean_text,
    parse_unsigned,
    read_once,
)
from fabricpulse.nic.collectors.base import HOST, Collector, Context, Environment, register
from fabricpulse.nic.metric_spec import counter, gauge

PCIE_SPEED = gauge(
    "pcie_link_transfers_per_second",
    "Transfers per second and lane of the PCIe link now (current_link_speed, GT/s converted).",
    ("device", "pci_address"),
)
PCIE_SPEED_MAX = gauge(
    "pcie_link_transfers_per_second_max",
    "Transfers per second and lane that the device can do (max_link_speed, GT/s converted).",
    ("device", "pci_address"),
)
PCIE_WIDTH = gauge(
    "pcie_link_width_lanes", "Lanes of the PCIe link now (current_link_width).", ("device", "pci_address")
)
PCIE_WIDTH_MAX = gauge(
    "pcie_link_width_lanes_max", "Lanes that the device has (max_link_width).", ("device", "pci_address")
)
PCIE_SPEED_ATTAINABLE = gauge(
    "pcie_link_transfers_per_second_attainable",
    "Transfers per second and lane that both the device and the slot can do: the smaller max_link_speed of the function and of the bridge above it; absent if one is unknown.",
    ("device", "pci_address"),
)
PCIE_WIDTH_ATTAINABLE = gauge(
    "pcie_link_width_lanes_attainable",
    "Lanes that both the device and the slot have: the smaller max_link_width of the function and of the bridge above it; absent if one is unknown.",
    ("device", "pci_address"),
)
PRESENT = gauge(
    "present",
    "1 if the physical PCI function of a NIC is there with its driver, 0 if it was since the exporter started and is no more.",
    ("device", "pci_address"),
)
PCIE_AER = counter(
    "pcie_aer_errors",
    "PCIe errors by severity and kind (aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal).",
    ("device", "pci_address", "severity", "error"),
)
FUNCTION = gauge(
    "pcie_function_info",
    "Always 1; whether the NIC is a physical or a virtual function, and for a virtual one the address of its physical one (physfn).",
    ("device", "pci_address", "function", "physical_function"),
)
VIRTUAL_FUNCTIONS = gauge(
    "pcie_virtual_functions",
    "Virtual functions of the NIC that are switched on (sriov_numvfs).",
    ("device", "pci_address"),
)
AFFINITY = gauge(
    "affinity_info",
    "Always 1; where the NIC sits: PCI address, NUMA node (-1 unknown), nearest GPUs by PCI address (most common "
    "ancestors in the PCI tree), comma separated, and how they are joined: same_switch, same_host_bridge, same_numa.",
    ("device", "pci_address", "numa_node", "gpus", "gpu_path"),
)

_AER = {"aer_dev_correctable": "correctable", "aer_dev_nonfatal": "nonfatal", "aer_dev_fatal": "fatal"}
_LINK = {
    "current_link_speed": PCIE_SPEED,
    "max_link_speed": PCIE_SPEED_MAX,
    "current_link_width": PCIE_WIDTH,
    "max_link_width": PCIE_WIDTH_MAX,
}
# A link that is down, or a function that has fallen off the bus.
_NO_LINK = (b"255", b"63")
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Functions that are gone and still reported.
GONE_MAX = 64
_SPEED = re.compile(rb"(\d{1,9}(?:\.\d{1,9})?) GT/s")
# PCI classes of what computes: 3D controllers, VGA (AMD's older), display controllers, processing accelerators.
_GPU_CLASSES = (b"0x0302", b"0x0300", b"0x0380", b"0x1200")
# A BMC's VGA is no GPU.
_NO_GPU_VENDORS = (b"0x1a03", b"0x102b", b"0x1234", b"0x1b36", b"0x1af4")


@dataclass(frozen=True)
class GpuPlace:
    """A GPU. path : its real directory. numa : -1 if unknown."""

    address: str
    path: str
    numa: int


@dataclass
class _Function:
    """A PCI function of a NIC and its files."""

    device: str
    address: str
    path: str
    directory: CachedDirectory
    prefixes: dict[str, str]
    aer: dict[tuple[str, str], str]
    is_physical: bool = True
    place: tuple[tuple[str, str], ...] = ()
    place_key: object = None


def nearest_gpus(nic_path: str, nic_numa: int, gpus: Sequence[GpuPlace]) -> tuple[tuple[str, ...], str]:
    """The GPUs nearest to a NIC and how they are joined.

    nic_path : real directory of the NIC. Returns addresses and one of "same_switch" (a common bridge),
    "same_host_bridge", "same_numa", "other_numa"; no addresses and "" without GPUs. Of the GPUs behind a common bridge
    those with the most
    common ancestors win.
    """
    if not gpus:
        return (), ""
    nic = nic_path.split("/")
    scored: list[tuple[int, GpuPlace]] = []
    for gpu in gpus:
        common = 0
        for ours, theirs in zip(nic, gpu.path.split("/"), strict=False):
            if ours != theirs:
                break
            common += 1
        scored.append((common, gpu))
    root = next((i for i, part in enumerate(nic) if part.startswith("pci")), len(nic))
    best = max(common for common, _ in scored)
    if best > root + 1:
        return tuple(gpu.address for common, gpu in scored if common == best), "same_switch"
    if best == root + 1:
        return tuple(gpu.address for common, gpu in scored if common == best), "same_host_bridge"
    same = tuple(gpu.address for _, gpu in scored if gpu.numa == nic_numa and nic_numa >= 0)
    return (same, "same_numa") if same else (tuple(gpu.address for _, gpu in scored), "other_numa")


@register()
class PcieCollector(Collector):
    """One target a PCI function that carries a NIC."""

    name = "pcie"

    @classmethod
    def make(cls, environment: Environment) -> Self:
        return cls(str(environment.sources.sysfs), environment.budget)

    def __init__(self, sysfs: str, budget: DescriptorBudget) -> None:
        self._sysfs = sysfs
        self._budget = budget
        self._functions: dict[str, _Function] = {}
        self._gpus: tuple[GpuPlace, ...] = ()
        self._gpus_identity: tuple[int, int, frozenset[str]] | None = None
        self._removed: dict[str, str] = {}

    def targets(self, context: Context) -> Sequence[str]:
        wanted: dict[str, tuple[str, str]] = {}
        for device in context.inventory.rdma:
            if device.pci_path:
                wanted[device.pci_address] = (device.labels[0], device.pci_path)
        for netdev in context.inventory.netdevs:
            if netdev.pci_path:
                wanted.setdefault(netdev.pci_address, (netdev.name, netdev.pci_path))
        for address, function in list(self._functions.items()):
            if wanted.get(address) != (function.device, function.path):
                function.directory.close()
                del self._functions[address]
                if address not in wanted and function.is_physical:
                    self._removed[address] = function.device
        for address, (name, path) in wanted.items():
            if address not in self._functions:
                names = frozenset({*_AER, *_LINK, "numa_node", "sriov_numvfs"})
                directory = CachedDirectory(path, name, self._budget, names)
                prefixes = {file: sample_prefix(spec, (name, address)) for file, spec in _LINK.items()}
                self._functions[address] = _Function(name, address, path, directory, prefixes, {})
        for address in self._removed.keys() & wanted.keys():
            del self._removed[address]
        for address in list(self._removed)[:-GONE_MAX]:
            del self._removed[address]
        self._find_gpus(context)
        return [*self._functions, HOST]

    def collect(self, target: str, context: Context) -> None:
        if target == HOST:
            self._presence(context)
            return
        function = self._functions[target]
        if not function.directory.refresh(context.errors):
            return
        self._link(function, context)
        for file, severity in _AER.items():
            raw = function.directory.read(file, context.now, context.errors)
            if raw is not None:
                self._errors(function, file, severity, raw, context)
        self._virtual_functions(function, context)
        self._place(function, context)

    def _link(self, function: _Function, context: Context) -> None:
        for file, spec in _LINK.items():
            raw = function.directory.read(file, context.now, context.errors)
            # "Unknown" is a virtual function.
            if raw is None or raw in _NO_LINK or raw.startswith(b"Unknown"):
                continue
            value = _link_value(file, raw)
            if value is not None:
                context.sink.line(spec.name, f"{function.prefixes[file]}{value}\n")
            else:
                reason = "unparsable" if raw else "empty"
                context.errors.add(function.device, f"{function.path}/{file}", reason)

    def _errors(self, function: _Function, file: str, severity: str, raw: bytes, context: Context) -> None:
        """`BadTLP 3` per line; the total line is left out, it is a sum."""
        given: set[bytes] = set()
        for line in raw.split(b"\n"):
            kind, _, count = line.rpartition(b" ")
            # One number that is no 64-bit one, or one series twice, would make Prometheus refuse the whole scrape.
            if parse_unsigned(count) is None or not kind or kind in given:
                context.errors.add(
                    function.device, f"{function.path}/{file}", "unparsable" if raw else "empty"
                )
                return
            given.add(kind)
            if kind.startswith(b"TOTAL"):
                continue
            key = (severity, clean_text(kind))
            text = function.aer.get(key)
            if text is None:
                text = function.aer[key] = sample_prefix(PCIE_AER, (function.device, function.address, *key))
            context.sink.line(PCIE_AER.name, f"{text}{count.decode('ascii')}\n")

    def _presence(self, context: Context) -> None:
        # Virtual functions come and go on purpose.
        present = {f.address: f.device for f in self._functions.values() if f.is_physical}
        for devices, value in ((present, 1), (self._removed, 0)):
            for address, device in devices.items():
                context.sink.add(PRESENT, (device, address), value)

    def _virtual_functions(self, function: _Function, context: Context) -> None:
        count = parse_unsigned(function.directory.read("sriov_numvfs", context.now, context.errors) or b"")
        if count is not None:
            context.sink.add(VIRTUAL_FUNCTIONS, (function.device, function.address), count)

    def _place(self, function: _Function, context: Context) -> None:
        """What stays as long as the function exists: where it sits, and whose it is."""
        key = (function.directory.generation, self._gpus_identity)
        if function.place_key != key:
            numa = _signed(function.directory.read("numa_node", context.now, context.errors))
            gpus, path = nearest_gpus(os.path.realpath(function.path), numa, self._gpus)
            affinity = (function.device, function.address, str(numa), ",".join(gpus), path)
            physical = _basename_of_link(f"{function.path}/physfn")
            function.is_physical = not physical
            kind = (function.device, function.address, "virtual" if physical else "physical", physical)
            function.place = tuple(
                (spec.name, f"{sample_prefix(spec, values)}1\n")
                for spec, values in ((AFFINITY, affinity), (FUNCTION, kind))
            ) + self._attainable(function, context)
            function.place_key = key
        for family, line in function.place:
            context.sink.line(family, line)

    def _attainable(self, function: _Function, context: Context) -> tuple[tuple[str, str], ...]:
        """What the link could do: as much as the function and the bridge above it, which is its slot, both can."""
        slot = os.path.dirname(os.path.realpath(function.path))
        if not _ADDRESS.fullmatch(os.path.basename(slot)):
            return ()
        lines = []
        for file, spec in (
            ("max_link_speed", PCIE_SPEED_ATTAINABLE),
            ("max_link_width", PCIE_WIDTH_ATTAINABLE),
        ):
            card = _link_value(file, function.directory.read(file, context.now, context.errors))
            # Not an error of the NIC: a bridge of a virtual machine has no such file, or another text in it.
            ours = _link_value(file, read_once(f"{slot}/{file}", function.device, ReadErrors()))
            if card is not None and ours is not None:
                start = sample_prefix(spec, (function.device, function.address))
                lines.append((spec.name, f"{start}{min(card, ours)}\n"))
        return tuple(lines)

    def _find_gpus(self, context: Context) -> None:
        folder = f"{self._sysfs}/bus/pci/devices"
        try:
            status = os.stat(folder)
            identity = (status.st_ino, status.st_mtime_ns, context.inventory.unwanted_pci)
            if identity == self._gpus_identity:
                return
            addresses = sorted(os.listdir(folder))
        except OSError:
            return
        found = []
        for address in addresses:
            if address in context.inventory.unwanted_pci:
                continue
            path = f"{folder}/{address}"
            klass = read_once(f"{path}/class", address, context.errors) or b""
            if not klass.startswith(_GPU_CLASSES):
                continue
            if read_once(f"{path}/vendor", address, context.errors) in _NO_GPU_VENDORS:
                continue
            numa = _signed(read_once(f"{path}/numa_node", address, context.errors))
            found.append(GpuPlace(address, os.path.realpath(path), numa))
        self._gpus = tuple(found)
        self._gpus_identity = identity

    def close(self) -> None:
        for function in self._functions.values():
            function.directory.close()
        self._functions.clear()


def _signed(raw: bytes | None) -> int:
    return int(raw) if raw is not None and raw.isdigit() and len(raw) < 5 else -1


def _basename_of_link(path: str) -> str:
    try:
        return os.readlink(path).rpartition("/")[2]
    except OSError:
        return ""


def _link_value(file: str, raw: bytes | None) -> int | None:
    """Transfers per second of a speed file, lanes of a width file; None if it has no such value."""
    if raw is None or raw in _NO_LINK:
        return None
    if file.endswith("_speed"):
        match = _SPEED.match(raw)
        return round(float(match.group(1)) * 1e9) if match else None
    return int(raw) if raw.isdigit() and len(raw) < 4 else None
