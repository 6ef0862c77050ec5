"""A run as one HTML page that opens from disk: no request leaves it, nothing of another host's text is markup.

The findings and the grid are data in the page (JSON in a script element of a type that no browser runs), drawn by the
page's own script; the colours of cells are one letter each, so that 1,000 hosts with 60 checks are 60 KB. What a person
needs at once, the totals and the worst findings, is in the markup and is painted before any script runs.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from fabricpulse.audit.compare.tested import fleet_outcomes
from fabricpulse.audit.model import SEVERITIES, Finding, Run, Status
from fabricpulse.audit.registry import all_checks
from fabricpulse.audit.report.matrices import matrices

# Of findings that are in the markup itself.
FIRST = 50
# Findings that the page holds; a fleet that has more has a common cause, and the JSON has all.
MOST_FINDINGS = 4000
_LETTERS = {Status.PASSED: "p", Status.FAILED: "f", Status.UNKNOWN: "u", Status.NOT_APPLICABLE: "n"}
_RANK = "npuf"


def page(run: Run) -> str:
    """The document, UTF-8 text."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    when = datetime.fromtimestamp(run.started_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    counts = {severity: sum(f.severity == severity for f in run.findings) for severity in SEVERITIES}
    parts = {
        "title": escape(f"Fleet audit {run.id}"),
        "when": escape(f"{when}, {run.duration_s:.1f} s" + (", cancelled" if run.cancelled else "")),
        "hosts": f"{len(run.hosts)} of {len(run.asked)}",
        "errors": str(counts["error"]),
        "warnings": str(counts["warning"]),
        "info": str(counts["info"]),
        "first": "\n".join(_row(finding) for finding in run.findings[:FIRST]),
        "data": _json(_data(run)),
    }
    for name, text in parts.items():
        template = template.replace(f"<!--{name}-->", text)
    return template


def _row(finding: Finding) -> str:
    where = " ".join(filter(None, (finding.host or "fleet", finding.subject)))
    cells = "".join(
        f"<td>{escape(text)}</td>" for text in (finding.severity, finding.check, where, finding.summary)
    )
    return f'<tr class="{finding.severity}">{cells}</tr>'


def _json(data: object) -> str:
    # "</script" and "<!--" would end the element or change how it is read.
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _data(run: Run) -> Mapping[str, object]:
    checks = all_checks()
    grid, columns = _grid(run)
    return {
        "checks": [_about(name) for name in columns],
        "hosts": [report.host for report in run.hosts],
        "grid": grid,
        "cut": max(0, len(run.findings) - MOST_FINDINGS),
        "silent": sorted(set(run.asked) - {report.host for report in run.hosts}),
        "fix": {name: checks[name].fix for name in {f.check for f in run.findings} if name in checks},
        "findings": [
            [SEVERITIES.index(f.severity), f.check, f.host, f.subject, f.summary, f.evidence]
            for f in run.findings[:MOST_FINDINGS]
        ],
        "notes": list(run.notes),
        **matrices(run.measurements),
    }


def _about(name: str) -> tuple[str, str, str]:
    check = all_checks().get(name)
    return (name, check.category, check.title) if check else (name, "fleet", name)


def _grid(run: Run) -> tuple[Sequence[str], list[str]]:
    """A line a host, a letter a check: the worst of its outcomes, "-" where it was not made."""
    made = {result.check for report in run.hosts for result in report.results}
    between = fleet_outcomes(run)
    found = {finding.check for finding in run.findings} | set(between)
    columns = [name for name in all_checks() if name in made or name in found]
    columns += sorted((made | found) - set(columns))
    place = {name: index for index, name in enumerate(columns)}
    by_host: dict[str, list[Finding]] = {}
    for finding in run.findings:
        for host in finding.suspects or (finding.host,):
            by_host.setdefault(host, []).append(finding)
    lines = []
    for report in run.hosts:
        line = ["-"] * len(columns)
        for result in report.results:
            letter = _LETTERS[result.outcome.status]
            index = place[result.check]
            if line[index] == "-" or _RANK.index(letter) > _RANK.index(line[index]):
                line[index] = letter
        for finding in by_host.get(report.host, ()):
            index, letter = place[finding.check], "u" if finding.suspects else "f"
            line[index] = max(line[index], letter, key=_RANK.find)
        for check, outcomes in between.items():
            if report.host in outcomes:
                index, letter = place[check], _LETTERS[outcomes[report.host]]
                line[index] = max(line[index], letter, key=_RANK.find)
        lines.append("".join(line))
    return lines, columns
