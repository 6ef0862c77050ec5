"""`fabricpulse nic show`: the NICs of this host, as a table for a person or as JSON for a program.

Both say what the exposition says: the same numbers that Prometheus gets.
"""

from collections import defaultdict
from collections.abc import Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fabricpulse.nic import rdma_counters, scrape_metrics
from fabricpulse.nic.collectors import gid, infiniband, netdev, pcie
from fabricpulse.nic.exporter import NicExporter

_STATES = {1: "down", 2: "init", 3: "armed", 4: "active", 5: "active_deferred"}
_PATHS = {"same_host_bridge": "host bridge", "same_numa": "NUMA node", "other_numa": "[red]other NUMA[/]"}

Labels = Mapping[str, str]


class PcieLink(msgspec.Struct, frozen=True):
    """The PCIe link now, and what the card can do. None: not known."""

    transfers_per_second: float | None
    transfers_per_second_max: float | None
    width_lanes: float | None
    width_lanes_max: float | None

    @property
    def is_degraded(self) -> bool:
        """Whether it runs below what the card can do."""
        return (self.transfers_per_second_max or 0) > (self.transfers_per_second or 0) or (
            self.width_lanes_max or 0
        ) > (self.width_lanes or 0)


class PortRow(msgspec.Struct, frozen=True):
    """An RDMA port; None and "": not known. downs : times that its link went down, as the kernel counts.

    gpus : PCI addresses of the nearest ones; gpu_path : how they are joined. unreadable_files : of the device.
    """

    device: str
    rdma_device: str
    port: str
    state: str
    link_layer: str = ""
    network: str = ""
    rate_bytes_per_second: float | None = None
    downs: float | None = None
    nccl_gid_index: float | None = None
    pcie: PcieLink | None = None
    numa_node: str = ""
    gpus: tuple[str, ...] = ()
    gpu_path: str = ""
    firmware: str = ""
    unreadable_files: float = 0


class LinkRow(msgspec.Struct, frozen=True):
    """A link without RDMA; None: not known."""

    device: str
    carrier: bool | None
    speed_bytes_per_second: float | None
    mtu_bytes: float | None
    downs: float | None
    unreadable_files: float


class NicReport(msgspec.Struct, frozen=True):
    """The NICs of a host. nccl_gid_index_consistent : None without an active RoCE port."""

    rdma_ports: tuple[PortRow, ...]
    links: tuple[LinkRow, ...]
    nccl_gid_index_consistent: bool | None


class _Samples:
    """An exposition, by metric."""

    def __init__(self, body: bytes) -> None:
        self._samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                self._samples[sample.name].append((sample.labels, sample.value))

    def of(self, name: str, **labels: str) -> list[tuple[Labels, float]]:
        return [
            s for s in self._samples[name] if all(s[0].get(key) == value for key, value in labels.items())
        ]

    def value(self, name: str, **labels: str) -> float | None:
        found = self.of(name, **labels)
        return found[0][1] if found else None

    def labels(self, name: str, **labels: str) -> Labels:
        found = self.of(name, **labels)
        return found[0][0] if found else {}


def report(exporter: NicExporter) -> NicReport:
    """Collects once and says what there is."""
    samples = _Samples(exporter.collect_once())
    ports = [_port(samples, labels) for labels, _ in samples.of(infiniband.PORT_INFO.name)]
    known = {port.rdma_device for port in ports}
    # A device so broken that none of its ports is known has a row all the same: absence is easily overlooked.
    for labels, failures in samples.of(scrape_metrics.DEVICE_FAILURES.name):
        if failures and labels["rdma_device"] and labels["rdma_device"] not in known:
            device, rdma_device = labels["device"], labels["rdma_device"]
            ports.append(PortRow(device, rdma_device, "", "unreadable", unreadable_files=failures))
    links = [_link(samples, found.name) for found in exporter.inventory.netdevs if not found.rdma_device]
    consistent = samples.value(gid.NCCL_CONSISTENT.name)
    return NicReport(tuple(ports), tuple(links), None if consistent is None else bool(consistent))


def _port(samples: _Samples, labels: Labels) -> PortRow:
    device, rdma_device, port = labels["device"], labels["rdma_device"], labels["port"]
    key = {"rdma_device": rdma_device, "port": port}
    state = samples.value(infiniband.PORT_STATE.name, **key)
    # The PCI function has one label for all ports: that of the first one with a netdev.
    of_function = samples.labels(infiniband.INFO.name, rdma_device=rdma_device)
    place = samples.labels(pcie.AFFINITY.name, device=of_function.get("device", device))
    link = PcieLink(
        *(
            samples.value(spec.name, device=of_function.get("device", device))
            for spec in (pcie.PCIE_SPEED, pcie.PCIE_SPEED_MAX, pcie.PCIE_WIDTH, pcie.PCIE_WIDTH_MAX)
        )
    )
    downs = samples.value(netdev.CARRIER_DOWN.name, device=device)
    return PortRow(
        device,
        rdma_device,
        port,
        "unreadable" if state is None else _STATES.get(int(state), str(int(state))),
        labels["link_layer"],
        labels["network"],
        samples.value(infiniband.PORT_RATE.name, **key),
        downs if downs is not None else samples.value(rdma_counters.LINK_DOWNED.name, **key),
        samples.value(gid.NCCL_INDEX.name, **key),
        link if link.transfers_per_second is not None and link.width_lanes is not None else None,
        place.get("numa_node", ""),
        tuple(place["gpus"].split(",")) if place.get("gpus") else (),
        place.get("gpu_path", ""),
        of_function.get("firmware", ""),
        sum(value for _, value in samples.of(scrape_metrics.DEVICE_FAILURES.name, rdma_device=rdma_device))
        + sum(
            value
            for _, value in samples.of(scrape_metrics.DEVICE_FAILURES.name, device=device, rdma_device="")
        ),
    )


def _link(samples: _Samples, device: str) -> LinkRow:
    carrier = samples.value(netdev.LINK_CARRIER.name, device=device)
    return LinkRow(
        device,
        None if carrier is None else bool(carrier),
        samples.value(netdev.LINK_SPEED.name, device=device),
        samples.value(netdev.LINK_MTU.name, device=device),
        samples.value(netdev.CARRIER_DOWN.name, device=device),
        samples.value(scrape_metrics.DEVICE_FAILURES.name, device=device, rdma_device="") or 0,
    )


def print_json(found: NicReport, console: Console | None = None) -> None:
    """One JSON object; keys are the fields of NicReport, units in their names."""
    text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    (console or Console()).print(text, markup=False, highlight=False, soft_wrap=True)


def print_tables(found: NicReport, console: Console | None = None) -> None:
    """The RDMA ports, then the links without RDMA."""
    console = console or Console()
    if not console.is_terminal:
        # Piped into a file or a pager: whole rows, not what fits into 80 columns.
        console = Console(file=console.file, width=200)
    if found.rdma_ports:
        console.print(_ports(found.rdma_ports))
    else:
        console.print("No RDMA devices.")
    if found.links:
        console.print(_links(found.links))
    if found.nccl_gid_index_consistent is not None:
        words = "the same" if found.nccl_gid_index_consistent else "[bold red]not the same[/]"
        console.print(
            f"GID index for NCCL: {words} on all active RoCE ports. Column bad: files that cannot be read."
        )


def _ports(rows: tuple[PortRow, ...]) -> Table:
    table = Table(title="RDMA ports", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    numeric = {"Gb/s", "downs", "GID", "NUMA", "bad"}
    columns = "device", "RDMA port", "state", "Gb/s", "downs", "GID", "PCIe", "NUMA", "GPU", "firmware", "bad"
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            escape(row.device),
            escape(f"{row.rdma_device}/{row.port or '?'}"),
            f"[green]{row.state}[/]" if row.state == "active" else f"[red]{row.state}[/]",
            _number(row.rate_bytes_per_second, 8e-9),
            _number(row.downs),
            _number(row.nccl_gid_index),
            _pcie(row.pcie),
            row.numa_node or "-",
            _gpus(row),
            escape(row.firmware or "-"),
            f"[red]{row.unreadable_files:.0f}[/]" if row.unreadable_files else "0",
        )
    return table


def _gpus(row: PortRow) -> str:
    """The GPU behind the same switch; for anything farther away only how far."""
    if row.gpu_path == "same_switch":
        return ",".join(row.gpus).replace("0000:", "")
    return _PATHS.get(row.gpu_path, "-")


def _links(rows: tuple[LinkRow, ...]) -> Table:
    table = Table(title="Links without RDMA", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("device", "carrier", "Gb/s", "MTU", "downs", "bad"):
        table.add_column(column, justify="left" if column in ("device", "carrier") else "right")
    for row in rows:
        table.add_row(
            escape(row.device),
            "-" if row.carrier is None else ("[green]up[/]" if row.carrier else "[red]down[/]"),
            _number(row.speed_bytes_per_second, 8e-9),
            _number(row.mtu_bytes),
            _number(row.downs),
            f"[red]{row.unreadable_files:.0f}[/]" if row.unreadable_files else "0",
        )
    return table


def _number(value: float | None, scale: float = 1) -> str:
    return "-" if value is None else f"{round(value * scale, 3):g}"


def _pcie(link: PcieLink | None) -> str:
    if link is None:
        return "-"
    text = f"{(link.transfers_per_second or 0) / 1e9:g} GT/s x{link.width_lanes:.0f}"
    return f"[red]{text}[/]" if link.is_degraded else text
