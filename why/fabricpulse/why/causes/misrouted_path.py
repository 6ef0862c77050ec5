"""The job's own packets take a worse path than probes between the same NICs: other routing or encapsulation.

Identified by a flow whose quickest chunks are slow as well (a queue would let some pass), whose siblings are quick,
with no sign of congestion, and with probes between the same two NICs as quick as ever; where there are no such probes,
by quick chunks that are slower than the median was before. What was so in the baseline, when the job was quicker, is a
hint only, and so is a flow of which a series of marks or of packets sent again is missing. Typical: RoCE v1 beside
v2, the wrong GID index, a traffic class that takes another route.
"""

from collections import Counter
from collections.abc import Iterator
from statistics import median

from fabricpulse.why.analysis import SLOWER, Analysis, nic_subject
from fabricpulse.why.facts import Flow
from fabricpulse.why.finding import Evidence, Finding, as_hint, as_undecided, finding, grows

TITLE = "misrouted or mis-encapsulated path"
MORE_THAN_OTHERS = "there is no baseline, and it carries more than the others: it may wait for itself"
AS_BEFORE = "its quickest chunks were far behind probes in the baseline as well, when the job was quicker"
SIGNS = "a series of marks or of packets sent again (fabricpulse_qp_ecn_marked_total, …_retransmits_total) is missing"
DO = (
    "Compare GID index and type of both ends (`fabricpulse nic`: RoCE v1 against v2) and NCCL_IB_GID_INDEX.",
    "Trace the route of the job's traffic class, not of ping: ECMP and policy routes may differ.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a NIC that all such flows share, else one a flow."""
    # What a late rank sends in an all-to-all waits for itself, and all others are quick, as they are through by then.
    old = frozenset(f for f in a.out_of_band if a.slower_than_before and a.beyond_probes_before(f))
    flows = a.out_of_band - old or old
    if not flows:
        return
    ends = Counter(nic for f in flows for nic in (f.source, f.target))
    shared = sorted(nic for nic, count in ends.items() if count == len(flows)) if len(flows) > 1 else []
    # Of two that are as slow always the same one: a set has no order.
    worst = max(flows, key=lambda f: (f.floor_s or 0.0, f.source, f.target))
    floor_s = worst.floor_s or 0.0
    # Without counts of marks, or of what is sent again, a queue that never empties looks alike.
    known = all(a.signs_known(f) for f in flows)
    if worst.probe_s is not None:
        beside_s, who, least, most = worst.probe_s, "probes", 0.8, 0.9
    else:
        beside_s, who, least, most = worst.delay_before_s or 0.0, "the median before was", 0.7, 0.85
    if not known:
        least, most = 0.5, 0.6
    evidence = [
        Evidence(
            f"{worst}: even quick chunks take {floor_s * 1e6:.0f} us, {who} {beside_s * 1e6:.0f} us",
            grows(floor_s / beside_s if beside_s > 0 else 10.0, 3, 10, least, most),
            "floor",
        ),
        Evidence("no packet of it is marked or sent again: it waits in no queue", 0.5, "marked")
        if known
        else Evidence(
            "whether packets of it are marked or sent again is not known: it may be a queue", 0.0, "marked"
        ),
    ]
    where = str(shared[0]) if shared else str(worst)
    subjects = [nic_subject(nic) for nic in (shared or [worst.source, worst.target])]
    found = finding("misrouted_path", where, evidence, subjects, "qp", "mesh")
    if flows == old:
        found = as_hint(found, AS_BEFORE)
    elif not known and any(f.marked is not None or f.retransmits is not None for f in a.facts.flows):
        # Not where nobody counts them: then it stays likely, with less confidence.
        found = as_undecided(found, SIGNS)
    yield as_undecided(found, MORE_THAN_OTHERS) if all(_may_carry_more(a, f) for f in flows) else found


def _may_carry_more(a: Analysis, f: Flow) -> bool:
    """Whether it is not known what it carried before, and it carries more than the others: it may wait for itself."""
    sent = [other.sent for other in a.facts.flows if other.sent]
    return f.sent_before is None and bool(f.sent and sent) and (f.sent or 0.0) > SLOWER * median(sent)
