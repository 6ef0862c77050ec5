"""Clocks of hosts beside one another, from the times at which they answered. Pure.

Theory of operation. A report says when it was begun by its host's clock, and how long it took; it was begun after it
was asked for, and ended before its answer came, by the clock of who asked. So the difference of the two clocks is known
within an interval as long as the waiting. All hosts and who asks have one vote each, and who asks from one of these
hosts has none beside it: a clock that votes twice outvotes another. The difference that most of the intervals contain,
if these are more than half, is that of the fleet (Marzullo, *Maintaining the Time in a Distributed System*, 1984); a
clock whose interval is away from it by more than what matters is off. Where no half agrees, as of two clocks that
differ, nobody is named.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fabricpulse.audit.checks.fleet import clock_offset
from fabricpulse.audit.model import Finding, HostReport

# Seconds: far below what certificates and tickets allow, above what an audit of a busy host can hide.
MOST_OFF_S = 2.0
# By which clocks that agree may differ.
_SCATTER_S = 1.0


@dataclass(frozen=True)
class ClockOffset:
    """Of a host's clock to that of who asks, seconds, positive if it is ahead: at least `least`, at most `most`."""

    least: float
    most: float


OWN = ClockOffset(0.0, 0.0)


def offset_of(report: HostReport, asked_at: float, answered_at: float, fresh_s: float) -> ClockOffset:
    """Of a report that was asked for and answered at these times of who asks. fresh_s : an agent may give a report
    again that it has ended so much earlier."""
    begun = report.collected_at
    return ClockOffset(
        begun - (answered_at - report.duration_s), begun - (asked_at - fresh_s - report.duration_s)
    )


def agreed(offsets: Mapping[str, ClockOffset], asker: str = "") -> ClockOffset | None:
    """What most intervals contain, with that of who asks as one of them unless it is the host `asker` of `offsets`, and
    what lies between where that is in several parts; None where most are not more than half."""
    voters = [*([] if asker in offsets else [OWN]), *offsets.values()]
    around = _SCATTER_S / 2
    edges = sorted(
        edge for voter in voters for edge in ((voter.least - around, -1), (voter.most + around, 1))
    )
    best = inside = 0
    found: list[ClockOffset] = []
    for index, (at, kind) in enumerate(edges):
        inside -= kind
        if kind < 0 and inside >= best:
            found = [*(found if inside == best else ()), ClockOffset(at, edges[index + 1][0])]
            best = inside
    return ClockOffset(found[0].least, found[-1].most) if 2 * best > len(voters) else None


def clock_findings(offsets: Mapping[str, ClockOffset], asker: str = "") -> tuple[list[Finding], list[str]]:
    """Hosts whose clock is off, and notes for people. asker : the host that asks, "" if it is none of these."""
    usual = agreed(offsets, asker)
    if usual is None:
        apart = any(o.most < -MOST_OFF_S or o.least > MOST_OFF_S for o in offsets.values())
        return [], ["clocks: no half of the hosts agrees, so none is named"] if apart else []
    found = []
    for host, own in sorted(offsets.items()):
        least = max(own.least - usual.most, usual.least - own.most)
        if least <= MOST_OFF_S:
            continue
        way = "ahead of" if own.least > usual.most else "behind"
        text = f"its clock is {_text(least)} {way} most others', at least"
        evidence = {"least_s": f"{least:.3f}", "direction": way.removesuffix(" of")}
        found.append(clock_offset.CHECK.finding(host, "", text, evidence))
    here = max(usual.least, -usual.most)
    if here > MOST_OFF_S:
        way = "behind" if usual.least > 0 else "ahead of"
        return found, [f"clocks: the clock here is {_text(here)} {way} those of most hosts"]
    return found, []


def _text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
