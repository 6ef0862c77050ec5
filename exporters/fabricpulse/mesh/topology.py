"""`fabricpulse mesh topology`: leaves, pods and machines of the fabric as the coordinator has learned them. Pure but
for `fetch_topology`.
"""

from collections import Counter
from typing import Any

import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fabricpulse.core.errors import UserError
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.diagnosis.tree.documents import graphml_of, places_file_of, svg_of
from fabricpulse.mesh.show import cells, fetch

_MOST_NICS = 6  # that a line of the table names


def fetch_topology(url: str, client: HttpClientConfig) -> dict[str, Any]:
    """`/api/v1/topology` of the coordinator at `url`. Raises UserError when it does not answer with one."""
    lists = ("nics", "groups", "miscabled", "missing")
    return fetch(url, "/api/v1/topology", client, "coordinator", "--fleet", lists)


def require_leaves(document: dict[str, Any]) -> None:
    """Raises UserError, with what is missing, where no leaf is known."""
    if not document["placed"]:
        raise UserError("no leaf of the fabric is known yet: " + "; ".join(map(str, document["missing"])))


def rendered(document: dict[str, Any], form: str) -> tuple[str, list[str]]:
    """The document as `graphml`, `svg` or `places` (YAML), and notes for the reader. Raises UserError for places where
    no host is known in full.
    """
    if form == "graphml":
        return graphml_of(document), []
    if form == "svg":
        return svg_of(document), []
    file, left_out = places_file_of(document)
    if not file["leaves"]:
        raise UserError("of no host the leaves of all NICs are known; a file of places would be empty")
    more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
    notes = [
        f"{len(left_out)} hosts are left out, a leaf of theirs is not known: {', '.join(left_out[:5])}{more}"
    ]
    return yaml.safe_dump(file, sort_keys=False, allow_unicode=True), notes if left_out else []


def print_topology(document: dict[str, Any], console: Console | None = None) -> None:
    """Pods, leaves and machines with their NICs, then NICs at a wrong leaf, then what is missing."""
    console = console or Console()
    least: dict[str, float] = {}
    for entry in document["nics"]:
        for kind in ("pod", "leaf", "machine"):
            if entry[kind] is not None:
                least[entry[kind]] = min(least.get(entry[kind], 1.0), entry["confidence"])
    if document["groups"]:
        table = Table(box=SIMPLE_HEAD)
        for column in ("kind", "name", "in", "NICs", "surely", "which"):
            table.add_column(column)
        for group in document["groups"]:
            nics = group["nics"]
            more = f" and {len(nics) - _MOST_NICS} more" if len(nics) > _MOST_NICS else ""
            which = "" if group["kind"] == "pod" else ", ".join(nics[:_MOST_NICS]) + more
            sure = f"{100 * least[group['name']]:.0f} %" if group["name"] in least else ""
            table.add_row(*cells(group["kind"], group["name"], group["above"] or "", len(nics), sure, which))
        console.print(table)
    if document["miscabled"]:
        table = Table(box=SIMPLE_HEAD)
        for column in ("NIC", "is", "at", "belongs to", "swapped with"):
            table.add_column(column)
        for one in document["miscabled"]:
            what = (
                f"on {one['leaf_rail']}, a wrong rail" if one["what"] == "wrong_rail" else "at a wrong leaf"
            )
            table.add_row(*cells(one["nic"], what, one["leaf"], one["expected"], one["swapped_with"] or ""))
        console.print(table)
    kinds = Counter(group["kind"] for group in document["groups"])
    summary = f"{document['placed']} of {len(document['nics'])} NICs are below one of {kinds['leaf']} leaves"
    summary += f" ({kinds['pod']} pods, {kinds['machine']} machines with several hosts)"
    summary += f"; {document['pairs']} of {document['edges']} edges, computed {document['computed']}"
    if document.get("age_s") is not None:
        summary += f", from delays {document['age_s']:.0f} s ago"
    console.print(*cells(summary))
    for sentence in document["missing"]:
        console.print(*cells(f"missing: {sentence}"))
