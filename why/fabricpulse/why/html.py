"""A report as one HTML file: no script, nothing fetched, all foreign text escaped. The timeline is drawn as SVG."""

from fabricpulse.why.catalogue import CAUSES
from fabricpulse.why.escaping import escape
from fabricpulse.why.flow_plot import flow_plot
from fabricpulse.why.moment import when
from fabricpulse.why.report import Report

_STYLE = """:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:#1b1b1f;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}code{font-size:.8rem;word-break:break-all;color:#555}

.bar{background:#e4e4ea;height:.5rem;width:12rem;display:inline-block}
.bar i{background:#c0392b;height:.5rem;display:block}
.cause{border-left:4px solid #c0392b;padding-left:1rem;margin:1rem 0}.hint{border-color:#bbb}
table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:left;border-bottom:1px solid #ddd}
@media(prefers-color-scheme:dark){body{background:#17171b;color:#e8e8ee}code{color:#aaa}td,th{border-color:#444}}"""
_WIDTH, _HEIGHT, _MARGIN = 860, 160, 24
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html(report: Report) -> str:
    """The whole page."""
    v = report.answer
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        '<meta name=viewport content="width=device-width">',
        f"<title>why {escape(v.workload)}</title><style>{_STYLE}</style>",
        f"<h1>{escape(v.headline)}</h1>",
        f"<p>Asked about {when(v.at_s)}; rates over {v.window_s:.0f} s."
        + (f" Since {when(v.since_s)}." if v.since_s is not None else "")
        + "</p>",
        _list([*v.origins, *v.comparisons]),
        _timeline(report),
    ]
    parts += [_cause(report, number) for number in range(len(v.causes))]
    if v.waits:
        parts += ["<h2>Who waits for whom</h2>", _list(v.waits)]
    if v.flows:
        rows = "".join(
            f"<tr><td>{escape(str(f.source))}<td>{escape(str(f.target))}<td>{_number(f.sent, 8e-9)}"
            f"<td>{_number(s.sent, 8e-9)}<td>{_number(f.delay_s, 1e6)}<td>{_number(s.delay_s, 1e6)}"
            f"<td>{_number(f.floor_s, 1e6)}<td>{_number(f.probe_s, 1e6)}"
            for s in v.flows[:20]
            for f in (s.flow,)
        )
        head = "<tr><th>from<th>to<th>Gb/s<th>siblings<th>delay, us<th>siblings<th>quickest tenth, us<th>probes, us"
        parts += ["<h2>Flows, worst first</h2>", flow_plot(v.flows), f"<table>{head}{rows}</table>"]
    if report.journal is not None:
        done = [f"{when(d.at_s)} {d.subject}: {d.text}" for d in report.journal]
        parts += ["<h2>Done about it</h2>", _list(done) if done else "<p>Nothing.</p>"]
    if v.unknown:
        parts += ["<h2>Not known</h2>", _list(v.unknown)]
    links = "".join(
        f'<li><a href="{escape(url)}">{escape(title)}</a>' for title, url in report.dashboards().items()
    )
    if links:
        parts += ["<h2>Dashboards</h2>", f"<ul>{links}</ul>"]
    return "\n".join(parts) + "\n"


def _cause(report: Report, number: int) -> str:
    ranked = report.answer.causes[number]
    f = ranked.finding
    evidence = ""
    for e in f.evidence:
        link, query = report.query_link(e.query), report.queries.get(e.query, "")
        shown = f"<br><code>{escape(query)}</code>" if query else ""
        linked = f' <a href="{escape(link)}">graph</a>' if link else ""
        evidence += f"<li>{escape(e.text)}{linked}{shown}"
    effects = ", ".join(sorted({f"{CAUSES[e.cause].title} ({e.where})" for e in ranked.explains}))
    return (
        f'<div class="cause{"" if f.confidence >= 0.5 else " hint"}">'
        f"<h2>{number + 1}. {escape(CAUSES[f.cause].title)}: {escape(f.where)}</h2>"
        f'<p>{f.confidence:.0%} <span class=bar><i style="width:{f.confidence * 100:.0f}%"></i></span></p>'
        f"<ul>{evidence}</ul>"
        + (f"<p>It explains: {escape(effects)}.</p>" if effects else "")
        + f"<p><b>Do:</b></p>{_list(CAUSES[f.cause].do)}</div>"
    )


def _list(lines: tuple[str, ...] | list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}" for line in lines) + "</ul>" if lines else ""


def _number(value: float | None, factor: float) -> str:
    return "?" if value is None else f"{value * factor:.1f}"


def _timeline(report: Report) -> str:
    """Bandwidth of the collectives over the last hour, or how many there were, when it became slow, and what was
    done."""
    history = report.history or report.pace
    if len(history) < 2:
        return ""
    v = report.answer
    start_s, end_s = history[0][0], max(history[-1][0], v.at_s)
    top = max(value for _, value in history) or 1.0
    title, most = "Bandwidth of the collectives", f"{top * 8e-9:.1f} Gb/s"
    if not report.history:
        title, most = "Collectives", f"{top:.3g} a second"

    def x(at_s: float) -> float:
        share = (at_s - start_s) / (end_s - start_s or 1.0)
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * min(max(share, 0.0), 1.0)

    def y(value: float) -> float:
        return _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * max(value, 0.0) / top

    points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in history)
    marks = ""
    if v.since_s is not None:
        at = f"{x(v.since_s):.1f}"
        marks += f'<line x1="{at}" x2="{at}" y1="10" y2="{_HEIGHT - _MARGIN}" stroke="#c0392b"/>'
    for done in report.journal or ():
        marks += (
            f'<circle cx="{x(done.at_s):.1f}" cy="{_HEIGHT - _MARGIN}" r="4" fill="#2980b9"><title>'
            f"{escape(done.text)}</title></circle>"
        )
    return (
        f'<h2>{title}</h2><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" role="img">'
        f'<polyline points="{points}" fill="none" stroke="#2c7" stroke-width="2"/>{marks}'
        f'<text x="{_MARGIN}" y="16" font-size="12" fill="currentColor">{most}</text>'
        f'<text x="{_MARGIN}" y="{_HEIGHT - 6}" font-size="12" fill="currentColor">{when(start_s)}</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 6}" font-size="12" text-anchor="end" fill="currentColor">'
        f"{when(end_s)}</text></svg>"
    )
