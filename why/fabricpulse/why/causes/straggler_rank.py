"""One rank enters each collective late, and all others wait for it inside: its GPU, its input or its process.

All ranks of a collective end together, so a late rank spends the least time in it. Identified by a rank whose mean
duration is far below that of the others of its communicator, by more than their spread; of two ranks, by one whose
duration has not grown as the other's has. The network is not the reason, although the collectives look slow to
all ranks but that one. A rank that was as late in the baseline, when the job was quicker, is a hint only. A rank that
is late in several communicators is named once, where possible as a rank of its own host.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.facts import Rank
from fabricpulse.why.finding import Evidence, Finding, as_hint, finding, grows

TITLE = "straggler rank"
DO = (
    "The network is not the reason: profile this rank (data loading, garbage collection, a busy CPU, a slow GPU).",
    "If it is always the same host, take it out of the job and compare.",
)
_LATE = 0.2
# Where it is news and far beyond the spread: of slow collectives a late rank is a small share.
_LITTLE_LATE, _FAR, _LITTLE = 0.1, 20.0, 0.6
# Of two ranks, without a spread: the same lateness must be clearer.
_LATE_OF_TWO = 0.3
_ALIKE_BEFORE = 0.9
# Of the longer turns: it is what ranks do between collectives that makes the job slower.
MOST_BETWEEN = 0.6
# Of the lateness now: as much was there before.
_AS_BEFORE = 0.75


@dataclass(frozen=True)
class Late:
    """A rank that is late. late_s : each time; usual_s : duration of the others; late_before_s : in the baseline.
    also : other ranks of its host that are late. is_little : a small share of slow collectives, and news."""

    rank: Rank
    late_s: float
    usual_s: float
    late_before_s: float | None = None
    also: int = 0
    is_little: bool = False


def late_ranks(a: Analysis) -> list[Late]:
    """One late rank a host, over all communicators, worst first. At most a quarter of a communicator can be late: if
    more differ, there is no usual duration to compare with."""
    communicators: defaultdict[str, list[Rank]] = defaultdict(list)
    for rank in a.facts.ranks:
        if rank.duration_s is not None and rank.rate:
            communicators[rank.communicator].append(rank)
    hosts: defaultdict[str, list[tuple[bool, Late]]] = defaultdict(list)
    for ranks in communicators.values():
        alone = len({r.host for r in ranks}) == 1
        for late in _late_of_two(ranks) if len(ranks) == 2 else _late_of_many(ranks):
            hosts[late.rank.host].append((alone, late))
    found = []
    for of_host in hosts.values():
        # A communicator within the host tells which of its ranks holds up the others.
        _, worst = max(of_host, key=lambda one: (not one[1].is_little, one[0], one[1].late_s))
        found.append(replace(worst, also=len(of_host) - 1))
    return sorted(found, key=lambda late: -late.late_s)


def _late_of_many(ranks: Sequence[Rank]) -> list[Late]:
    if len(ranks) < 3:
        return []
    durations = [r.duration_s or 0.0 for r in ranks]
    usual = median(durations)
    spread = 1.4826 * median(abs(d - usual) for d in durations)
    known = [r.duration_before_s for r in ranks if r.duration_before_s is not None]
    before = median(known) if len(known) >= 3 else None
    each = [
        Late(r, usual - d, usual, _minus(before, r.duration_before_s))
        for r, d in zip(ranks, durations, strict=True)
    ]
    late = [one for one in each if one.late_s > max(_LATE * usual, 6 * spread)]
    if not late:
        # Beside a rank that is late by more, less says nothing, and would count against that one.
        late = [
            replace(one, is_little=True)
            for one in each
            if one.late_s > max(_LITTLE_LATE * usual, _FAR * spread)
            and _is_news(one.late_s, before, one.rank)
        ]
    return late if len(late) <= max(1, len(ranks) // 4) else []


def _is_news(late_s: float, before: float | None, rank: Rank) -> bool:
    """Whether it is known that the rank was hardly late in the baseline."""
    late_before_s = _minus(before, rank.duration_before_s)
    return late_before_s is not None and late_before_s < _LITTLE_LATE * late_s


def _late_of_two(ranks: Sequence[Rank]) -> list[Late]:
    one, other = sorted(ranks, key=lambda r: (r.duration_s or 0.0, r.rank))
    short, usual = one.duration_s or 0.0, other.duration_s or 0.0
    short_before, usual_before = one.duration_before_s, other.duration_before_s
    if not short_before or not usual_before or short_before < _ALIKE_BEFORE * usual_before:
        return []
    return [Late(one, usual - short, usual, 0.0)] if usual - short > _LATE_OF_TWO * usual else []


def _minus(usual: float | None, own: float | None) -> float | None:
    return usual - own if usual is not None and own is not None else None


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a host."""
    for late in late_ranks(a):
        rank = late.rank
        evidence = [
            Evidence(
                f"rank {rank.rank} enters each collective {late.late_s * 1e3:.1f} ms late: it is in it for "
                f"{late.usual_s * 1e3 - late.late_s * 1e3:.1f} ms, the others for {late.usual_s * 1e3:.1f} ms",
                grows(late.late_s / late.usual_s, _LATE, 0.5, 0.85, 0.95) or _LITTLE,
                "rank_busy",
            )
        ]
        if late.also:
            evidence.append(Evidence(f"{late.also} more ranks of {rank.host} are late", 0.0, "rank_busy"))
        network = [f for f in a.queued_flows if rank.host in (f.source.host, f.target.host)]
        if not network and a.quick_s is not None:
            evidence.append(Evidence(f"no flow of {rank.host} waits in a queue", 0.5, "delay"))
        if not any(g.host == rank.host for g in a.facts.gpus):
            evidence.append(Evidence("whether its GPU is slow is not known: no dcgm-exporter", 0.0))
        found = finding(
            "straggler_rank",
            f"rank {rank.rank} on {rank.host}",
            evidence,
            [("rank", rank.communicator, str(rank.rank)), ("host", rank.host)],
            "qp",
        )
        yield as_hint(found, old) if (old := why_not(a, late)) else found


def why_not(a: Analysis, late: Late) -> str:
    """Why this is not what has made the job slower; empty where it may be."""
    before_s = late.late_before_s
    if before_s is not None and before_s >= _AS_BEFORE * late.late_s and a.slower_than_before:
        return f"it was {before_s * 1e3:.1f} ms late in the baseline as well, when the job was quicker"
    if late.is_little and a.rest_share is not None and a.rest_share >= MOST_BETWEEN:
        return (
            f"of the time that a turn has become longer, {min(a.rest_share, 1.0):.0%} is between collectives"
        )
    return ""
