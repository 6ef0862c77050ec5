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
    clean_text,
    parse_unsigned,
    read_once,
)
from fabricpulse.nic.collectors.base import Collector, Context, Environment, register
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
        for address, (name, path) in wanted.items():
            if address not in self._functions:
                names = frozenset({*_AER, *_LINK, "numa_node", "sriov_numvfs"})
                directory = CachedDirectory(path, name, self._budget, names)
                prefixes = {file: sample_prefix(spec, (name, address)) for file, spec in _LINK.items()}
                self._functions[address] = _Function(name, address, path, directory, prefixes, {})
        self._find_gpus(context)
        return list(self._functions)

    def collect(self, target: str, context: Context) -> None:
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
            # 255 is a link that is down or a function that has fallen off the bus; "Unknown" is a virtual function.
            if raw is None or raw in (b"255", b"63") or raw.startswith(b"Unknown"):
                continue
            if file.endswith("_speed"):
                match = _SPEED.match(raw)
                text = f"{float(match.group(1)) * 1e9:.0f}" if match else ""
            else:
                text = raw.decode("ascii") if raw.isdigit() and len(raw) < 4 else ""
            if text:
                context.sink.line(spec.name, f"{function.prefixes[file]}{text}\n")
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
            kind = (function.device, function.address, "virtual" if physical else "physical", physical)
            function.place = tuple(
                (spec.name, f"{sample_prefix(spec, values)}1\n")
                for spec, values in ((AFFINITY, affinity), (FUNCTION, kind))
            )
            function.place_key = key
        for family, line in function.place:
            context.sink.line(family, line)

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
