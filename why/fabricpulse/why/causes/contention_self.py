"""Flows of the job wait in queues, and no other job's do: the job's own flows meet on links between the switches.

Told as contention between jobs is, with no other job having slow flows, and with the slow flows going to different
NICs: several that go into one NIC are an incast. With few queue pairs and static hashing two flows often get the same
link while others stay empty.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.facts import Flow
from fabricpulse.why.finding import Evidence, Finding, finding, grows

TITLE = "contention of the job with itself"
DO = (
    "Spread the flows: more queue pairs a connection (NCCL_IB_QPS_PER_CONNECTION), adaptive routing, or other source "
    "ports.",
    "Check that ranks are numbered along the topology, so that rings do not cross the spine more often than needed.",
)
# Of the flows into one NIC, from which on they are an incast and none between switches.
INCAST_SENDERS = 3


def queues_between(a: Analysis) -> tuple[Flow, ...]:
    """Queued flows that are part of no incast."""
    return tuple(f for f in a.queued_flows if len({g.source for g in a.into[f.target]}) < INCAST_SENDERS)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding for the job."""
    queued = queues_between(a)
    if not queued or a.facts.other_slow_flows:
        return
    worst = max(queued, key=a.score)
    marked = sum(f.marked or 0 for f in queued)
    resent = sum(f.retransmits or 0 for f in queued)
    evidence = [
        Evidence(
            f"{len(queued)} flows wait in queues; {worst} has {a.score(worst):.0f} times the delay of quick flows",
            grows(a.score(worst), 3, 10, 0.6, 0.8),
            "delay",
        ),
        Evidence(f"{marked:.0f} packets a second are marked, {resent:.0f} sent again", 0.5, "marked"),
    ]
    if a.facts.other_slow_flows is not None:
        evidence.append(Evidence("no other job has slow flows", 0.6, "other_slow_flows"))
    subjects = [("nic", nic.host, nic.device) for f in queued for nic in (f.source, f.target)]
    yield finding("contention_self", f"{len(queued)} flows", evidence, [("job",), *subjects], "qp")
