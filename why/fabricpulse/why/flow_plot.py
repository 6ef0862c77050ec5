"""Flows as a picture: bandwidth against one-way delay, as SVG without script. All foreign text is escaped."""

import math
from collections.abc import Sequence

from fabricpulse.why.escaping import escape
from fabricpulse.why.flow_view import SeenFlow, line

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 860, 300, 60, 36, 14
# The worst come first; of a large job the others are a sample.
_MOST_POINTS = 1500
_NAMED = 5
_WORSE = 1.5


def flow_plot(seen: Sequence[SeenFlow]) -> str:
    """Bandwidth over the logarithm of the delay, worst flows marked with their siblings; "" for less than two points.

    seen : worst first. A flow whose delay or bandwidth is unknown has no place in it.
    """
    placed = [
        s for s in seen if s.flow.delay_s is not None and s.flow.delay_s > 0 and s.flow.sent is not None
    ]
    if len(placed) < 2:
        return ""
    rest = placed[_NAMED:]
    step = max(1, math.ceil(len(rest) / _MOST_POINTS))
    shown = [*placed[:_NAMED], *rest[::step]]
    delays = [s.flow.delay_s or 0.0 for s in placed] + [s.delay_s for s in placed[:_NAMED] if s.delay_s]
    low, high = math.floor(math.log10(min(delays))), math.ceil(math.log10(max(delays)))
    high = max(high, low + 1)
    top = max(*(s.flow.sent or 0.0 for s in placed), *(s.sent or 0.0 for s in placed[:_NAMED])) or 1.0

    def x(delay_s: float) -> float:
        share = (math.log10(delay_s) - low) / (high - low)
        return _LEFT + (_WIDTH - 2 * _LEFT) * min(max(share, 0.0), 1.0)

    def y(sent: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * max(sent, 0.0) / top

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" role="img"><title>bandwidth over one-way delay</title>'
    ]
    for decade in range(low, high + 1):
        grid = f"{x(10.0**decade):.1f}"
        parts.append(
            f'<line x1="{grid}" x2="{grid}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="#8884"/>'
            f'<text x="{grid}" y="{_HEIGHT - _BOTTOM + 16}" {_TEXT} text-anchor="middle">{_delay(10.0**decade)}</text>'
        )
    parts += [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="{level:.1f}" y2="{level:.1f}" stroke="#8884"/>'
        f'<text x="{_LEFT - 6}" y="{level + 4:.1f}" {_TEXT} text-anchor="end">{top * share * 8e-9:.3g}</text>'
        for share in (0.0, 0.5, 1.0)
        for level in (y(top * share),)
    ]
    parts.append(f'<text x="{_LEFT - 6}" y="{_HEIGHT - 4}" {_TEXT} text-anchor="end">Gb/s</text>')
    # The worst last, so that nothing lies over them.
    for number, s in reversed(list(enumerate(shown))):
        at, level = x(s.flow.delay_s or 0.0), y(s.flow.sent or 0.0)
        bad = number < _NAMED and (s.worse or 0.0) > _WORSE
        if bad and s.sent is not None and s.delay_s:
            there = f"{x(s.delay_s):.1f}", f"{y(s.sent):.1f}"
            parts.append(
                f'<line x1="{at:.1f}" y1="{level:.1f}" x2="{there[0]}" y2="{there[1]}" stroke="#c0392b" '
                f'stroke-dasharray="3 3"/><circle cx="{there[0]}" cy="{there[1]}" r="6" fill="none" stroke="#c0392b"/>'
            )
        parts.append(
            f'<circle cx="{at:.1f}" cy="{level:.1f}" r="{5 if bad else 3}" fill="{"#c0392b" if bad else "#2c7"}">'
            f"<title>{escape(line(s))}</title></circle>"
        )
    return "".join(parts) + "</svg>"


_TEXT = 'font-size="12" fill="currentColor"'


def _delay(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size * 0.999:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1e9:g} ns"
