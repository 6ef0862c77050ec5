"""Flows of a job beside their siblings: which one is worse than what does the same work. Pure.

A flow's siblings are the flows between the same two hosts over other NICs: the same ranks, the same messages. Where
there are none, those from the same NIC to other hosts; else all of the job. 94 us mean nothing; 94 us where the
siblings have 4 us are a queue or a wrong way, and 190 Gb/s where they have 360 a link or a share.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from fabricpulse.why.facts import Flow

_Group = tuple[str, str, str]
_Usual = tuple[float | None, float | None]
_MANY = 64
SAME_HOSTS, SAME_NIC, SAME_JOB = "same hosts", "same NIC", "same job"


@dataclass(frozen=True)
class SeenFlow:
    """A flow with the medians of its siblings.

    kind : which they are, "" for none. sent, delay_s : of the siblings; None where none of them is known. worse : how
    many times as slow as they, by delay or bandwidth, whichever is more; None where nothing can be compared.
    """

    flow: Flow
    kind: str = ""
    siblings: int = 0
    sent: float | None = None
    delay_s: float | None = None
    worse: float | None = None


def seen_flows(flows: Iterable[Flow]) -> tuple[SeenFlow, ...]:
    """Each flow of the job, the worst first; those that cannot be compared last, the slowest of them first."""
    known = list(flows)
    groups: defaultdict[_Group, list[Flow]] = defaultdict(list)
    for f in known:
        for group in _groups(f):
            groups[group].append(f)
    # A job of 1,000 hosts has a million flows: of a large group the medians are taken once.
    whole = {group: _usual(members) for group, members in groups.items() if len(members) >= _MANY}
    seen = [_seen(f, groups, whole) for f in known]
    return tuple(
        sorted(
            seen,
            key=lambda s: (
                s.worse is None,
                -(s.worse or 0.0),
                -(s.flow.delay_s or 0.0),
                s.flow.source,
                s.flow.target,
            ),
        )
    )


def _groups(f: Flow) -> tuple[_Group, ...]:
    return (
        (SAME_HOSTS, f.source.host, f.target.host),
        (SAME_NIC, f.source.host, f.source.device),
        (SAME_JOB, "", ""),
    )


def _seen(f: Flow, groups: dict[_Group, list[Flow]], whole: dict[_Group, _Usual]) -> SeenFlow:
    for group in _groups(f):
        members = groups[group]
        if len(members) > 1:
            # Of few the flow itself would hide what is usual; of many it moves a median little.
            sent, delay_s = whole.get(group) or _usual(o for o in members if o is not f)
            ratios = [
                *([f.delay_s / delay_s] if f.delay_s is not None and delay_s else []),
                *([sent / f.sent] if f.sent and sent else []),
            ]
            return SeenFlow(f, group[0], len(members) - 1, sent, delay_s, max(ratios, default=None))
    return SeenFlow(f)


def _usual(flows: Iterable[Flow]) -> _Usual:
    """Median bandwidth and delay."""
    known = list(flows)
    return _median(f.sent for f in known), _median(f.delay_s for f in known)


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def line(s: SeenFlow) -> str:
    """One flow for people: bandwidth, one-way delay, and those of its siblings."""
    text = f"{s.flow}: {_pair(s.flow.sent, s.flow.delay_s)}"
    if s.kind:
        text += f" ({s.siblings} of the {s.kind}: {_pair(s.sent, s.delay_s)})"
    return text


def _pair(sent: float | None, delay_s: float | None) -> str:
    rate = "? Gb/s" if sent is None else f"{sent * 8e-9:.1f} Gb/s"
    return f"{rate}, " + ("delay unknown" if delay_s is None else f"{delay_s * 1e6:.0f} us")
