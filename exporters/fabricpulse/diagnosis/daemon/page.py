"""The suspects as a page for a browser. Pure: the JSON document in, HTML out; read-only, without scripts."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

# Of one page, so that a browser on a telephone shows it.
_MOST_ROWS = 100
REFRESH_S = 5
# Nothing is loaded from anywhere, and nothing runs.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_STYLE = (
    "body{font:15px sans-serif;margin:1.5em;color-scheme:light dark}table{border-collapse:collapse}"
    "td,th{text-align:left;vertical-align:top;padding:.3em .9em .3em 0;border-bottom:1px solid #8886}"
)
_LEAF_COLUMNS = ("leaf", "network", "next hops", "missing", "since")
_COLUMNS = (
    "what",
    "component",
    "affected",
    "confidence",
    "for",
    "who suffers",
    "or else",
    "queue pairs of jobs",
)


def suspects_page(document: Mapping[str, Any]) -> str:
    """HTML of what `/api/v1/suspects` answers; every name in it is escaped."""
    suspects = document["suspects"]
    rows = "".join(_row(suspect) for suspect in suspects[:_MOST_ROWS])
    if not document["hosts"]:
        summary = "No host reports: whether anything is faulty is not known."
    elif document["fails"]:
        summary = "The diagnosis fails: what is faulty now is not known. The coordinator's log says why."
    elif not suspects:
        summary = "No component is suspect."
    else:
        summary = f"{len(suspects)} suspects" if len(suspects) != 1 else "One suspect"
        summary += f", the surest {_MOST_ROWS} of them:" if len(suspects) > _MOST_ROWS else ":"
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    table = f"<table><tr>{head}</tr>{rows}</table>" if rows else ""
    leaves = _leaves(document["leaf_paths"])
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}">'
        '<meta name="viewport" content="width=device-width"><title>fabricpulse: suspects</title>'
        f"<style>{_STYLE}</style></head><body><h1>Suspects</h1><p>{summary}</p>{table}{leaves}"
        f"<p>{document['hosts']} hosts report {document['flows']} flows; the switches of {document['paths']} are known."
        '</p><p><a href="api/v1/suspects">JSON</a></p></body></html>'
    )


def _row(suspect: Mapping[str, Any]) -> str:
    peer = f" to {suspect['peer']}" if suspect["peer"] else ""
    pairs, named = suspect["pairs"], suspect["sufferers"]
    more = (f"and {pairs - len(named)} more pairs",) if pairs > len(named) else ()
    return _cells(
        ("dead" if suspect["silent"] else suspect["what"],),
        (f"{suspect['kind']} {suspect['component']}{peer}",),
        (f"{100 * suspect['share']:.2g} %",),
        (f"{100 * suspect['confidence']:.0f} %",),
        (_duration(suspect["age_s"]),),
        (*named, *more),
        suspect["alternatives"][:3],
        _crossing(suspect["queue_pairs"]),
    )


def _crossing(crossing: Mapping[str, Any]) -> list[str]:
    """Jobs, and how many paths of their queue pairs cross it."""
    return [*crossing["jobs"], f"{crossing['paths']} paths"] if crossing["paths"] else []


def _cells(*cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<td>{_lines(cell)}</td>' for cell in cells)}</tr>"


def _leaves(paths: Mapping[str, Any]) -> str:
    """Leaves with fewer live paths than their siblings; nothing while there are none."""
    if not paths["leaves"]:
        return ""
    known = paths["whole"] + paths["fewer"]
    rows = "".join(
        _cells(
            (leaf["leaf"],),
            (leaf["network"],),
            (f"{leaf['live']} of {leaf['expected']}",),
            leaf["missing"],
            (leaf["since"] or f"never seen, watched since {leaf['watched_since']}",),
        )
        for leaf in paths["leaves"][:_MOST_ROWS]
    )
    head = "".join(f"<th>{name}</th>" for name in _LEAF_COLUMNS)
    return (
        f"<h2>Leaves with fewer live paths than their siblings</h2><p>{paths['fewer']} of {known} leaves whose paths "
        f"are known; of {paths['unknown']} they are not.</p><table><tr>{head}</tr>{rows}</table>"
    )


def _lines(texts: Iterable[str]) -> str:
    return "<br>".join(escape(str(text)) for text in texts)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
