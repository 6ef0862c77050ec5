"""Collectives have been started and do not end. Names the head of the wait-for chain, and whether it is the
network.

Identified by ranks with operations in progress that do not advance, and by the requests that wait (hang localisation,
`fabricpulse.why.hang`): a rank that others wait for and that itself waits for no rank has not posted its data, which is
not the network; data that was sent and is not acknowledged, or a connection without a lane, is. Where no process of
the job on a host reports now, it is not known what that host waits for: it is named as such, with less confidence.
"""

from collections import defaultdict
from collections.abc import Iterator

from fabricpulse.why.analysis import STALLED_S, Analysis
from fabricpulse.why.facts import Rank
from fabricpulse.why.finding import Evidence, Finding, Subject, finding
from fabricpulse.why.hang import Head, find_heads

TITLE = "hang"
DO = (
    "Not the network: attach to the named rank (`py-spy dump`, cuda-gdb); it has not entered the collective.",
    "The network: look at the named NICs and the path between them; `fabricpulse plugin status` shows their lanes.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding, or one a head of a chain."""
    if not a.stalled:
        return
    standing = [r for r in a.facts.ranks if (r.in_progress or 0) > 0]
    for_s = f"has ended for {a.still_s:.0f} s" if a.still_s >= 1 else "ends"
    still = Evidence(
        f"no collective {for_s}; {len(standing)} ranks are in one"
        if standing
        else "no collective ends and nothing moves",
        0.85,
        "rank_operations",
    )
    reported = [Evidence(error, 0.3) for error in a.facts.rank_errors[:1]]
    heads = heads_of(a)
    if a.facts.mismatches:
        evidence = [still, Evidence(f"ranks are in different collectives: {a.facts.mismatches[0]}", 0.9)]
        yield finding("hang", "deadlock of the program", evidence, [("job",)], "qp")
        return
    if not heads:
        yield finding("hang", "head of the chain unknown", [still], [("job",)], "qp")
        return
    reporting = {p.host for p in a.facts.processes}
    for head in heads:
        waiting = Evidence(head.reason, 0.8 if head.network is not None else 0.5, "waiting")
        silent = [h for h in (head.host, head.peer_host) if reporting and h in a.hosts and h not in reporting]
        if silent and head.network is False:
            waited = (
                f"ranks wait for {head.where}; for whom it waits is not known: its processes report nothing"
            )
            waiting = Evidence(waited, 0.5, "waiting")
        evidence = [still, *reported, waiting]
        if silent and head.network:
            silence = (
                f"nothing is received of the job on {silent[0]}: its host, process or exporter may be down"
            )
            evidence.append(Evidence(silence, 0.0, "heartbeat"))
        # The host that is named; a NIC of another one does not explain it.
        subjects: list[Subject] = [("host", host) for host in (head.host, head.peer_host) if host]
        if head.network is None or not subjects:
            subjects.append(("job",))
        yield finding("hang", head.where, evidence, subjects, "qp")


def heads_of(a: Analysis) -> list[Head]:
    """Of the chains of those who wait; [] where nothing stalls."""
    if not a.stalled:
        return []
    silent = {(p.host, p.rank) for p in a.facts.processes if p.heartbeat_age_s >= STALLED_S}
    return find_heads((w for w in a.facts.waits if w.age_s >= STALLED_S), silent) or _behind(a)


def _behind(a: Analysis) -> list[Head]:
    """Without waiting requests: ranks that have ended fewer collectives than the others of their communicator, or have
    not started the one that the others are in."""
    communicators: defaultdict[str, list[Rank]] = defaultdict(list)
    for r in a.facts.ranks:
        if r.operations is not None:
            communicators[r.communicator].append(r)
    heads = []
    for ranks in communicators.values():
        started = {r: (r.operations or 0) + (r.in_progress or 0) for r in ranks}
        if len(ranks) < 2 or min(started.values()) == max(started.values()):
            continue
        least = min(started.values())
        late = [r for r in ranks if started[r] == least]
        if len(late) > len(ranks) // 2:
            continue
        heads += [
            Head(
                rank=r.rank,
                host=r.host,
                network=False,
                reason=f"rank {r.rank} has started {least:.0f} collectives, the others {max(started.values()):.0f}",
            )
            for r in late
        ]
    return heads
