"""Corrections and error bound of fleet time over the last minutes, as SVG; as PNG where matplotlib is installed.

The SVG is written by hand: a picture for a ticket should not need a plotting library on a GPU host.
"""

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

import msgspec

from fabricpulse.core.errors import UserError

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 960, 360, 70, 40, 20, 45
_BAND = {"synchronized": "#cfe8cf", "holdover": "#f6dfb0", "disrupted": "#f2c4c4", "unknown": "#dddddd"}


class HistoryPoint(msgspec.Struct, frozen=True):
    """One round of a sidecar. age_s : before now. correction_ns : fleet time as published, minus what the new
    correction asked for: what it changed, not how wrong fleet time was, which cannot be known.
    """

    age_s: float
    correction_ns: float
    bound_ns: float
    rate_ppb: float
    status: str


def write_plot(path: Path, host: str, points: Sequence[HistoryPoint]) -> None:
    """Writes `path` (.svg or .png). Raises UserError for another ending, no history, no matplotlib, no permission."""
    if not points:
        raise UserError(f"{host} has no history yet: wait for its first rounds")
    try:
        if path.suffix == ".svg":
            path.write_text(svg(host, points), encoding="utf-8")
        elif path.suffix == ".png":
            _write_png(path, host, points)
        else:
            raise UserError(f"cannot plot to {path}: the name must end in .svg or .png")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another file") from error


def svg(host: str, points: Sequence[HistoryPoint]) -> str:
    """The plot as SVG text: the bound as a band of the colour of the status, the corrections as a line within."""
    oldest = max(1.0, *(point.age_s for point in points))
    top = 1.1 * max(1.0, *(max(point.bound_ns, abs(point.correction_ns)) for point in points))
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(age_s: float) -> float:
        return round(_LEFT + width * (1 - age_s / oldest), 1)

    def y(value_ns: float) -> float:
        return round(_TOP + height * (1 - value_ns / top) / 2, 1)

    unit, scale = ("µs", 1e3) if top >= 2_000 else ("ns", 1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">Fleet time on {escape(host)}: corrections and bound</text>',
    ]
    for older, newer in pairwise(points):
        left, right = x(older.age_s), x(newer.age_s)
        parts.append(
            f'<rect x="{left}" y="{y(older.bound_ns)}" width="{round(max(right - left, 0.5), 1)}" '
            f'height="{round(y(-older.bound_ns) - y(older.bound_ns), 1)}" fill="{_BAND.get(older.status, "#dddddd")}"/>'
        )
    for tick in (-1.0, -0.5, 0.0, 0.5, 1.0):
        value = tick * top / 1.1
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value)}" y2="{y(value)}" stroke="#bbbbbb" '
            f'stroke-width="0.5"/><text x="{_LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value / scale:.3g}</text>'
        )
    line = " ".join(f"{x(point.age_s)},{y(point.correction_ns)}" for point in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1f4e9c" stroke-width="1.2"/>')
    parts.extend(
        f'<text x="{x(oldest * tick)}" y="{_HEIGHT - 22}" text-anchor="middle">{-oldest * tick:.0f} s</text>'
        for tick in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    parts.append(
        f'<text x="16" y="{_TOP + height / 2}" transform="rotate(-90 16 {_TOP + height / 2})" '
        f'text-anchor="middle">{unit}</text>'
    )
    seen = [status for status in _BAND if any(point.status == status for point in points)]
    for k, status in enumerate(seen):
        left = _LEFT + 130 * k
        parts.append(
            f'<rect x="{left}" y="{_HEIGHT - 14}" width="12" height="10" fill="{_BAND[status]}"/>'
            f'<text x="{left + 17}" y="{_HEIGHT - 5}">{status}</text>'
        )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _runs(points: Sequence[HistoryPoint]) -> list[tuple[int, int]]:
    """[begin, end) of each stretch of one status."""
    changes = [k for k in range(1, len(points)) if points[k].status != points[k - 1].status]
    return list(pairwise([0, *changes, len(points)]))


def _write_png(path: Path, host: str, points: Sequence[HistoryPoint]) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("a PNG needs matplotlib: pip install 'fabricpulse[plot]', or plot to .svg") from error
    age = [-point.age_s for point in points]
    bound = [point.bound_ns / 1e3 for point in points]
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    named: set[str] = set()
    for begin, end in _runs(points):
        # To the first point of the next status: the bound of a round holds until the next one, as in the SVG.
        part, status = slice(begin, end + 1), points[begin].status
        axes.fill_between(
            age[part],
            [-b for b in bound[part]],
            bound[part],
            step="post",
            linewidth=0,
            color=_BAND.get(status, "#dddddd"),
            label=None if status in named else f"bound, {status}",
        )
        named.add(status)
    axes.plot(age, [point.correction_ns / 1e3 for point in points], color="#1f4e9c", label="correction")
    axes.set(xlabel="s", ylabel="µs", title=f"Fleet time on {host}")
    axes.legend(loc="upper left")
    figure.savefig(path)
