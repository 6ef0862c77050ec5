"""The tree as documents: JSON, GraphML, SVG. Pure; every name in them is escaped."""

import re
from collections import Counter, defaultdict
from html import escape
from typing import Any
from xml.etree import ElementTree

from fabricpulse.diagnosis.tree.cabling import Miscabled, miscabled
from fabricpulse.diagnosis.tree.fabric_tree import FabricTree
from fabricpulse.diagnosis.tree.levels import Kind
from fabricpulse.diagnosis.tree.measured import by_name

_GRAPHML = "http://graphml.graphdrawing.org/xmlns"
_ATTRIBUTES = ("kind", "label", "confidence", "miscabled")
_COLUMN, _LINE, _EDGE = 190, 16, 10
# Of one leaf in a drawing.
_MOST_LINES = 40


def names_of(tree: FabricTree) -> list[str]:
    """Of each group: the leaf that most of its NICs are declared below, else by its first NIC: `leaf(gpu-1/eth1)`."""
    found = []
    for group in tree.groups:
        declared = Counter(tree.nics[nic].leaf for nic in group.nics if tree.nics[nic].leaf)
        first = min((tree.nics[nic].name for nic in group.nics), key=by_name, default="")
        name = f"{group.kind}({first})"
        if group.kind is Kind.LEAF and declared:
            leaf, count = declared.most_common(1)[0]
            # A name that two groups could have would make one of them.
            name = leaf if 2 * count > len(group.nics) and leaf not in found else name
        found.append(name)
    return found


def document_of(tree: FabricTree) -> dict[str, Any]:
    """What `/api/v1/topology` answers. pod, leaf, machine : None where they are not known."""
    names = names_of(tree)
    confidence = tree.confidence()
    columns = {kind: tree.of_kind(kind).tolist() for kind in (Kind.POD, Kind.LEAF, Kind.MACHINE)}
    nics = []
    texts = [nic.name for nic in tree.nics]
    for number, nic in enumerate(tree.nics):
        place = {kind.value: names[of[number]] if of[number] >= 0 else None for kind, of in columns.items()}
        nics.append(
            {
                "nic": texts[number],
                "rail": nic.rail,
                **place,
                "confidence": round(float(confidence[number]), 4),
            }
        )
    groups = [
        {
            "name": names[number],
            "kind": group.kind.value,
            "above": names[group.parent] if group.parent >= 0 else None,
            "nics": [texts[nic] for nic in group.nics],
        }
        for number, group in enumerate(tree.groups)
        if number > 0 and group.nics
    ]
    return {
        "pairs": len(tree.delays),
        "sigma_ns": round(tree.sigma_ns),
        "placed": sum(entry["leaf"] is not None for entry in nics),
        "nics": nics,
        "groups": groups,
        "miscabled": [_suspect(tree, names, one) for one in miscabled(tree)],
    }


def _suspect(tree: FabricTree, names: list[str], one: Miscabled) -> dict[str, Any]:
    partner = tree.nics[one.swapped_with].name if one.swapped_with >= 0 else None
    return {
        "nic": tree.nics[one.nic].name,
        "what": "wrong_rail" if one.wrong_rail else "wrong_leaf",
        "leaf": names[one.actual],
        "leaf_rail": one.rail,
        "expected": names[one.expected],
        "swapped_with": partner,
    }


def places_file_of(document: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The leaves and pods of a document of `document_of` as a file of places, which the placement reads, and the hosts
    that are left out because the leaf of one of their NICs is not known.
    """
    unknown = {entry["nic"].partition("/")[0] for entry in document["nics"] if entry["leaf"] is None}
    leaves: dict[str, list[str]] = defaultdict(list)
    pods: dict[str, set[str]] = defaultdict(set)
    for entry in document["nics"]:
        if entry["nic"].partition("/")[0] in unknown:
            continue
        leaves[entry["leaf"]].append(entry["nic"])
        if entry["pod"] is not None:
            pods[entry["pod"]].add(entry["leaf"])
    file: dict[str, Any] = {
        "leaves": {leaf: sorted(leaves[leaf], key=by_name) for leaf in sorted(leaves, key=by_name)}
    }
    if pods:
        file["pods"] = {pod: sorted(pods[pod], key=by_name) for pod in sorted(pods, key=by_name)}
    return file, sorted(unknown, key=by_name)


def graphml_of(document: dict[str, Any]) -> str:
    """GraphML of a document of `document_of`: groups and NICs are nodes, an edge goes from each to what is above."""
    ElementTree.register_namespace("", _GRAPHML)
    root = ElementTree.Element(f"{{{_GRAPHML}}}graphml")
    for name in _ATTRIBUTES:
        kind = "double" if name == "confidence" else "string"
        ElementTree.SubElement(
            root, _tag("key"), {"id": name, "for": "node", "attr.name": name, "attr.type": kind}
        )
    graph = ElementTree.SubElement(root, _tag("graph"), {"id": "fabric", "edgedefault": "directed"})
    _node(graph, "fabric", kind="fabric", label="fabric")
    wrong = {one["nic"]: one["what"] for one in document["miscabled"]}
    for group in document["groups"]:
        _node(graph, f"group:{group['name']}", kind=group["kind"], label=group["name"])
    above = dict.fromkeys((entry["nic"] for entry in document["nics"]), "fabric")
    kinds = {group["name"]: group["kind"] for group in document["groups"]}
    for group in document["groups"]:  # a smaller group comes after the one above it
        above |= dict.fromkeys(group["nics"], f"group:{group['name']}")
    for entry in document["nics"]:
        more = {"miscabled": wrong[entry["nic"]]} if entry["nic"] in wrong else {}
        _node(
            graph,
            f"nic:{entry['nic']}",
            kind="nic",
            label=entry["nic"],
            confidence=entry["confidence"],
            **more,
        )
    for group in document["groups"]:
        up = f"group:{group['above']}" if group["above"] in kinds else "fabric"
        ElementTree.SubElement(graph, _tag("edge"), {"source": f"group:{group['name']}", "target": up})
    for nic, up in above.items():
        ElementTree.SubElement(graph, _tag("edge"), {"source": f"nic:{nic}", "target": up})
    ElementTree.indent(root)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        + _printable(ElementTree.tostring(root, encoding="unicode"))
        + "\n"
    )


def _tag(name: str) -> str:
    return f"{{{_GRAPHML}}}{name}"


def _node(graph: ElementTree.Element, identity: str, **data: object) -> None:
    node = ElementTree.SubElement(graph, _tag("node"), {"id": identity})
    for key, value in data.items():
        ElementTree.SubElement(node, _tag("data"), {"key": key}).text = str(value)


def svg_of(document: dict[str, Any]) -> str:
    """A drawing: a row of leaves for each pod, a box for each leaf with its NICs, miscabled ones in red."""
    wrong = {one["nic"]: one for one in document["miscabled"]}
    rows: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for entry in document["nics"]:
        rows[entry["pod"] or ""][entry["leaf"] or "leaf not known"].append(entry["nic"])
    parts: list[str] = []
    y, width = _EDGE, 0
    for pod, leaves in sorted(rows.items(), key=lambda row: by_name(row[0])):
        parts.append(_text(_EDGE, y + 12, pod or "pod not known, or none", "b"))
        tall = max(min(len(nics), _MOST_LINES) + 1 for nics in leaves.values())
        for column, (leaf, nics) in enumerate(sorted(leaves.items(), key=lambda one: by_name(one[0]))):
            x = _EDGE + column * (_COLUMN + _EDGE)
            width = max(width, x + _COLUMN + _EDGE)
            height = (min(len(nics), _MOST_LINES) + 2) * _LINE
            parts.append(f'<rect x="{x}" y="{y + 20}" width="{_COLUMN}" height="{height}"/>')
            parts.append(_text(x + 6, y + 20 + _LINE, leaf, "b"))
            shown = sorted(nics, key=lambda nic: (nic not in wrong, by_name(nic)))
            for line, nic in enumerate(shown[:_MOST_LINES]):
                label = f"{nic}: {wrong[nic]['what'].replace('_', ' ')}" if nic in wrong else nic
                last = line == _MOST_LINES - 1 and len(nics) > _MOST_LINES
                label = f"and {len(nics) - line} more" if last else label
                style = "w" if nic in wrong and not last else ""
                parts.append(_text(x + 6, y + 20 + _LINE * (line + 2), label, style))
        y += 20 + (tall + 2) * _LINE
    style = "text{font:12px sans-serif}.b{font-weight:bold}.w{fill:#c00}rect{fill:none;stroke:#888}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}"><style>{style}</style>'
    return f"{head}{''.join(parts)}</svg>\n"


def _text(x: int, y: int, text: str, style: str) -> str:
    of = f' class="{style}"' if style else ""
    return f'<text x="{x}" y="{y}"{of}>{escape(_printable(text))}</text>'


def _printable(text: str) -> str:
    """Without characters that XML forbids."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
