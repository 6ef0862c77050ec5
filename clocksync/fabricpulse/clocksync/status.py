"""`fabricpulse clocksync status`: what a person wants to know of the clock of one host, or of the fleet."""

import json
import urllib.error
import urllib.request
from typing import Any

from rich.console import Console
from rich.table import Table

from fabricpulse.core.errors import UserError

STATUS_PATH = "/api/v1/clocksync/status"
HISTORY_PATH = "/api/v1/clocksync/history"


def fetch(url: str, path: str, timeout_s: float = 3.0) -> Any:
    """The JSON document at `url` + `path`. Raises UserError naming what could not be reached."""
    if not url.startswith(("http://", "https://")):
        raise UserError(f"{url!r} is not an http:// or https:// URL")
    try:
        with urllib.request.urlopen(url.rstrip("/") + path, timeout=timeout_s) as response:  # noqa: S310 - checked above
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        raise UserError(f"{url} answered {error.code} {error.reason}: is this a clocksync daemon?") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"cannot reach {url}: {reason}; is the daemon running, and --url right?") from error


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
        f"[bold]{document['host']}[/bold]: [{colour}]{document['status']}[/{colour}], within "
        f"[bold]{duration(document['bound_ns'])}[/bold]; fleet time is {duration(document['offset_ns'])} from the host "
        f"clock, at {document['rate_ppb']:+.1f} ppb; coordinator {'up' if document['coordinator_up'] else 'down'}"
    )
    if document.get("why"):
        console.print(f"[yellow]not synchronized[/yellow]: {document['why']}", soft_wrap=True)
    if document["suspect"]:
        console.print(f"[red]suspect[/red]: {document['suspect']}")
    table = Table(
        "device", "peer", "offset", "rate ppb", "half gap", "bound", "pure/trains", "fit", "residual"
    )
    edges = sorted(document["edges"], key=lambda edge: -abs(edge["residual_ns"] or 0))
    for edge in edges:
        fits = edge["fits"] is not False
        residual = duration(edge["residual_ns"])
        table.add_row(
            edge["device"],
            f"{edge['peer']} {edge['peer_device']}",
            duration(edge["offset_ns"]),
            "-" if edge["rate_ppb"] is None else f"{edge['rate_ppb']:.1f}",
            duration(edge["half_gap_ns"]),
            duration(edge["bound_ns"]),
            f"{edge['pure']}/{edge['trains']}",
            edge["quality"],
            residual if fits else f"[red]{residual}[/red]",
        )
    console.print(table)


def _print_fleet(document: dict[str, Any], console: Console) -> None:
    members = document["members"]
    console.print(
        f"[bold]{len(members)} hosts[/bold], median residual {duration(document['residual_p50_ns'])}, "
        f"{len(document['misfit_edges'])} edges do not fit"
    )
    table = Table("host", "bound", "correction", "rate ppb", "edges", "misfit", "last seen", "suspect")
    for member in members:
        table.add_row(
            member["host"],
            duration(member["bound_ns"]),
            duration(member["correction_ns"]),
            "-" if member["rate_ppb"] is None else f"{member['rate_ppb']:.1f}",
            str(member["edges"]),
            str(member["misfit_edges"]),
            f"{member['age_s']:.1f} s",
            f"[red]{member['suspect']}[/red]" if member["suspect"] else "",
        )
    console.print(table)
    for edge in document["misfit_edges"]:
        console.print(
            f"[red]misfit[/red] {edge['host']} {edge['device']} - {edge['peer']} {edge['peer_device']}: "
            f"{duration(edge['residual_ns'])}"
        )
