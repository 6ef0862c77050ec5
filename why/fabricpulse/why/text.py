"""A report as text for a terminal. Foreign names are shown printable."""

from fabricpulse.core.output import printable
from fabricpulse.why.catalogue import CAUSES
from fabricpulse.why.finding import LIKELY
from fabricpulse.why.flow_view import line as line_of
from fabricpulse.why.infer import Ranked
from fabricpulse.why.moment import when
from fabricpulse.why.report import Report

_MOST_CAUSES = 5
_MOST_WAITS = 12
_MOST_FLOWS = 5


def text(report: Report) -> str:
    """All of it, most important first."""
    v = report.answer
    lines = [v.headline, *(f"  {line}" for line in v.origins)]
    if v.since_s is not None:
        lines.append(f"Since {when(v.since_s)}.")
    lines += [f"  {line}" for line in v.comparisons]
    for number, ranked in enumerate(v.causes[:_MOST_CAUSES], 1):
        lines += ["", *_cause(report, number, ranked)]
    if len(v.causes) > _MOST_CAUSES:
        lines.append(f"… and {len(v.causes) - _MOST_CAUSES} more: --output json")
    if v.waits:
        lines += ["", "Who waits for whom:"]
        lines += [f"  {line}" for line in v.waits[:_MOST_WAITS]]
        if len(v.waits) > _MOST_WAITS:
            lines.append(f"  … and {len(v.waits) - _MOST_WAITS} more: --output json")
    if worst := [s for s in v.flows if s.worse is not None or s.flow.delay_s is not None][:_MOST_FLOWS]:
        lines += ["", "Worst flows (bandwidth, one-way delay; median of their siblings):"]
        lines += [f"  {line_of(s)}" for s in worst]
    if report.journal is not None:
        lines += [
            "",
            "Done about it:" if report.journal else "Remediation has done nothing about these NICs.",
        ]
        lines += [f"  {when(done.at_s)} {done.subject}: {done.text}" for done in report.journal]
    if v.unknown:
        lines += ["", "Not known:"]
        lines += [f"  {line}" for line in v.unknown]
    if links := report.dashboards():
        lines += ["", *(f"{title}: {link}" for title, link in links.items())]
    return "\n".join(printable(line) for line in lines) + "\n"


def _cause(report: Report, number: int, ranked: Ranked) -> list[str]:
    f = ranked.finding
    word = "" if f.confidence >= LIKELY else ", a hint only"
    lines = [f"{number}. {CAUSES[f.cause].title}: {f.where} ({f.confidence:.0%}{word})"]
    for evidence in f.evidence:
        lines.append(f"   - {evidence.text}")
        if query := report.queries.get(evidence.query):
            lines.append(f"     {query if len(query) < 200 else query[:197] + '...'}")
    if ranked.explains:
        effects = ", ".join(sorted({f"{CAUSES[e.cause].title} ({e.where})" for e in ranked.explains})[:4])
        lines.append(f"   It explains: {effects}")
    return [*lines, *(f"   Do: {line}" for line in CAUSES[f.cause].do)]
