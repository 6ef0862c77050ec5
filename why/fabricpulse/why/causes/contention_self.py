"""Flows of the job wait in queues, and no other job's do: the job's own flows meet on links between the switches.

Identified like contention between jobs, but no other job has slow flows, and the slow flows go to different
NICs: several that go into one NIC are an incast, unless flows of other senders into it are quick. Where the leaves of
NICs are known (`--coordinator`), flows none of which leaves its leaf, and that share no NIC, share no link. With few
queue pairs and static hashing two flows often get the same link while others stay empty. Where all of them begin or end
at NICs that carry what an idle NIC of their host does not, that is why they wait.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from fabricpulse.why.analysis import SLOWER, Analysis
from fabricpulse.why.causes.lane_imbalance import idle_nics, maybe_idle
from fabricpulse.why.facts import Flow, NicId
from fabricpulse.why.finding import Evidence, Finding, as_hint, as_undecided, finding, grows

_STRANGE, _MORE = 0.4, 2.0
# Share of the flows that wait which those of one NIC are where its link may be what they wait for.
_MOST_OF_THEM = 0.7
OLD_QUEUES = "these flows waited as long before"
TITLE = "contention of the job with itself"
DO = (
    "Spread the flows: more queue pairs a connection (NCCL_IB_QPS_PER_CONNECTION), adaptive routing, or other source "
    "ports.",
    "Check that ranks are numbered along the topology, so that rings do not cross the spine more often than needed.",
)


def contenders(a: Analysis) -> dict[str, tuple[Flow, ...]]:
    """Slow flows of other jobs that may share a link with this one's queued flows: not those of a job that had slow
    flows in the baseline as well, where this one's have begun to wait since, unless both use a NIC."""
    others = a.facts.other_slow_flows or {}
    mine = {nic for f in a.queues_between for nic in (f.source, f.target)}
    return {
        name: flows
        for name, flows in others.items()
        if a.queues_are_old
        or name not in a.facts.other_slow_before
        or mine & {nic for f in flows for nic in (f.source, f.target)}
    }


def competing_nics(a: Analysis) -> dict[NicId, float]:
    """NICs that queued flows leave by and that send much more, beside this job, than in the baseline: bytes per second
    of that. Storage, or a job that is not measured."""
    found = {}
    for source in {f.source for f in a.queues_between}:
        nic = a.nics.get(source)
        if nic is None or nic.transmitted is None or nic.transmitted_before is None:
            continue
        own = [f for f in a.flows_of(source) if f.source == source]
        # Else what the job itself sends would be another's.
        if any(f.sent is None for f in own):
            continue
        now = nic.transmitted - sum(f.sent or 0 for f in own)
        before = nic.transmitted_before - sum(f.sent_before or 0 for f in own)
        # Acknowledgements and what is sent again are a tenth, of a slow flow a third.
        if now > _STRANGE * nic.transmitted and now > _MORE * max(before, 0.0):
            found[source] = now
    return found


def find(a: Analysis) -> Iterator[Finding]:
    """One finding for the job."""
    queued = a.queues_between
    if not queued or contenders(a) or competing_nics(a):
        return
    worst = max(queued, key=a.score)
    # With whom is not known where nobody records the flows of other jobs: then this is half of the answer. Nor is it
    # sure that a job whose flows wait elsewhere, as before, has no part in it.
    recorded = a.facts.other_slow_flows is not None
    evidence = [
        Evidence(
            f"{len(queued)} flows wait in queues; {worst} has {a.score(worst):.0f} times the delay of quick flows",
            0.5 if not recorded or a.facts.other_slow_flows else grows(a.score(worst), 3, 10, 0.6, 0.8),
            "delay",
        ),
        Evidence(a.signs(queued), 0.5, "marked"),
    ]
    if a.facts.other_slow_flows:
        old = ", ".join(sorted(a.facts.other_slow_flows)[:5])
        evidence.append(
            Evidence(f"job {old} had slow flows before as well, elsewhere", 0.3, "other_slow_flows")
        )
    elif recorded:
        evidence.append(Evidence("no other job has slow flows", 0.6, "other_slow_flows"))
    else:
        evidence.append(
            Evidence("whether another job's flows wait there is not recorded", 0.0, "other_slow_flows")
        )
    evidence += crossings(a, queued)
    subjects = [("nic", nic.host, nic.device) for f in queued for nic in (f.source, f.target)]
    found = finding("contention_self", f"{len(queued)} flows", evidence, [("job",), *subjects], "qp")
    if a.queues_are_old:
        found = as_hint(found, OLD_QUEUES)
    elif idle := _stood_in_for(a, queued):
        found = as_hint(found, f"all of them are of NICs that carry what {idle} does not")
    elif _nowhere(a, queued):
        found = as_hint(
            found, "none of them leaves its leaf, and no two share a NIC: they do not share a link"
        )
    elif unknown := link_unknown(a, 1) or _others_unknown(a, queued) or worst_receiver_unknown(a):
        found = as_undecided(found, unknown)
    yield found


def crossings(a: Analysis, flows: Iterable[Flow]) -> list[Evidence]:
    """Between which leaves most of the flows go; empty where no leaf of theirs is known."""
    known = [(leaves, f) for f in flows if (leaves := _leaves(a, f)) is not None]
    if not known:
        return []
    (source, target), count = max(
        Counter(leaves for leaves, _ in known).items(), key=lambda item: (item[1], item[0])
    )
    way = f"go from leaf {source} to leaf {target}" if source != target else f"stay below leaf {source}"
    return [Evidence(f"{count} of the {len(known)} flows whose leaves are known {way}", 0.0)]


def _leaves(a: Analysis, f: Flow) -> tuple[str, str] | None:
    source, target = (a.facts.leaves.get(str(end)) for end in (f.source, f.target))
    return (source, target) if source and target else None


def _nowhere(a: Analysis, flows: tuple[Flow, ...]) -> bool:
    """Whether it is known that no two of the flows have a link in common. Each way of a cable is a link of its own."""
    ends = [end for f in flows for end in (("from", f.source), ("to", f.target))]
    return (
        len(flows) > 1
        and len(set(ends)) == len(ends)
        and all(leaves is not None and leaves[0] == leaves[1] for leaves in (_leaves(a, f) for f in flows))
    )


def link_unknown(a: Analysis, least: int = 2) -> str:
    """Why it is not known whether the flows that wait do so for one NIC with a slow link: most of them, `least` or
    more, are of one, and the mesh exporter of an end, or the baseline, is missing. Empty where it is known, or they
    have no NIC in common."""
    flows = a.queues_between
    ends = Counter(nic for f in flows for nic in {f.source, f.target})
    nic, count = max(ends.items(), key=lambda item: (item[1], item[0]), default=(None, 0))
    if nic is None or count < max(least, _MOST_OF_THEM * len(flows)):
        return ""
    own = [f for f in flows if nic in (f.source, f.target)]
    if any(f.probe_s is not None for f in own):
        return ""
    said = f"{count} of the {len(flows)} flows are of {nic}, and"
    known = a.nics.get(nic)
    silent = sorted(
        {end.host for f in own for end in (f.source, f.target)} & set(a.missing().get("mesh", ()))
    )
    if silent:
        return (
            f"{said} the mesh exporter of {', '.join(silent[:3])} does not say whether a link is slow,"
            " or loses packets"
        )
    if (
        count > 1
        and all(f.delay_before_s is None for f in own)
        and (known is None or known.transmitted_before is None)
    ):
        return f"{said} there is no baseline that would show whether its link is slow"
    return ""


def _others_unknown(a: Analysis, flows: tuple[Flow, ...]) -> str:
    """The same where all are of one NIC, and of its other flows nobody knows whether they wait."""
    silent = set(a.missing().get("qp", ()))
    for nic in sorted(set.intersection(*({f.source, f.target} for f in flows))) if silent and flows else ():
        others = [f for f in a.flows_of(nic) if f not in flows]
        hosts = sorted(
            {f.target.host for f in others if f.delay_s is None and f.target.host in silent}
            | ({nic.host} & silent)
        )
        # Of what a silent host sends nothing is known, not even that it does.
        if not hosts and not any(f.target == nic for f in a.flows_of(nic)):
            hosts = sorted(silent)
        if hosts:
            return (
                f"all of them are of {nic}, and the qp exporter of {', '.join(hosts[:3])} does not"
                " say whether its other flows wait: its link may be slow"
            )
    return ""


def worst_receiver_unknown(a: Analysis) -> str:
    """The same where nobody says whether the host into which the slowest of them goes takes what arrives."""
    host = max(a.queues_between, key=a.score).target.host
    return receiver_unknown(host) if host in a.missing().get("nic", ()) else ""


def receiver_unknown(host: str) -> str:
    """Why a queue before a host may be that of a host that takes too little."""
    return f"the nic exporter of {host} does not say whether it takes what arrives (drops, pause, PCIe)"


def _stood_in_for(a: Analysis, queued: Iterable[Flow]) -> NicId | None:
    """The NIC that is idle, or may be, and whose host's other NICs, which carry more than before, are ends of all these
    flows; None where there is no such one."""
    for idle in sorted(idle_nics(a).keys() | maybe_idle(a).keys()):
        stand_ins = {
            nic.id
            for nic in a.nics_of(idle.host)
            if nic.id != idle and a.carried(nic.id) > SLOWER * a.carried(nic.id, before=True)
        }
        if all(stand_ins & {f.source, f.target} for f in queued):
            return idle
    return None
