"""The job is slow and the network is not the reason: collectives take as long as before, there are fewer a second.

Told by the rate of collectives against before while their durations have not grown, and no rank being late: all ranks
spend more time between collectives. Input, checkpoints, a new version of the code, power capping of all GPUs.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import SLOWER, Analysis
from fabricpulse.why.causes.straggler_rank import late_ranks
from fabricpulse.why.finding import Evidence, Finding, finding

TITLE = "the network is not the reason"
DO = (
    "Look at what ranks do between collectives: data loading, checkpoints, GPU clocks, a change of code or batch size.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding for the job."""
    if a.stalled or a.pace is None or a.duration is None or a.pace > 1 / SLOWER or late_ranks(a):
        return
    # What the collectives grew by may explain a part of it; what is left must still be slow.
    if a.pace * a.duration > 1 / SLOWER or a.duration > SLOWER:
        return
    evidence = [
        Evidence(f"{1 - a.pace:.0%} fewer collectives a second than before", 0.6, "rate"),
        Evidence(f"each takes {a.duration:.2f} times as long as before", 0.6, "bandwidth"),
    ]
    if a.quick_s is not None and not a.queued_flows:
        evidence.append(Evidence("no flow waits in a queue", 0.5, "delay"))
    yield finding("compute", "all ranks", evidence, [("job",)], "qp")
