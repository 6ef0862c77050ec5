"""Which rank waits for which, and for which all wait: the wait-for graph of a stalled job. Pure.

An edge goes from a rank to the peer that its oldest request needs. There are two kinds of edge, by what it waits for:

    peer_receive, peer_send     the peer has not posted the other half: the peer is late, for a reason of its own or
                                because it waits itself
    delivery, arrival, lane     data is in flight and does not arrive: the network (or the peer has died)

Every waiting rank leads along its edges to a head: a rank that is waited for and waits for none (not the network), or
an edge of the second kind. In a ring where one link is dead all ranks wait in a circle; the edge of the second kind is
where the circle begins. A circle of the first kind only is a deadlock of the program: ranks in different collectives.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fabricpulse.why.facts import Wait

# Host and number; None where the number is not known.
_Rank = tuple[str, int | None]
NETWORK = frozenset({"delivery", "arrival", "lane"})


@dataclass(frozen=True)
class Head:
    """The head of a chain of those who wait.

    rank : the rank that is at fault, or that sends where the network is; None when it is not known. peer : where the
    network is, the rank that does not get it. network : None for a circle without a beginning.
    """

    rank: int | None
    host: str
    network: bool | None
    reason: str
    peer: int | None = None
    peer_host: str = ""

    @property
    def where(self) -> str:
        """For people."""
        place = f" on {self.host}" if self.host else ""
        here = f"rank {self.rank}{place}" if self.rank is not None else f"a rank{place}"
        if self.peer is None and not self.peer_host:
            return here
        there = f"rank {self.peer} on {self.peer_host}" if self.peer is not None else self.peer_host
        return f"between {here} and {there}"


def find_heads(waits: Iterable[Wait], silent: Collection[_Rank] = ()) -> list[Head]:
    """The heads of all chains: silent processes, then where the network is, then ranks by how many wait for them,
    directly or not.

    silent : (host, rank) of processes without a heartbeat; what is sent to them is not acknowledged, and their own
    records are old, so neither counts. [] when nothing waits. Records without ranks are distinguished by host.
    """
    everything = list(waits)
    edges = [w for w in everything if _self(w) not in silent and _peer(w) not in silent]
    stopped = {peer for w in everything if (peer := _peer(w)) in silent}
    if stopped:
        direct: defaultdict[_Rank, set[_Rank]] = defaultdict(set)
        for w in everything:
            direct[_peer(w)].add(_self(w))
        return [_silent_head(peer, len(direct[peer])) for peer in sorted(stopped, key=str)]
    network = [w for w in edges if w.waits_for in NETWORK]
    sending = [w for w in network if w.waits_for != "arrival"]
    # A receiver of which a part has arrived sees the end of the same edge; the sender's word names both ends better.
    known = {(_peer(w), _self(w)) for w in sending}
    heads = {
        _pair(w): _network_head(w)
        for w in sorted(sending, key=lambda w: -w.age_s)
        + [w for w in network if w.waits_for == "arrival" and (_self(w), _peer(w)) not in known]
    }
    waiters: defaultdict[_Rank, set[_Rank]] = defaultdict(set)
    oldest_s: dict[_Rank, float] = {}
    for w in edges:
        oldest_s[_peer(w)] = max(w.age_s, oldest_s.get(_peer(w), 0.0))
        if w.waits_for not in NETWORK:
            waiters[_peer(w)].add(_self(w))
    waiting = _Waiting(map(_self, edges))
    late = {peer: _followers(waiters, peer) for peer in waiters if peer not in waiting}
    for peer, followers in sorted(late.items(), key=lambda item: (-item[1], str(item[0]))):
        host, rank = peer
        name = f"rank {rank}" if rank is not None else f"a rank on {host}"
        age_s = oldest_s[peer]
        heads[peer, peer] = Head(
            rank,
            host,
            network=False,
            reason=f"{name} has offered nothing for {age_s:.0f} s and waits for nobody; "
            f"{followers} {'rank waits' if followers == 1 else 'ranks wait'} for it, directly or not",
        )
    if heads or not edges:
        return list(heads.values())
    oldest = max(edges, key=lambda w: w.age_s)
    return [
        Head(
            oldest.rank,
            oldest.host,
            network=None,
            reason=f"{len(waiting.ranks)} ranks wait for one another in a circle, none with data under way: ranks "
            "are in different collectives; the oldest request is this one's",
        )
    ]


def graph_lines(waits: Iterable[Wait]) -> list[str]:
    """The graph for people, oldest first: one line an edge."""
    return [
        f"{_name(w.host, w.rank)} -> {_name(w.peer, w.peer_rank)}: {_MEANING.get(w.waits_for, w.waits_for)}, "
        f"{w.age_s:.1f} s{_what(w)}"
        for w in sorted(waits, key=lambda w: (-w.age_s, w.host, str(w.rank)))
    ]


_MEANING = {
    "peer_receive": "the peer has not posted its receive",
    "delivery": "sent and not acknowledged",
    "peer_send": "the peer has sent nothing",
    "arrival": "a part has arrived",
    "lane": "no lane is up",
}


def _what(w: Wait) -> str:
    """Of the data, as far as it is known."""
    missing = f", {w.missing_bytes} bytes missing" if w.missing_bytes else ""
    return missing + (f", channel {w.channel}" if w.channel else "")


def _self(w: Wait) -> _Rank:
    return w.host, w.rank


def _peer(w: Wait) -> _Rank:
    return w.peer, w.peer_rank


def _pair(w: Wait) -> tuple[object, object]:
    """The link, whichever of its ends speaks."""
    ends = sorted([_self(w), _peer(w)], key=str)
    return ends[0], ends[1]


class _Waiting:
    """Ranks that wait. Where one of two records did not know the rank, the same host is taken for the same rank."""

    def __init__(self, ranks: Iterable[_Rank]) -> None:
        self.ranks = set(ranks)
        self._hosts = {host for host, _ in self.ranks}
        self._unknown = {host for host, rank in self.ranks if rank is None}

    def __contains__(self, one: _Rank) -> bool:
        host, rank = one
        return one in self.ranks or host in (self._hosts if rank is None else self._unknown)


def _followers(waiters: Mapping[_Rank, Collection[_Rank]], head: _Rank) -> int:
    """How many wait for it, directly or not."""
    seen, todo = {head}, [head]
    while todo:
        for one in waiters.get(todo.pop(), ()):
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return len(seen) - 1


def _silent_head(peer: _Rank, waiting: int) -> Head:
    return Head(
        peer[1],
        peer[0],
        network=False,
        reason=f"{_name(*peer)} gives no sign of life: its process is stopped, stuck or dead; {waiting} ranks wait for "
        "it directly",
    )


def _network_head(w: Wait) -> Head:
    what = _MEANING[w.waits_for]
    # For a part that has arrived the peer is the sender; who sends comes first.
    one, other = (_peer(w), _self(w)) if w.waits_for == "arrival" else (_self(w), _peer(w))
    return Head(
        one[1],
        one[0],
        network=True,
        reason=f"from {_name(*one)} to {_name(*other)}: {what} for {w.age_s:.0f} s{_what(w)}",
        peer=other[1],
        peer_host=other[0],
    )


def _name(host: str, rank: int | None) -> str:
    return f"rank {rank} ({host})" if rank is not None else host
