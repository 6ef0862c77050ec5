"""`fabricpulse clocksync status`: what a person wants to know of the clock of one host, or of the fleet."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

STATUS_PATH = "/api/v1/clocksync/status"
HISTORY_PATH = "/api/v1/clocksync/history"


def duration(ns: float | None) -> str:
    """Nanoseconds for people: 3 significant digits with a unit."""
    if ns is None:
        return "-"
    for limit, unit in ((1e3, "ns"), (1e6, "µs"), (1e9, "ms")):
        if abs(ns) < limit:
            return f"{ns / (limit / 1e3):.3g} {unit}"
    return f"{ns / 1e9:.6g} s"


def print_status(document: dict[str, Any], console: Console) -> None:
    """Prints the status of a sidecar or of a coordinator, whichever `document` is."""
    if "members" in document:
        _print_fleet(document, console)
    else:
        _print_host(document, console)


def _print_host(document: dict[str, Any], console: Console) -> None:
    colour = "green" if document["status"] == "synchronized" else "yellow"
    console.print(
        f"[bold]{escape(document['host'])}[/bold]: [{colour}]{document['status']}[/{colour}], within "
        f"[bold]{duration(document['bound_ns'])}[/bold]{_likely(document)}; "
        f"fleet time is {duration(document['offset_ns'])} from the host clock, at {document['rate_ppb']:+.1f} ppb; "
        f"coordinator {'up' if document['coordinator_up'] else 'down'}",
        soft_wrap=True,
    )
    if document.get("why"):
        console.print(f"[yellow]not synchronized[/yellow]: {escape(document['why'])}", soft_wrap=True)
    if document.get("anchor_bound_ns") is not None:
        console.print(f"anchor: the host's clock is UTC within {duration(document['anchor_bound_ns'])}")
    if document.get("anchor_refused"):
        console.print(
            f"[yellow]no anchor[/yellow]: clock of the NIC: {escape(document['anchor_refused'])}",
            soft_wrap=True,
        )
    if document["suspect"]:
        console.print(f"[red]suspect[/red]: {escape(document['suspect'])}", soft_wrap=True)
    table = _table("device", "peer", "offset", "rate ppb", "half gap", "bound", "trains", "fit", "residual")
    edges = sorted(document["edges"], key=lambda edge: -abs(edge["residual_ns"] or 0))
    for edge in edges:
        fits = edge["fits"] is not False
        residual = duration(edge["residual_ns"])
        table.add_row(
            escape(edge["device"]),
            escape(f"{edge['peer']} {edge['peer_device']}"),
            duration(edge["offset_ns"]),
            "-" if edge["rate_ppb"] is None else f"{edge['rate_ppb']:.1f}",
            duration(edge["half_gap_ns"]),
            duration(edge["bound_ns"]),
            str(edge["trains"]),
            edge["quality"],
            residual if fits else f"[red]{residual}[/red]",
        )
    _print_table(table, console)


def _likely(document: dict[str, Any]) -> str:
    """What fleet time is likely off by, if that is known."""
    likely_ns = document.get("estimated_error_ns")
    return "" if likely_ns is None else f", likely {duration(likely_ns)}"


def _worst_nic(bias_ns: dict[str, float]) -> str:
    """The NIC whose stamps are furthest from those of the host's other NICs."""
    if not bias_ns:
        return "-"
    device = max(bias_ns, key=lambda name: abs(bias_ns[name]))
    return f"{escape(device)} {duration(bias_ns[device])}"


def _print_fleet(document: dict[str, Any], console: Console) -> None:
    members = document["members"]
    held_out = document.get("held_out_ns", {}).get("0.99")
    console.print(
        f"[bold]{len(members)} hosts[/bold], median residual {duration(document['residual_p50_ns'])}, "
        + (
            f"99 % of edges within {duration(held_out)} of what all others say, "
            if held_out is not None
            else ""
        )
        + f"{len(document['outlier_edges'])} outlier edges",
        soft_wrap=True,
    )
    if document.get("quorum") is False:
        console.print(
            "[yellow]no quorum[/yellow]: most hosts, or all anchors, are unreachable; bounds "
            "grow as in holdover",
            soft_wrap=True,
        )
    if document.get("awaited_anchors"):
        console.print(
            f"fleet time waits for UTC from {escape(', '.join(document['awaited_anchors']))}", soft_wrap=True
        )
    for name in document.get("duplicate_names", ()):
        console.print(
            f"[red]two hosts report as {escape(name)}[/red], and neither is accepted: give each a name of its own",
            soft_wrap=True,
        )
    table = _table(
        "host",
        "bound",
        "likely",
        "correction",
        "rate ppb",
        "edges",
        "outlier",
        "last seen",
        "NIC bias",
        "suspect",
    )
    for member in members:
        table.add_row(
            escape(member["host"]),
            duration(member["bound_ns"]),
            duration(member.get("estimated_error_ns")),
            duration(member["correction_ns"]),
            "-" if member["rate_ppb"] is None else f"{member['rate_ppb']:.1f}",
            str(member["edges"]),
            str(member["outlier_edges"]),
            f"{member['age_s']:.1f} s",
            _worst_nic(member.get("nic_bias_ns", {})),
            f"[red]{escape(member['suspect'])}[/red]" if member["suspect"] else "",
        )
    _print_table(table, console)
    for edge in document["outlier_edges"]:
        ends = f"{edge['host']} {edge['device']} - {edge['peer']} {edge['peer_device']}"
        console.print(
            f"[red]outlier[/red] {escape(ends)}: {duration(edge['residual_ns'])}",
            soft_wrap=True,
        )


def _table(*columns: str) -> Table:
    """Of which nothing is cut off: what a narrow terminal has no room for goes on in the next line."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print_table(table: Table, console: Console) -> None:
    if not console.is_terminal:
        # For grep and files: a row a line, as long as it is.
        unlimited = console.options.update(max_width=10_000)
        console.width = max(console.width, Measurement.get(console, unlimited, table).maximum)
    console.print(table)
