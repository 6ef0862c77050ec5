"""Minimum two-way delays of a fleet, from the one-way minima that each host tells. Pure: reports and moments come in.

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

from fabricpulse.diagnosis.messages import EdgeName, HostFacts
from fabricpulse.diagnosis.tree.coverage import LEAST_SLOTS, MOST_PAIRS, Coverage
from fabricpulse.diagnosis.tree.measured import LEAST_SAMPLES, Delays, Floats, Ints, NicFacts

SLOTS = 10
_LONGER_NS = 1000.0
_LONGEST_NAME = 300
_NONE = np.iinfo(np.int32).max


@dataclass
class _Host:
    """row, side : of each of its edges the pair, -1 for none, and which end. told_s : when it last told a delay."""

    row: Ints
    side: Ints
    facts: HostFacts
    heard_s: float
    refused: int = 0
    told_s: float = -math.inf


class TwoWayMinima:
    """keep_s : how long a minimum counts, at most. share_machines : virtual machines may be on one machine. Moments are
    monotonic seconds.
    """

    def __init__(self, keep_s: float, share_machines: bool = True) -> None:
        self.keep_s = keep_s
        self._share_machines = share_machines
        self._hosts: dict[str, _Host] = {}
        self._pair_of: dict[tuple[str, str], int] = {}
        self._least = np.full((0, SLOTS, 2), _NONE, np.int32)
        self._samples = np.zeros((0, SLOTS, 2), np.uint16)
        self._newest = 0  # slot

    @property
    def slot_s(self) -> float:
        """Length of a slot."""
        return self.keep_s / SLOTS

    def edges(self, host: str, edges: tuple[EdgeName, ...], facts: HostFacts | None, now_s: float) -> None:
        """The edges of a host are these from now on. What was told of pairs that remain is kept."""
        row, side = np.full(len(edges), -1, np.int64), np.zeros(len(edges), np.int64)
        refused = 0
        for number, edge in enumerate(edges):
            near, far = f"{host}/{edge.device}", f"{edge.peer}/{edge.peer_device}"
            # "/" would make one name of two NICs.
            if (
                host == edge.peer
                or near.count("/") + far.count("/") > 2
                or len(near + far) > 2 * _LONGEST_NAME
            ):
                continue
            key = (near, far) if near < far else (far, near)
            found = self._pair_of.get(key, -1)
            if found < 0:
                if len(self._pair_of) >= MOST_PAIRS:
                    refused += 1
                    continue
                found = self._pair_of[key] = len(self._pair_of)
            row[number], side[number] = found, int(near > far)
        self._make_room()
        before = self._hosts.get(host)
        told_s = before.told_s if before is not None else -math.inf
        self._hosts[host] = _Host(row, side, facts or HostFacts(()), now_s, refused, told_s)

    def told(self, host: str, delays: NDArray[np.void], now_s: float) -> None:
        """Records of DELAY_DTYPE of the edges of a host; of one whose edges are not known nothing is taken."""
        self._advance(now_s)
        known = self._hosts.get(host)
        if known is None:
            return
        known.heard_s = now_s
        delays = delays[(delays["edge"] < len(known.row)) & (delays["samples"] > 0)]
        row, side = known.row[delays["edge"]], known.side[delays["edge"]]
        use = row >= 0
        if not use.any():
            return
        known.told_s = now_s
        at = row[use], self._newest % SLOTS, side[use]
        np.minimum.at(self._least, at, delays["least_ns"][use])
        sums = self._samples[at].astype(np.int64) + delays["samples"][use]
        self._samples[at] = np.minimum(sums, np.iinfo(np.uint16).max).astype(np.uint16)

    def heard(self, host: str, now_s: float) -> None:
        """A host is there, with nothing to tell."""
        if (known := self._hosts.get(host)) is not None:
            known.heard_s = now_s

    def heard_lately(self, now_s: float) -> set[str]:
        """Hosts that have reported within two slots."""
        return {name for name, host in self._hosts.items() if now_s - host.heard_s <= 2 * self.slot_s}

    def delays(self, leaf_of: Mapping[str, str], now_s: float) -> tuple[list[NicFacts], Delays, Coverage]:
        """All NICs, the pairs of them that are known, and what is missing. leaf_of : declared, by host/device."""
        self._advance(now_s)
        self._forget(now_s)
        two_way, count = self._two_way()
        slots = np.count_nonzero(np.isfinite(two_way), axis=1)
        enough = (slots >= LEAST_SLOTS) & (count >= LEAST_SAMPLES)
        heard = (self._least[: len(self._pair_of)] != _NONE).any(axis=1)
        rows = np.flatnonzero(enough)
        names = list(self._pair_of)
        number: dict[str, int] = {}
        for host, known in self._hosts.items():
            for device, _ in known.facts.nics:
                number.setdefault(f"{host}/{device}", len(number))
        ends = np.array(
            [[number.setdefault(name, len(number)) for name in names[row]] for row in rows.tolist()], np.int64
        ).reshape(-1, 2)
        nics = self._facts(number, leaf_of)
        found = Delays.from_arrays(ends[:, 0], ends[:, 1], lasting(two_way[rows]), count[rows], nics)
        both = heard.all(axis=1)
        coverage = Coverage(
            hosts=len(self._hosts),
            silent=sum(now_s - host.told_s > self.keep_s for host in self._hosts.values()),
            pairs=len(names),
            unheard=int(np.count_nonzero(~heard.any(axis=1))),
            one_way=int(np.count_nonzero(heard.any(axis=1) & ~both)),
            young=int(np.count_nonzero(both & ~enough)),
            known=len(found),
            refused=sum(host.refused for host in self._hosts.values()),
        )
        return nics, found, coverage

    def _facts(self, names: Mapping[str, int], leaf_of: Mapping[str, str]) -> list[NicFacts]:
        networks = {f"{h}/{d}": net for h, known in self._hosts.items() for d, net in known.facts.nics}
        found = []
        for name in names:
            host, _, device = name.partition("/")
            known = self._hosts.get(host)
            virtual = known.facts.virtual if known is not None else None
            virtual = virtual if self._share_machines else False
            found.append(NicFacts(host, device, networks.get(name, ""), leaf_of.get(name, ""), virtual))
        return found

    def _two_way(self) -> tuple[Floats, Ints]:
        """By pair and slot, the oldest first, inf where an end said nothing; and samples of both ends, by pair."""
        order = np.arange(self._newest - SLOTS + 1, self._newest + 1) % SLOTS
        least = self._least[: len(self._pair_of), order]
        both = (least != _NONE).all(axis=2)
        two_way = np.where(both, least.astype(np.float64).sum(axis=2), np.inf)
        # No packet is faster than light: clocks have moved.
        two_way[two_way <= 0] = np.inf
        fewest = self._samples[: len(self._pair_of), order].min(axis=2)
        return two_way, np.where(np.isfinite(two_way), fewest, 0).sum(axis=1, dtype=np.int64)

    def _advance(self, now_s: float) -> None:
        slot = int(now_s // self.slot_s)
        for passed in range(max(self._newest + 1, slot - SLOTS + 1), slot + 1):
            self._least[:, passed % SLOTS] = _NONE
            self._samples[:, passed % SLOTS] = 0
        self._newest = max(self._newest, slot)

    def _forget(self, now_s: float) -> None:
        """Hosts that are silent, and pairs that no host has any more."""
        self._hosts = {n: h for n, h in self._hosts.items() if now_s - h.heard_s <= self.keep_s}
        live = np.zeros(len(self._pair_of), bool)
        for host in self._hosts.values():
            live[host.row[host.row >= 0]] = True
        if live.all():
            return
        moved = np.append(np.where(live, np.cumsum(live) - 1, -1), -1)  # the last one for -1
        self._least, self._samples = self._least[: len(live)][live], self._samples[: len(live)][live]
        self._pair_of = {key: int(moved[row]) for key, row in self._pair_of.items() if live[row]}
        for host in self._hosts.values():
            host.row = moved[host.row]

    def _make_room(self) -> None:
        have, need = len(self._least), len(self._pair_of)
        if need > have:
            more = max(1024, need + need // 2) - have
            self._least = np.concatenate([self._least, np.full((more, SLOTS, 2), _NONE, np.int32)])
            self._samples = np.concatenate([self._samples, np.zeros((more, SLOTS, 2), np.uint16)])


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
