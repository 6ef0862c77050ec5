"""The job is slow and the network is not the reason: all ranks spend more time between collectives.

Identified by a lower rate of collectives than before, while their durations have grown by far less than the time
between them and no rank is late; or by no rank being in a collective at all. Input, checkpoints, an evaluation, a new
version of the code, power capping of all GPUs.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import SLOWER, Analysis
from fabricpulse.why.causes.straggler_rank import MOST_BETWEEN, late_ranks
from fabricpulse.why.finding import Evidence, Finding, as_hint, finding, grows

TITLE = "the network is not the reason"
DO = (
    "Look at what ranks do between collectives: data loading, checkpoints, GPU clocks, a change of code or batch size.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding for the job."""
    late = [one for one in late_ranks(a) if not one.is_little]
    if a.stalled or a.pace is None or a.pace > 1 / SLOWER or late:
        return
    if a.pace == 0:
        yield from _none_at_all(a)
        return
    # What the collectives grew by may explain a part of it; what is left must still be slow, and most of it.
    share = a.rest_share
    if a.duration is None or share is None or a.pace * a.duration > 1 / SLOWER or share < MOST_BETWEEN:
        return
    evidence = [
        Evidence(f"{1 - a.pace:.0%} fewer collectives a second than before", 0.6, "rate"),
        Evidence(
            f"each takes {a.duration:.2f} times as long as before; of the time that a turn has become longer, "
            f"{min(share, 1.0):.0%} is between them",
            0.6 if a.duration <= SLOWER else grows(share, MOST_BETWEEN, 0.95, 0.3, 0.6),
            "busy",
        ),
    ]
    if a.duration > SLOWER and a.queued_flows:
        # Waiting flows are why collectives take longer, and may be why the time between them does.
        return
    if a.quick_s is not None and not a.queued_flows:
        evidence.append(Evidence("no flow waits in a queue", 0.5, "delay"))
    found = finding("compute", "all ranks", evidence, [("job",)], "qp")
    fewer = [h.name for h in a.facts.hosts if h.processes_before and (h.processes or 0) < h.processes_before]
    # What ranks wait for there the plugin does not see.
    yield as_hint(found, f"{fewer[0]} has fewer processes with the plugin than before") if fewer else found


def _none_at_all(a: Analysis) -> Iterator[Finding]:
    ranks = a.facts.ranks
    # Of a job that has ended exporters keep the counts for a while.
    if not any(h.processes for h in a.facts.hosts) or not ranks or any(r.in_progress != 0 for r in ranks):
        return
    for_s = f" for {a.still_s:.0f} s" if a.still_s >= 1 else ""
    evidence = [
        Evidence(
            f"no collective{for_s}, and none of {len(ranks)} ranks is in one",
            0.85,
            "rate",
        )
    ]
    yield finding("compute", "all ranks", evidence, [("job",)], "qp")
