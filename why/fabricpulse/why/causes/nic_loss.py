"""A NIC loses packets while it stays connected: a bad cable or port, or a switch that drops.

Identified by probes (share lost in one direction, on how many of the NIC's edges) and by the job's retransmissions
over this NIC. Loss that most edges share belongs to the NIC; loss of a part of several is a hint only: it may be the
path, or the NIC at the other end. So is a little loss while flows of this and of another job wait in queues on the
same rail: a full queue drops, too. Two NICs of a network that lose in the same direction while flows of one of them
wait share one, whoever fills it, which is far more likely than two NICs that break at once. Where the
probes that arrive wait as well, or all senders wait and much more goes into the NIC than before, the loss is that of
such a queue. Edges to a NIC that was gone lose everything, and prove nothing about the NIC at their other end. Loss of
probes alone is a hint where the job sends so much over the NIC that it would have had to retransmit, and has not:
probes may be of another traffic class, or the host too busy to receive them. Where it is not known on how many edges
a NIC loses what it is sent, a NIC at their other end may have been gone: a hint.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import fsum
from statistics import median

from fabricpulse.why.analysis import SLOW_DELAY_S, SLOW_SCORE, Analysis, lower_quarter, nic_subject
from fabricpulse.why.causes.contention_self import contenders
from fabricpulse.why.causes.slow_link import queues_of_flows
from fabricpulse.why.facts import Nic
from fabricpulse.why.finding import Evidence, Finding, as_hint, as_undecided, finding, grows

TITLE = "NIC loses packets"
DO = (
    "Compare error counters of this NIC and of its switch port (CRC, symbol errors, discards); reseat or replace the "
    "cable.",
    "If only one peer is affected, look at the path between: `fabricpulse mesh` names the source ports that lose.",
)
LOSS = 0.005
# Bytes of which at least one packet is lost where so many are: sockets send no larger ones.
_PACKET = 65_536.0
# Packets a second that should have been sent again, from which on none is a contradiction.
_EXPECTED = 10.0
# Share of its edges that lose where the NIC does.
_MOST_EDGES = 0.5
# What a full queue may lose of probes; a link that is broken may lose as little.
_OF_A_QUEUE = 0.03
# Quickest chunks over a NIC, in times of what others' are, from where on they wait.
_QUICKEST = 2.5
# What two NICs may lose in the queue before a link that their hosts share, and on how many edges each.
_OF_SHARED_QUEUE, _SHARED_EDGES = 0.06, 2
# How many times as much as before goes into a NIC that more was put upon.
_MORE = 1.5


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a NIC. A NIC whose peers all lose towards it is named, not its peers."""
    lossy = {nic.id: nic for nic in a.facts.nics if _loss(nic) > LOSS and not _flapped(nic)}
    gone = sum(map(_flapped, a.facts.nics))
    # One lossy NIC makes one lossy edge at each of its peers: those are effects.
    worst = max((nic.lossy_edges or 0 for nic in lossy.values()), default=0)
    crowded = _crowded(a)
    for nic in lossy.values():
        shared = nic.lossy_edges or 0
        if worst >= 2 and shared < worst / 2:
            continue
        if gone and shared <= gone:
            continue
        # What is lost towards a NIC that was gone is counted both ways once it is back.
        if nic.lossy_edges == 0 and _may_be_both_ways(nic):
            continue
        loss = _loss(nic)
        edges = nic.edges or 0
        # A bad NIC or cable is on the way of all of them; a part of them shares something further away.
        alone = nic.lossy_edges is not None and edges >= 3 and shared < max(2, _MOST_EDGES * edges)
        full = loss < _OF_A_QUEUE and (alone or shared < 2) and nic.network in crowded
        way = "receives" if _into(nic) else "sends"
        evidence = [
            Evidence(
                f"{loss:.1%} of the probes that {nic.id} {way} are lost",
                grows(loss, LOSS, 0.03, 0.3, 0.4) if alone or full else grows(loss, LOSS, 0.03, 0.7, 0.93),
                "loss_in" if way == "receives" else "loss_out",
            )
        ]
        if shared >= 2 and nic.edges and not alone:
            evidence.append(Evidence(f"{shared:.0f} of its {nic.edges:.0f} edges lose", 0.6, "lossy_edges"))
        resent = sum(f.retransmits or 0 for f in a.flows_of(nic.id))
        if resent > 1 and not full:
            # Which says that packets are lost, and not by whom.
            strength = 0.0 if alone else 0.5
            text = f"the job sends {resent:.0f} packets a second again over it"
            evidence.append(Evidence(text, strength, "retransmits"))
        # A host that does not take what arrives loses as well, as its own exporter says.
        found = finding("nic_loss", str(nic.id), evidence, [nic_subject(nic.id)], "mesh", "nic")
        if not a.uses(nic):
            found = as_hint(found, "the job does not use this network")
        elif contradiction := _contradiction(a, nic):
            found = as_hint(found, contradiction)
        elif _waits(a, nic) or queues_of_flows(a, nic):
            found = as_hint(found, "what is lost waits in a queue as well: one that is full loses")
        elif unknown := _not_excluded(a, nic, lossy.values()):
            found = as_undecided(found, unknown)
        elif nic.lossy_edges is None and (nic.loss_in or 0.0) > LOSS and _may_be_both_ways(nic):
            missing = "how many of its edges lose (fabricpulse_edge_inbound_probes_lost_total) is not known"
            found = as_undecided(found, missing)
        elif other := _same_queue(a, nic, lossy.values()):
            found = as_hint(found, f"{other.id} loses in the same way while flows wait: a full queue")
        yield found


def _not_excluded(a: Analysis, nic: Nic, lossy: Iterable[Nic]) -> str:
    """Why a full queue cannot be distinguished from a broken NIC, empty where it can: of its flows no delay is known,
    as exporters of their hosts do not answer, or their quickest chunks are late and what was carried before is unknown.
    """
    flows, into, missing = a.flows_of(nic.id), _into(nic), a.missing()
    directed = [f for f in flows if (f.target if into else f.source) == nic.id]
    # Those that a host without a qp exporter sends are not known at all.
    watched = bool(directed) and all(f.delay_s for f in directed)
    if "qp" in missing and not watched:
        return (
            f"no qp exporter ({_some(missing['qp'])}) says whether flows over it wait: a full queue"
            " loses, too"
        )
    if (
        "qp" in missing
        and _loss(nic) < _OF_A_QUEUE
        and (nic.lossy_edges or 0) < 2
        and a.facts.other_slow_flows
    ):
        return (
            f"flows of another job wait, and no qp exporter ({_some(missing['qp'])}) says whether"
            " this job's do on the same rail: a full queue"
        )
    if "qp" in missing and (other := _same_queue(a, nic, lossy, waits=True)):
        return (
            f"{other.id} loses in the same way, and no qp exporter ({_some(missing['qp'])}) says whether flows wait:"
            " a full queue"
        )
    if "mesh" in missing and (nic.lossy_edges or 0) < 2:
        return (
            f"hardly more than one edge loses, and no mesh exporter ({_some(missing['mesh'])}) says"
            " whether the NIC at its other end does"
        )
    if "mesh" in missing and _loss(nic) <= _OF_SHARED_QUEUE and contenders(a):
        return (
            f"no mesh exporter ({_some(missing['mesh'])}) says whether other NICs lose as it does:"
            " a full queue"
        )
    # A bad cable loses what is sent as well, more often than not; a host that takes too little does not.
    only_in = (nic.loss_out or 0.0) <= LOSS or _loss(nic) < _OF_A_QUEUE
    if into and only_in and nic.drops is None and nic.id.host in missing.get("nic", ()):
        return "no nic exporter says whether its host takes what arrives (drops, pause, PCIe)"
    if into and nic.id in a.incasts and _loss(nic) < _OF_A_QUEUE and not any(f.sent_before for f in directed):
        return "there is no baseline, and all senders to it wait: it may be put upon more"
    floors = [f.floor_s for f in flows if f.floor_s and not a.minor(f)]
    others = a.floors_but(nic.id.host)
    known = any(f.sent_before for f in flows)
    if "qp" in missing and floors and (len(others) < 2 or min(floors) > _QUICKEST * median(others)):
        return (
            f"chunks of few flows are known, without those of {_some(missing['qp'])}: all of its may be late, in a full"
            " queue before a slow link"
        )
    if floors and len(others) > 1 and not known and min(floors) > _QUICKEST * median(others):
        return (
            "even the quickest chunks over it are late, and what it carried before is not known: a full queue"
        )
    return ""


def _some(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:3]) + (", …" if len(hosts) > 3 else "")


def _same_queue(a: Analysis, nic: Nic, lossy: Iterable[Nic], *, waits: bool = False) -> Nic | None:
    """Another NIC of the network that loses on several edges in the same direction while flows of one of the two wait:
    what both lose is lost further away, in a queue that both fill. The flows of the other one may not pass it. waits :
    as if some did.
    """
    if (nic.lossy_edges or 0) < _SHARED_EDGES or _loss(nic) > _OF_SHARED_QUEUE:
        return None
    waits = waits or any(f in a.queued_flows for f in a.flows_of(nic.id))
    alike = (
        other
        for other in lossy
        if other.id.host != nic.id.host
        and (other.network or other.id.device) == (nic.network or nic.id.device)
        and _into(other) == _into(nic)
        and (other.lossy_edges or 0) >= _SHARED_EDGES
        and _loss(other) <= _OF_SHARED_QUEUE
        and (waits or any(f in a.queued_flows for f in a.flows_of(other.id)))
    )
    return next(alike, None)


def _into(nic: Nic) -> bool:
    """Whether it loses more of what it is sent than of what it sends."""
    return (nic.loss_in or 0) >= (nic.loss_out or 0)


def _may_be_both_ways(nic: Nic) -> bool:
    """Whether it loses no more of what it sends than of what it is sent, as far as known."""
    if nic.loss_in is None or nic.loss_out is None:
        return True
    return nic.loss_out <= LOSS + 1.5 * nic.loss_in


def _waits(a: Analysis, nic: Nic) -> bool:
    """Whether what it loses is lost in a queue: a broken cable delays nothing, and passes no more than before. Probes
    need not wait where the switch port has a queue for each flow.
    """
    into = _into(nic)
    flows = [f for f in a.flows_of(nic.id) if (f.target if into else f.source) == nic.id]
    slow = [f for f in flows if f in a.slow_set]
    probes, others = [f.probe_s for f in slow if f.probe_s is not None], a.probes_but(slow)
    usual_s = lower_quarter(others) if others else 0.0
    if probes and min(probes) > max(SLOW_DELAY_S, SLOW_SCORE * usual_s):
        return True
    sent, before = fsum(f.sent or 0.0 for f in flows), fsum(f.sent_before or 0.0 for f in flows)
    return into and nic.id in a.incasts and _loss(nic) < _OF_A_QUEUE and 0 < _MORE * before < sent


def _contradiction(a: Analysis, nic: Nic) -> str:
    """Empty where what the job sends again is not known, or does not contradict the loss of probes."""
    into = _into(nic)
    flows = [f for f in a.flows_of(nic.id) if (f.target if into else f.source) == nic.id and f.sent]
    if not flows or any(f.retransmits is None for f in flows):
        return ""
    sent, resent = sum(f.sent or 0 for f in flows), sum(f.retransmits or 0 for f in flows)
    if _loss(nic) * sent / _PACKET < _EXPECTED or resent > 1.0:
        return ""
    return f"the job sends {sent * 1e-9:.1f} GB/s that way and hardly anything again: only probes are lost"


def _loss(nic: Nic) -> float:
    return max(nic.loss_in or 0.0, nic.loss_out or 0.0)


def _flapped(nic: Nic) -> bool:
    return nic.connected is False or (nic.disconnects or 0) > 0.5 or (nic.link_downs or 0) > 0.5


def _crowded(a: Analysis) -> set[str]:
    """Rails on which flows of the job wait in queues while another job's do."""
    if not a.facts.other_slow_flows:
        return set()
    ends = {end for f in a.queued_flows for end in (f.source, f.target)}
    return {a.nics[end].network for end in ends if end in a.nics}
