"""`fabricpulse nic show`: the NICs of this host, for a person."""

from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fabricpulse.nic.exporter import NicExporter
from fabricpulse.nic.metrics import gid, infiniband, pcie, scrape
from fabricpulse.nic.metrics import netdev as link

_STATES = {1: "down", 2: "init", 3: "armed", 4: "active", 5: "active deferred"}
_PATHS = {"same_host_bridge": "host bridge", "same_numa": "NUMA node", "other_numa": "[red]other NUMA[/]"}

Labels = Mapping[str, str]


class _Samples:
    """An exposition, by metric: the same numbers that Prometheus gets."""

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


def print_tables(exporter: NicExporter, console: Console | None = None) -> None:
    """Collects once and prints the RDMA ports, then the links without RDMA."""
    samples = _Samples(exporter.collect_once())
    console = console or Console()
    if not console.is_terminal:
        # Piped into a file or a pager: whole rows, not what fits into 80 columns.
        console = Console(file=console.file, width=200)
    netdevs = exporter.inventory.netdevs
    if exporter.inventory.rdma:
        console.print(_ports(samples))
    else:
        console.print("No RDMA devices.")
    plain = [netdev.name for netdev in netdevs if netdev.device == netdev.name]
    if plain:
        console.print(_links(samples, plain))
    consistent = samples.value(gid.NCCL_CONSISTENT.name)
    if consistent is not None:
        words = "the same" if consistent else "[bold red]not the same[/]"
        console.print(
            f"GID index for NCCL: {words} on all active RoCE ports. Column bad: files that cannot be read."
        )


def _ports(samples: _Samples) -> Table:
    table = Table(title="RDMA ports", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    numeric = {"Gb/s", "flaps", "GID", "NUMA", "bad"}
    for column in (
        "port",
        "netdev",
        "state",
        "Gb/s",
        "flaps",
        "GID",
        "PCIe",
        "NUMA",
        "GPU",
        "firmware",
        "bad",
    ):
        table.add_column(column, justify="right" if column in numeric else "left", no_wrap=True)
    for labels, _ in samples.of(infiniband.PORT_INFO.name):
        device, port = labels["device"], labels["port"]
        key = {"device": device, "port": port}
        info = next((found for found, _ in samples.of(infiniband.INFO.name, device=device)), {})
        affinity = next((found for found, _ in samples.of(pcie.AFFINITY.name, device=device)), {})
        failures = samples.value(scrape.DEVICE_FAILURES.name, device=device) or 0
        table.add_row(
            escape(f"{device}/{port}"),
            escape(labels["netdev"]) or "-",
            _state(samples.value(infiniband.PORT_STATE.name, **key)),
            _number(samples.value(infiniband.PORT_RATE.name, **key), 8e-9),
            _number(_downs(samples, labels["netdev"], key)),
            _number(samples.value(gid.NCCL_INDEX.name, **key)),
            _pcie(samples, device),
            affinity.get("numa_node", "-"),
            _gpus(affinity),
            escape(info.get("firmware") or "-"),
            f"[red]{failures:.0f}[/]" if failures else "0",
        )
    _devices_without_ports(table, samples)
    return table


def _devices_without_ports(table: Table, samples: _Samples) -> None:
    """A device so broken that none of its ports is known has a row all the same: absence is easily overlooked."""
    known = {
        labels["device"]
        for name in (infiniband.PORT_INFO, link.LINK_MTU)
        for labels, _ in samples.of(name.name)
    }
    for labels, failures in samples.of(scrape.DEVICE_FAILURES.name):
        if failures and labels["device"] not in known:
            cells = ["-"] * (len(table.columns) - 4)
            table.add_row(
                escape(labels["device"]), "-", "[red]unreadable[/]", *cells, f"[red]{failures:.0f}[/]"
            )


def _gpus(affinity: Labels) -> str:
    """The GPU behind the same switch; for anything farther away only how far."""
    path = affinity.get("gpu_path", "")
    if path == "same_switch":
        return affinity["gpus"].replace("0000:", "")
    return _PATHS.get(path, "-")


def _links(samples: _Samples, names: list[str]) -> Table:
    table = Table(title="Links without RDMA", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("netdev", "carrier", "Gb/s", "MTU", "flaps"):
        table.add_column(column, justify="left" if column in ("netdev", "carrier") else "right")
    for name in names:
        carrier = samples.value(link.LINK_CARRIER.name, netdev=name)
        table.add_row(
            escape(name),
            "-" if carrier is None else ("[green]up[/]" if carrier else "[red]down[/]"),
            _number(samples.value(link.LINK_SPEED.name, netdev=name), 8e-9),
            _number(samples.value(link.LINK_MTU.name, netdev=name)),
            _number(samples.value(link.CARRIER_DOWN.name, netdev=name)),
        )
    return table


def _downs(samples: _Samples, netdev: str, key: dict[str, str]) -> float | None:
    if netdev:
        return samples.value(link.CARRIER_DOWN.name, netdev=netdev)
    return samples.value(infiniband.LINK_DOWNED.name, **key)


def _state(state: float | None) -> str:
    if state is None:
        return "[red]unreadable[/]"
    word = _STATES.get(int(state), str(int(state)))
    return f"[green]{word}[/]" if state == 4 else f"[red]{word}[/]"


def _number(value: float | None, scale: float = 1) -> str:
    return "-" if value is None else f"{round(value * scale, 3):g}"


def _pcie(samples: _Samples, device: str) -> str:
    speed = samples.value(pcie.PCIE_SPEED.name, device=device)
    width = samples.value(pcie.PCIE_WIDTH.name, device=device)
    if speed is None or width is None:
        return "-"
    text = f"{speed / 1e9:g} GT/s x{width:.0f}"
    worse = (samples.value(pcie.PCIE_SPEED_MAX.name, device=device) or 0) > speed or (
        samples.value(pcie.PCIE_WIDTH_MAX.name, device=device) or 0
    ) > width
    return f"[red]{text}[/]" if worse else text
