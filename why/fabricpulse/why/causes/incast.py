"""Many senders of the job meet at one NIC, whose switch port cannot pass all of it at once.

Identified by three or more slow flows with signs of a queue into one NIC, nearly all that go there: where those of some
senders are quick, the queue of the others is further away. The receiving host itself takes everything (no drops, no
pause frames): otherwise the receiver is the cause.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import INCAST_SENDERS, Analysis, nic_subject
from fabricpulse.why.causes.contention_self import OLD_QUEUES
from fabricpulse.why.finding import Evidence, Finding, as_hint, finding, grows

TITLE = "incast"
DO = (
    "For all-to-all: stagger it, or cap the senders at a time (NCCL_MAX_NCHANNELS, smaller expert groups).",
    "For storage or parameter servers: spread the receiver over more NICs.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a receiving NIC."""
    for target, flows in sorted(a.incasts.items()):
        senders = {f.source for f in flows}
        worst = max(flows, key=a.score)
        evidence = [
            Evidence(
                f"{len(senders)} senders into {target} are slow together, up to {a.score(worst):.0f} times the delay "
                "of quick flows",
                grows(len(senders), INCAST_SENDERS, 8, 0.8, 0.93),
                "delay",
            )
        ]
        nic = a.nics.get(target)
        if nic is not None and nic.drops is not None:
            evidence.append(Evidence(f"{target} itself drops {nic.drops:.0f} packets a second", 0.4, "drops"))
        if len(flows) == len(a.queued_flows):
            evidence.append(Evidence("flows to other NICs are quick", 0.5, "delay"))
        found = finding("incast", str(target), evidence, [nic_subject(target)], "qp")
        yield as_hint(found, OLD_QUEUES) if a.queues_are_old else found
