"""Many senders of the job meet at one NIC, whose switch port cannot pass all of it at once.

Identified by three or more slow flows with signs of a queue into one NIC, nearly all that go there: where those of some
senders are quick, the queue of the others is further away. The receiving host itself takes everything (no drops, no
pause frames): otherwise the receiver is the cause.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import INCAST_SENDERS, SLOWER, Analysis, nic_subject
from fabricpulse.why.causes.contention_self import OLD_QUEUES, receiver_unknown
from fabricpulse.why.facts import NicId
from fabricpulse.why.finding import Evidence, Finding, as_hint, as_undecided, finding, grows

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
        if a.queues_are_old:
            found = as_hint(found, OLD_QUEUES)
        elif target.host in a.missing().get("nic", ()) and not _more_arrives(a, target):
            found = as_undecided(found, receiver_unknown(target.host))
        yield found


def _more_arrives(a: Analysis, nic: NicId) -> bool:
    """Whether more of the job goes into it than before: a host that takes too little gets less."""
    into = [f for f in a.flows_of(nic) if f.target == nic]
    before = sum(f.sent_before or 0.0 for f in into)
    return before > 0 and sum(f.sent or 0.0 for f in into) > SLOWER * before
