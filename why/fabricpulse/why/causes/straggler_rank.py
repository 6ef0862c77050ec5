"""One rank enters each collective late, and all others wait for it inside: its GPU, its input or its process.

All ranks of a collective end together, so who enters late spends the least time in it. Told by a rank whose mean
duration is far below that of the others of its communicator, by more than their spread. The network is not the reason,
although the collectives look slow to everybody but that rank.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.facts import Rank
from fabricpulse.why.finding import Evidence, Finding, finding, grows

TITLE = "straggler rank"
DO = (
    "The network is not the reason: profile this rank (data loading, garbage collection, a busy CPU, a slow GPU).",
    "If it is always the same host, take it out of the job and compare.",
)


@dataclass(frozen=True)
class Late:
    """A rank that is late. late_s : each time; usual_s : duration of the others."""

    rank: Rank
    late_s: float
    usual_s: float


def late_ranks(a: Analysis) -> list[Late]:
    """The late ranks of all communicators, worst first. At most a quarter of a communicator can be late: if more
    differ, there is no usual duration to compare with."""
    communicators: defaultdict[str, list[Rank]] = defaultdict(list)
    for rank in a.facts.ranks:
        if rank.duration_s is not None and rank.rate:
            communicators[rank.communicator].append(rank)
    found = []
    for ranks in communicators.values():
        if len(ranks) < 3:
            continue
        durations = [r.duration_s or 0.0 for r in ranks]
        usual = median(durations)
        spread = 1.4826 * median(abs(d - usual) for d in durations)
        late = [
            Late(r, usual - d, usual)
            for r, d in zip(ranks, durations, strict=True)
            if usual - d > max(0.2 * usual, 6 * spread)
        ]
        if len(late) <= max(1, len(ranks) // 4):
            found += late
    return sorted(found, key=lambda late: -late.late_s)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a rank."""
    for late in late_ranks(a):
        rank = late.rank
        evidence = [
            Evidence(
                f"rank {rank.rank} enters each collective {late.late_s * 1e3:.1f} ms late: it is in it for "
                f"{late.usual_s * 1e3 - late.late_s * 1e3:.1f} ms, the others for {late.usual_s * 1e3:.1f} ms",
                grows(late.late_s / late.usual_s, 0.2, 0.5, 0.85, 0.95),
                "rank_duration",
            )
        ]
        network = [f for f in a.queued_flows if rank.host in (f.source.host, f.target.host)]
        if not network and a.quick_s is not None:
            evidence.append(Evidence(f"no flow of {rank.host} waits in a queue", 0.5, "delay"))
        if not any(g.host == rank.host for g in a.facts.gpus):
            evidence.append(Evidence("whether its GPU is slow is not known: no dcgm-exporter", 0.0))
        yield finding(
            "straggler_rank",
            f"rank {rank.rank} on {rank.host}",
            evidence,
            [("rank", rank.communicator, str(rank.rank)), ("host", rank.host)],
            "qp",
        )
