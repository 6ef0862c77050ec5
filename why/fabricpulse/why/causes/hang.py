"""Collectives have been started and do not end. Names the head of the wait-for chain, and whether it is the
network.

Identified by ranks with operations in progress that do not advance, and by the requests that wait (hang localisation,
`fabricpulse.why.hang`): a rank that others wait for and that itself waits for no rank has not posted its data, which is
not the network; data that was sent and is not acknowledged, or a connection without a lane, is. Where no process of
the job on a host reports now, it is not known what that host waits for: it is named as such, with less confidence.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fabricpulse.why.analysis import STALLED_S, Analysis
from fabricpulse.why.facts import Rank, Wait
from fabricpulse.why.finding import Evidence, Finding, Subject, as_undecided, finding
from fabricpulse.why.hang import Head, find_heads

TITLE = "hang"
DO = (
    "Not the network: attach to the named rank (`py-spy dump`, cuda-gdb); it has not entered the collective.",
    "The network: look at the named NICs and the path between them; `fabricpulse plugin status` shows their lanes.",
)

_MOST_NAMED = 4
# A request that is as old is no ordinary one while others are much older.
_YOUNG_S = 1.0
# After the first request of a hang has waited for so long, who is scraped shows its own.
_SEEN_S = 1.0


def find(a: Analysis) -> Iterator[Finding]:
    """One finding, or one a head of a chain."""
    if not a.stalled:
        return
    standing = [r for r in a.facts.ranks if (r.in_progress or 0) > 0]
    for_s = f"has ended for {a.still_s:.0f} s" if a.still_s >= 1 else "ends"
    still = Evidence(
        f"no collective {for_s}; {len(standing)} {'rank is' if len(standing) == 1 else 'ranks are'} in one"
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
    if not heads and a.facts.undumped:
        who = ", ".join(map(str, a.facts.undumped[:_MOST_NAMED]))
        who += ", …" if len(a.facts.undumped) > _MOST_NAMED else ""
        left = Evidence(f"all others are in the same collective, and of ranks {who} there is no dump", 0.5)
        yield finding(
            "hang", f"rank {who}, without a dump", [replace(still, strength=0.6), left], [("job",)], "qp"
        )
        return
    if not heads:
        yield finding("hang", "head of the chain unknown", [still], [("job",)], "qp")
        return
    seen = _Seen(a)
    for head in heads:
        waiting = Evidence(head.reason, 0.8 if head.network is not None else 0.5, "waiting")
        evidence = [still, *reported, waiting]
        if unseen := seen.why_not(head):
            # That it hangs is sure, not where.
            evidence[0] = replace(still, strength=0.6)
            if head.network is False:
                text = f"ranks wait for {head.where}; for whom it waits is not known: {unseen}"
                evidence[-1] = Evidence(text, 0.5, "waiting")
            else:
                evidence[-1] = replace(waiting, strength=0.5)
                evidence.append(Evidence(unseen, 0.0, "heartbeat"))
        # The host that is named; a NIC of another one does not explain it.
        subjects: list[Subject] = [("host", host) for host in (head.host, head.peer_host) if host]
        if head.network is None or not subjects:
            subjects.append(("job",))
        found = finding("hang", head.where, evidence, subjects, "qp")
        if unseen and head.network is False and _off(a, head.host):
            found = as_undecided(found, f"the qp exporter of {head.host}, whose others answer, is off")
        yield found


def _off(a: Analysis, host: str) -> bool:
    """Whether an exporter there is off rather than the host: others of it answer."""
    known = a.hosts.get(host)
    return known is not None and "qp" not in known.exporters and bool(known.exporters)


class _Seen:
    """What is known of the ends of heads since a hang began."""

    def __init__(self, a: Analysis) -> None:
        self._reporting = {p.host for p in a.facts.processes}
        self._scraped = a.facts.scraped
        self._begun_s = min((_begun_s(a, w) for w in a.facts.waits if w.age_s >= STALLED_S), default=0.0)

    def why_not(self, head: Head) -> str:
        """Why an end of it may wait itself, or be gone: nothing is known of it since this began. "" where it is."""
        if not self._reporting:
            return ""
        ends = [host for host in (head.host, head.peer_host) if host]
        for host in ends:
            if host not in self._reporting:
                if head.network is False:
                    return "its processes report nothing"
                return f"nothing is received of the job on {host}: its host, process or exporter may be down"
        for host in ends:
            if self._scraped.get(host, math.inf) < self._begun_s + _SEEN_S:
                return f"{host} was last scraped before this began"
        return ""


def _begun_s(a: Analysis, w: Wait) -> float:
    return a.facts.scraped.get(w.host, a.facts.at_s) - w.age_s


def heads_of(a: Analysis) -> list[Head]:
    """Of the chains of those who wait; [] where nothing stalls."""
    if not a.stalled:
        return []
    silent = {(p.host, p.rank) for p in a.facts.processes if p.heartbeat_age_s >= STALLED_S}
    # Who was scraped first has waited for less until then.
    since_s = a.facts.at_s - STALLED_S
    waits = [w for w in a.facts.waits if w.age_s >= _YOUNG_S or _begun_s(a, w) <= since_s]
    if not any(w.age_s >= STALLED_S for w in waits):
        waits = []
    return find_heads(waits, silent) or _behind(a)


def _behind(a: Analysis) -> list[Head]:
    """Without waiting requests: ranks that have ended fewer collectives than the others of their communicator, or have
    not started the one that the others are in; of several communicators those that wait in none."""
    communicators: defaultdict[str, list[Rank]] = defaultdict(list)
    for r in a.facts.ranks:
        if r.operations is not None:
            communicators[r.communicator].append(r)
    process = _processes(communicators)
    late: dict[_Process, tuple[Rank, float, float]] = {}
    waiting: defaultdict[_Process, set[_Process]] = defaultdict(set)
    for ranks in communicators.values():
        started = {r: (r.operations or 0) + (r.in_progress or 0) for r in ranks}
        if len(ranks) < 2 or min(started.values()) == max(started.values()):
            continue
        least, most = min(started.values()), max(started.values())
        behind = [r for r in ranks if started[r] == least]
        if len(behind) > len(ranks) // 2:
            continue
        late |= {process[r]: (r, least, most) for r in behind if process[r] not in late}
        for r in ranks:
            if started[r] > least and (r.in_progress or 0) > 0:
                waiting[process[r]] |= {process[b] for b in behind} - {process[r]}
    heads = [who for who in late if not waiting[who]] or list(late)
    # By its number in the communicator of most ranks, which is that of the launcher.
    number: dict[_Process, Rank] = {}
    for ranks in sorted(communicators.values(), key=len):
        number |= {process[r]: r for r in ranks}
    return [
        Head(
            rank=number[who].rank,
            host=number[who].host,
            network=False,
            reason=f"rank {number[who].rank} has started {least:.0f} collectives"
            + (f" of communicator {r.communicator}" if len(communicators) > 1 else "")
            + f", the others {most:.0f}",
        )
        for who in heads
        for r, least, most in [late[who]]
    ]


# A rank of a dump is that of the process; else a host's only rank in each of its communicators is that of one process.
_Process = tuple[str, int] | Rank


def _processes(communicators: Mapping[str, list[Rank]]) -> dict[Rank, _Process]:
    """The process of each rank, as far as it can be known; the rank itself where it cannot."""
    several = {
        host
        for ranks in communicators.values()
        for host, count in Counter(r.host for r in ranks).items()
        if count > 1
    }
    found: dict[Rank, _Process] = {}
    for ranks in communicators.values():
        for r in ranks:
            if not r.host:
                found[r] = ("", r.rank)
            else:
                found[r] = r if r.host in several else (r.host, -1)
    return found
