"""`fabricpulse mesh show`: what the exporter of this host, or the coordinator of the fleet, sees, worst first. Pure but
for `fetch_edges` and `fetch_suspects`.
"""

from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fabricpulse.core.errors import UserError
from fabricpulse.core.output import printable
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.document import fetch_document
from fabricpulse.core.web.urls import redact

FINE, IMPAIRED = 0, 1


def fetch_edges(url: str, client: HttpClientConfig) -> dict[str, Any]:
    """`/api/v1/edges` of the exporter at `url`. Raises UserError when it does not answer with one."""
    return fetch(url, "/api/v1/edges", client, "mesh exporter", "--url", ("edges", "nics"))


def fetch_suspects(url: str, client: HttpClientConfig) -> dict[str, Any]:
    """`/api/v1/suspects` of the coordinator at `url`. Raises UserError when it does not answer with one."""
    return fetch(url, "/api/v1/suspects", client, "coordinator", "--fleet", ("suspects",))


def fetch(
    url: str, path: str, client: HttpClientConfig, daemon: str, option: str, lists: tuple[str, ...]
) -> dict[str, Any]:
    """A document of a daemon that has these lists. option : that holds `url`. Raises UserError."""
    document = fetch_document(url, path, client, daemon=daemon, option=option)
    if not isinstance(document, dict) or not all(isinstance(document.get(name), list) for name in lists):
        raise UserError(f"what {redact(url)} answers is not from a {daemon}")
    return document


def impaired_edges(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The edges that suffer, those that are down first, then by what is lost, then by delay above the baseline."""

    def rank(edge: dict[str, Any]) -> tuple[bool, float, float]:
        return edge["state"] != "down", -worst_loss(edge), -_excess_ns(edge)

    suffering = (
        edge
        for edge in document["edges"]
        if edge["evidence"] or edge["degraded_host_ns"] or edge["latency"]["elevated"]
    )
    return sorted(suffering, key=rank)


def worst_loss(edge: dict[str, Any]) -> float:
    """Loss of the last minute on the source port that loses most, 0 to 1."""
    return max((path["loss_ratio"] for path in edge["paths"] if path["lossy"]), default=0.0)


def _excess_ns(edge: dict[str, Any]) -> int:
    owd, baseline = edge["owd_ns"], edge["latency"]["baseline_ns"]
    return int(owd["p50"] - baseline) if owd and baseline is not None else 0


def exit_code(document: dict[str, Any]) -> int:
    """0 when all is well: every NIC connected, no edge suffers."""
    bad_nics = any(nic["state"] != "connected" for nic in document["nics"])
    return IMPAIRED if bad_nics or impaired_edges(document) or not document["nics"] else FINE


def bad_paths(edge: dict[str, Any]) -> str:
    """The source ports that are down, lossy, drop large packets or are slow: `9622 down, 9625 loses 1.5 %`."""
    parts = []
    for path in edge["paths"]:
        if path["state"] == "down":
            parts.append(f"{path['port']} down")
        elif path["lossy"]:
            parts.append(f"{path['port']} loses {100 * path['loss_ratio']:.2g} %")
        elif path["drops_large"]:
            parts.append(f"{path['port']} drops {edge['mtu_black_hole_bytes']} bytes")
        elif path["elevated"]:
            parts.append(f"{path['port']} slow")
    return ", ".join(parts)


def microseconds(ns: int | None) -> str:
    """`12.3 us`; empty for None."""
    return "" if ns is None else f"{ns / 1000:.1f} us"


def moment(host_ns: int | None) -> str:
    """When, UTC to the second; empty for None."""
    if host_ns is None:
        return ""
    return datetime.fromtimestamp(host_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def print_tables(document: dict[str, Any], everything: bool, console: Console | None = None) -> None:
    """NICs, then the edges that suffer, or all of them."""
    console = console or Console()
    nics = Table(box=SIMPLE_HEAD)
    for column in ("device", "network", "state", "cause", "since", "disconnects"):
        nics.add_column(column)
    for nic in document["nics"]:
        head = (nic["device"], nic["network"], nic["state"], nic["cause"] or "")
        nics.add_row(*cells(*head, moment(nic["changed_host_ns"]), nic["disconnects"]))
    console.print(f"host {escape(printable(str(document['host'])))}", nics)
    edges = document["edges"] if everything else impaired_edges(document)
    if not edges:
        console.print(f"all {len(document['edges'])} edges are well")
        return
    table = Table(box=SIMPLE_HEAD)
    for column in (
        "device",
        "peer",
        "state",
        "evidence",
        "since",
        "delay",
        "baseline",
        "rtt",
        "source ports",
    ):
        table.add_column(column)
    for edge in edges:
        since = edge["changed_host_ns"] if edge["state"] == "down" else edge["degraded_host_ns"]
        owd = edge["owd_ns"]
        table.add_row(
            *cells(
                *(edge["device"], f"{edge['peer']} {edge['peer_device']}", edge["state"]),
                *(edge["evidence"] or ("slow" if edge["latency"]["elevated"] else ""), moment(since)),
                *(microseconds(owd and owd["p50"]), microseconds(edge["latency"]["baseline_ns"])),
                *(microseconds(edge["rtt_ns"]), bad_paths(edge)),
            )
        )
    console.print(table)
    if not everything:
        console.print(f"{len(edges)} of {len(document['edges'])} edges suffer")
        return
    _print_queue_pairs(document.get("queue_pairs", []), console)


def _print_queue_pairs(paths: list[dict[str, Any]], console: Console) -> None:
    """The switches that the queue pairs of jobs cross."""
    if not paths:
        return
    table = Table(box=SIMPLE_HEAD)
    for column in ("device", "peer", "source port", "queue pairs", "jobs", "switches"):
        table.add_column(column)
    for path in paths:
        hops = " ".join(hop or "?" for hop in path["hops"]) or path["error"] or "not known"
        table.add_row(
            *cells(path["device"], f"{path['peer']} {path['peer_device']}", path["source_port"]),
            *cells(", ".join(map(str, path["queue_pairs"])), ", ".join(path["workloads"]), hops),
        )
    console.print("paths of queue pairs", table)


def print_suspects(document: dict[str, Any], console: Console | None = None) -> None:
    """The components of the fleet that suffer, the surest first."""
    console = console or Console()
    summary = f"{document.get('hosts', 0)} hosts report {document.get('flows', 0)} flows"
    summary += f", the switches of {document.get('paths', 0)} are known"
    leaves = fewer_paths(document)
    if leaves:
        _print_leaves(leaves, console)
    if document.get("fails"):
        console.print(f"{summary}; the diagnosis fails: what is faulty now is not known")
    elif not document["suspects"]:
        console.print(f"{summary}; no component is suspect")
    if not document["suspects"]:
        return
    table = Table(box=SIMPLE_HEAD)
    for column in ("what", "component", "affected", "confidence", "for", "or else", "queue pairs of jobs"):
        table.add_column(column)
    for suspect in document["suspects"]:
        table.add_row(
            *cells(
                *(suspect["what"], component(suspect), f"{100 * suspect['share']:.2g} %"),
                *(f"{100 * suspect['confidence']:.0f} %", f"{suspect['age_s']:.0f} s"),
                *(", ".join(suspect["alternatives"][:3]), crossing_jobs(suspect)),
            )
        )
    console.print(table)
    console.print(summary)


def crossing_jobs(suspect: dict[str, Any]) -> str:
    """The jobs whose queue pairs cross a suspect: `train-7, train-8 (12 paths)`."""
    crossing = suspect.get("queue_pairs")  # an older coordinator says nothing of them
    if not crossing or not crossing["paths"]:
        return ""
    return f"{', '.join(crossing['jobs'])} ({crossing['paths']} paths)"


def fewer_paths(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Leaves with fewer live paths than their siblings, as the coordinator names them."""
    paths = document.get("leaf_paths")
    return list(paths.get("leaves", ())) if isinstance(paths, dict) else []


def _print_leaves(leaves: list[dict[str, Any]], console: Console) -> None:
    table = Table(box=SIMPLE_HEAD)
    for column in ("leaf", "network", "next hops", "missing", "since"):
        table.add_column(column)
    for leaf in leaves:
        since = leaf["since"] or f"never seen, watched since {leaf['watched_since']}"
        have = f"{leaf['live']} of {leaf['expected']}"
        table.add_row(*cells(leaf["leaf"], leaf["network"], have, ", ".join(leaf["missing"]), since))
    console.print("leaves with fewer live paths than their siblings", table)


def component(suspect: dict[str, Any]) -> str:
    """`link leaf-1 to spine-2`, `nic_tx gpu-001/eth1`."""
    far = f" to {suspect['peer']}" if suspect["peer"] else ""
    return f"{suspect['kind']} {suspect['component']}{far}"


def cells(*values: object) -> tuple[str, ...]:
    """Of a table, as a terminal may show them."""
    return tuple(escape(printable(str(value))) for value in values)
