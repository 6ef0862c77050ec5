"""Minimum two-way delays of a fleet, from the one-way minima that each host reports. Pure: reports and moments come in.

Both directions of a pair are added within one slot of time, so that the clocks of the two hosts have the same error in
both, and it cancels. A slot in which a clock moved, as after a pause, may sum up to less than any packet took: the
second smallest slot counts, and a pair that has fewer than three is not known yet. A pair that has lately been longer
in all slots than before, because its route is another one or a NIC has moved, is as long as it is now; if only a queue
did not become empty it then tells nothing for a while, and nothing wrong.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.flows.components import Nodes
from fabricpulse.diagnosis.flows.names import Names
from fabricpulse.diagnosis.tree.coverage import LEAST_SLOTS, MOST_PAIRS, Coverage
from fabricpulse.diagnosis.tree.measured import LEAST_SAMPLES, Delays, Floats, Ints, NicFacts
from fabricpulse.diagnosis.wire.messages import EdgeName, HostFacts

SLOTS = 10
_LONGER_NS = 1000.0
_LONGEST_NAME = 300
_NONE = np.iinfo(np.int32).max
_NO_FACTS = HostFacts(())
# Pairs that are looked at together: of a large fleet all slots of all pairs as numbers are hundreds of megabytes.
_BLOCK = 1 << 12


@dataclass(slots=True)
class _Host:
    """edges : in rows the NICs of each edge by number, its own and the far one, and the pair, -1 for none. delays_at_s
    : when it last reported a delay.
    """

    edges: Nodes
    facts: HostFacts
    last_report_s: float
    refused: int = 0
    delays_at_s: float = -math.inf

    @property
    def near(self) -> Nodes:
        """Its own NIC, by edge."""
        found: Nodes = self.edges[0]
        return found

    @property
    def far(self) -> Nodes:
        """The other end's NIC, by edge."""
        found: Nodes = self.edges[1]
        return found

    @property
    def row(self) -> Nodes:
        """The pair, by edge."""
        found: Nodes = self.edges[2]
        return found

    def pairs(self) -> dict[tuple[int, int], int]:
        """Of its edges, those that have one."""
        edges = zip(self.near.tolist(), self.far.tolist(), self.row.tolist(), strict=True)
        return {(near, far): row for near, far, row in edges if row >= 0}

    def pair(self, near: int, far: int) -> int:
        """Of one edge, -1 for none."""
        found = self.row[(self.near == near) & (self.far == far)]
        return int(found[0]) if len(found) else -1


class TwoWayMinima:
    """keep_s : how long a minimum counts, at most. share_machines : virtual machines may be on one machine. Moments are
    monotonic seconds.
    """

    def __init__(self, keep_s: float, share_machines: bool = True) -> None:
        self.keep_s = keep_s
        self._share_machines = share_machines
        self._hosts: dict[str, _Host] = {}
        self._names = Names()
        self._facts_of: dict[HostFacts, HostFacts] = {}
        self._pairs = 0
        # By pair: its NICs; in each slot what its ends, the NIC of the smaller number first, have reported.
        self._ends = np.zeros((0, 2), np.int32)
        # Slot by slot: while a fork computes the tree only the newest is written to, and the rest stays shared with it.
        self._least = np.full((SLOTS, 0, 2), _NONE, np.int32)
        self._samples = np.zeros((SLOTS, 0, 2), np.uint16)
        self._newest = 0  # slot
        self._edges_changed = False  # since the last time that pairs were forgotten
        # Reports have come since then without a pause in which hosts would seem silent that are not; the last one.
        self._listens_s = self._listened_s = -math.inf

    @property
    def slot_s(self) -> float:
        """Length of a slot."""
        return self.keep_s / SLOTS

    def edges(self, host: str, edges: tuple[EdgeName, ...], facts: HostFacts | None, now_s: float) -> None:
        """The edges of a host are these from now on. What was reported of pairs that remain is kept."""
        before = self._hosts.get(host)
        mine = before.pairs() if before is not None else {}
        near, far, row = [], [], []
        refused = 0
        for edge in edges:
            texts = f"{host}/{edge.device}", f"{edge.peer}/{edge.peer_device}"
            # "/" would make one name of two NICs.
            if (
                host == edge.peer
                or sum(text.count("/") for text in texts) > 2
                or sum(map(len, texts)) > 2 * _LONGEST_NAME
            ):
                near.append(-1)
                far.append(-1)
                row.append(-1)
                continue
            pair = self._names.nic(host, edge.device), self._names.nic(edge.peer, edge.peer_device)
            if pair not in mine:
                peer = self._hosts.get(edge.peer)
                found = peer.pair(*pair[::-1]) if peer is not None else -1
                if found < 0 and self._pairs >= MOST_PAIRS:
                    refused += 1
                mine[pair] = found if found >= 0 else self._new_pair(pair)
            near.append(pair[0])
            far.append(pair[1])
            row.append(mine[pair])
        delays_at_s = before.delays_at_s if before is not None else -math.inf
        # Nearly all hosts report the same of themselves: one copy is kept.
        facts = self._facts_of.setdefault(facts or _NO_FACTS, facts or _NO_FACTS)
        columns = np.array([near, far, row], np.int32)
        self._hosts[host] = _Host(columns, facts, now_s, refused, delays_at_s)
        self._edges_changed = True

    def _new_pair(self, ends: tuple[int, int]) -> int:
        """Its number, -1 if there is no room."""
        if self._pairs >= MOST_PAIRS:
            return -1
        if self._pairs == len(self._ends):
            self._make_room(max(1024, self._pairs // 4))
        self._ends[self._pairs] = sorted(ends)
        self._pairs += 1
        return self._pairs - 1

    def add_delays(self, host: str, delays: NDArray[np.void], now_s: float) -> None:
        """Records of DELAY_DTYPE of the edges of a host; of one whose edges are not known nothing is taken."""
        self._advance(now_s)
        known = self._hosts.get(host)
        if known is None:
            return
        self._reported(known, now_s)
        delays = delays[(delays["edge"] < len(known.row)) & (delays["samples"] > 0)]
        row = known.row[delays["edge"]]
        side = (known.near > known.far)[delays["edge"]].astype(np.int64)
        use = row >= 0
        if not use.any():
            return
        known.delays_at_s = now_s
        at = self._newest % SLOTS, row[use], side[use]
        np.minimum.at(self._least, at, delays["least_ns"][use])
        sums = self._samples[at].astype(np.int64) + delays["samples"][use]
        self._samples[at] = np.minimum(sums, np.iinfo(np.uint16).max).astype(np.uint16)

    def seen(self, host: str, now_s: float) -> None:
        """A host has reported, without delays."""
        if (known := self._hosts.get(host)) is not None:
            self._reported(known, now_s)

    def _reported(self, host: _Host, now_s: float) -> None:
        if now_s - self._listened_s > self.slot_s / 2:
            self._listens_s = now_s
        self._listened_s = host.last_report_s = now_s

    def abandon(self) -> None:
        """For a fork that has read the delays: gives them back. They cannot be asked for afterwards."""
        self._least, self._samples = self._least[:, :0].copy(), self._samples[:, :0].copy()
        self._ends, self._pairs = self._ends[:0].copy(), 0

    def has_edges_of(self, host: str) -> bool:
        """Whether it has reported its edges lately."""
        return host in self._hosts

    def recent_hosts(self, now_s: float) -> set[str]:
        """Hosts that have reported within two slots."""
        return {name for name, host in self._hosts.items() if now_s - host.last_report_s <= 2 * self.slot_s}

    def delays(self, leaf_of: Mapping[str, str], now_s: float) -> tuple[list[NicFacts], Delays, Coverage]:
        """All NICs, the pairs of them that are known, and what is missing. leaf_of : declared, by host/device."""
        self._advance(now_s)
        self._forget(now_s)
        now_ns, slots, count, has_delay = self._now()
        enough = (slots >= LEAST_SLOTS) & (count >= LEAST_SAMPLES)
        rows = np.flatnonzero(enough)
        nics, place = self._facts(np.unique(self._ends[rows]), leaf_of)
        ends = place[self._ends[rows]]
        found = Delays.from_arrays(ends[:, 0], ends[:, 1], now_ns[rows], count[rows], nics)
        both = has_delay.all(axis=1)
        coverage = Coverage(
            hosts=len(self._hosts),
            silent=sum(now_s - host.delays_at_s > self.keep_s for host in self._hosts.values()),
            pairs=self._pairs,
            without_delays=int(np.count_nonzero(~has_delay.any(axis=1))),
            one_way=int(np.count_nonzero(has_delay.any(axis=1) & ~both)),
            young=int(np.count_nonzero(both & ~enough)),
            known=len(found),
            refused=sum(host.refused for host in self._hosts.values()),
        )
        return nics, found, coverage

    def _facts(self, ends: Nodes, leaf_of: Mapping[str, str]) -> tuple[list[NicFacts], Ints]:
        """The NICs of all hosts, and those of `ends` that no host says are its own; and by name the number of each."""
        found: list[NicFacts] = []
        place = np.full(len(self._names), -1, np.int64)
        for host, known in self._hosts.items():
            virtual = known.facts.virtual if self._share_machines else False
            # No copy of a name is kept: a fork that makes one for each NIC has its own of all that is on their pages.
            for device, network in dict(known.facts.nics).items():
                name = f"{host}/{device}"
                if name.count("/") > 1:
                    continue  # as in `edges`
                if (at := self._names.find(name)) >= 0:
                    place[at] = len(found)
                found.append(NicFacts(host, device, network, leaf_of.get(name, ""), virtual))
        if len(rest := ends[place[ends] < 0]):
            texts = self._names.texts()
            for at in rest.tolist():
                host, _, device = texts[at].partition("/")
                known_host = self._hosts.get(host)
                virtual = known_host.facts.virtual if known_host is not None else None
                place[at] = len(found)
                found.append(
                    NicFacts(
                        *(host, device, "", leaf_of.get(texts[at], "")),
                        virtual if self._share_machines else False,
                    )
                )
        return found, place

    def _now(self) -> tuple[Floats, Ints, Ints, NDArray[np.bool_]]:
        """By pair what it is now, ns, of one that enough slots know; how many slots know it; samples of both ends; and
        of each end whether it has reported a delay.
        """
        now_ns = np.full(self._pairs, np.inf)
        has_delay = np.zeros((self._pairs, 2), bool)
        slots, count = np.zeros((2, self._pairs), np.int64)
        order = np.arange(self._newest - SLOTS + 1, self._newest + 1) % SLOTS
        for begin in range(0, self._pairs, _BLOCK):
            rows = slice(begin, min(begin + _BLOCK, self._pairs))
            least = self._least[order, rows]
            there = least != _NONE
            has_delay[rows] = there.any(axis=0)
            both = there.all(axis=2).T
            two_way = np.where(both, least.sum(axis=2, dtype=np.float64).T, np.inf)
            # No packet is faster than light: clocks have moved.
            two_way[two_way <= 0] = np.inf
            finite = np.isfinite(two_way)
            slots[rows] = finite.sum(axis=1)
            fewest = self._samples[order, rows].min(axis=2).T
            count[rows] = np.where(finite, fewest, 0).sum(axis=1, dtype=np.int64)
            known = slots[rows] >= LEAST_SLOTS
            now_ns[rows][known] = lasting(two_way[known])
        return now_ns, slots, count, has_delay

    def _advance(self, now_s: float) -> None:
        slot = int(now_s // self.slot_s)
        if slot <= self._newest:
            return
        for passed in range(max(self._newest + 1, slot - SLOTS + 1), slot + 1):
            self._least[passed % SLOTS] = _NONE
            self._samples[passed % SLOTS] = 0
        self._newest = slot
        # Here and not only where a tree is computed: that is done by a fork, which forgets for itself.
        self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        """Hosts that are silent or have left, and pairs and names that no host has any more."""
        silent = [n for n, h in self._hosts.items() if now_s - h.last_report_s > self.keep_s]
        silent += sorted(self._left(now_s) - {*silent})
        if not silent and not self._edges_changed:
            return
        self._edges_changed = False
        for host_name in silent:
            del self._hosts[host_name]
        live = np.zeros(self._pairs, bool)
        for host in self._hosts.values():
            live[host.row[host.row >= 0]] = True
        if not live.all():
            self._pairs = int(np.count_nonzero(live))
            moved = np.append(np.where(live, np.cumsum(live) - 1, -1), -1).astype(np.int32)  # the last for -1
            slots = [(one, _NONE) for one in self._least] + [(one, 0) for one in self._samples]
            for kept, nothing in ((self._ends, 0), *slots):
                kept[: self._pairs] = kept[: len(live)][live]
                kept[self._pairs : len(live)] = nothing
            for host in self._hosts.values():
                host.edges[2] = moved[host.row]
        if self._names.overdue:
            self._compact()
        facts = [host.facts for host in self._hosts.values()]
        self._facts_of = dict(zip(facts, facts, strict=True))

    def _left(self, now_s: float) -> set[str]:
        """Hosts that have not reported for two slots and that no other one has as a peer any more: the membership does
        not list them, or by another name, by which they would be there twice. Peers of a host that is down go on asking
        for it.
        """
        quiet = {n for n, h in self._hosts.items() if now_s - h.last_report_s > 2 * self.slot_s}
        cut_off = now_s - self._listened_s > self.slot_s / 2
        if not quiet or cut_off or now_s - self._listens_s <= 2 * self.slot_s:
            return set()
        is_peer = np.zeros(len(self._names) + 1, bool)  # one more for -1
        for name, host in self._hosts.items():
            if name not in quiet:
                is_peer[host.far] = True
        is_peer[-1] = False
        return {name for name in quiet if not is_peer[self._hosts[name].near].any()}

    def _compact(self) -> None:
        used = np.zeros(len(self._names) + 1, bool)  # one more for -1
        for host in self._hosts.values():
            used[host.near] = used[host.far] = True
        moved = np.append(self._names.compact(used[:-1]), np.int32(-1))
        for host in self._hosts.values():
            host.edges[:2] = moved[host.edges[:2]]
        self._ends[: self._pairs] = moved[self._ends[: self._pairs]]

    def _make_room(self, more: int) -> None:
        self._ends = np.concatenate([self._ends, np.zeros((more, 2), np.int32)])
        self._least = np.concatenate([self._least, np.full((SLOTS, more, 2), _NONE, np.int32)], axis=1)
        self._samples = np.concatenate([self._samples, np.zeros((SLOTS, more, 2), np.uint16)], axis=1)


def lasting(two_way: Floats) -> Floats:
    """Of each pair what it is now. two_way : by pair and slot, the oldest first, inf for none; three slots at least."""
    if not len(two_way):
        return np.zeros(0)
    ordered = np.sort(two_way, axis=1)
    least = ordered[:, 1]
    late = two_way[:, -LEAST_SLOTS:]
    known = np.isfinite(late)
    lately = np.where(known, late, np.inf).min(axis=1)
    longer = (known.sum(axis=1) >= LEAST_SLOTS - 1) & (lately > least + _LONGER_NS)
    found: Floats = np.where(longer, lately, least)
    return found
