"""All that is known for the fabric's tree, and what temporary peers are to find out. Pure: reports and moments come in.

`compute` changes nothing, so that a fork can do it; `learned` takes what it has found.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from fabricpulse.diagnosis.tree.assignment import MOST_PEERS, MOST_ROUND, Assigner, pair_of
from fabricpulse.diagnosis.tree.fabric_tree import FabricTree, tree_of
from fabricpulse.diagnosis.tree.findings import AssignedPeers, Findings, KeptPair
from fabricpulse.diagnosis.tree.kept_pairs import LONGEST_S, KeptPairs, Levels, levels_of, together
from fabricpulse.diagnosis.tree.learned import topology_document
from fabricpulse.diagnosis.tree.measured import Floats
from fabricpulse.diagnosis.tree.minima import TwoWayMinima
from fabricpulse.diagnosis.tree.temporary_peers import temporary_peers
from fabricpulse.diagnosis.wire.delay_records import unpack_delays
from fabricpulse.diagnosis.wire.messages import MOST_EDGES, MOST_TEMPORARY, EdgeName, EvidenceReport


class TreeLearner:
    """keep_s, share_machines : see TwoWayMinima. leaf_of : declared, by host/device."""

    def __init__(self, keep_s: float, leaf_of: Mapping[str, str], share_machines: bool = True) -> None:
        self.minima = TwoWayMinima(keep_s, share_machines)
        self._leaf_of = leaf_of
        self._kept = KeptPairs()
        self._assigner = Assigner(self.minima.slot_s)
        self._capacity: dict[str, int] = {}
        self._terms = b""  # of Findings
        self._published = 0  # the round that `assigned` has returned

    @property
    def kept(self) -> int:
        """Pairs that temporary peers have measured."""
        return len(self._kept)

    def report(self, report: EvidenceReport, now_s: float) -> None:
        """Takes in what a checked report says of delays."""
        host = report.host
        if report.edges is not None:
            self.minima.edges(host, report.edges, report.facts, now_s)
            facts = report.facts
            self._capacity[host] = min(facts.temporary_peers, MOST_PEERS) if facts is not None else 0
        if report.moved:
            self._kept.moved((f"{host}/{device}" for device in report.moved), now_s)
        if report.delays:
            self.minima.add_delays(host, unpack_delays(report.delays, MOST_EDGES), now_s)
        else:
            self.minima.seen(host, now_s)
        if report.temporary:
            found = unpack_delays(report.temporary_delays, MOST_TEMPORARY)
            self._assigner.add_delays(host, report.temporary, found, now_s)

    def compute(self, now_s: float, last: bool = False) -> tuple[FabricTree, dict[str, Any], Findings]:
        """The tree, the part of it that is certain enough to publish, and the findings that `learned` takes. last : in
        a fork, which takes no reports afterwards: gives back what it has read, or would keep what its parent replaces.
        """
        nics, standing, coverage = self.minima.delays(self._leaf_of, now_s)
        if last:
            self.minima.abandon()
        place = {nic.name: at for at, nic in enumerate(nics)}
        level_of = Levels(place, levels_of(nics, standing))
        ended, measured = self._assigner.measured()
        gained = (
            tuple(
                KeptPair(*pair, ns, count, ended.began_s, level_of[pair[0]], level_of[pair[1]])
                for pair, ns, count in measured
                if pair[0] in level_of and pair[1] in level_of
            )
            if ended is not None
            else ()
        )
        gained = tuple(self._kept.merged(gained, level_of, now_s))
        good, removed = self._kept.settled(level_of, now_s, gained)
        terms = _unpacked(self._terms, place)
        tree = tree_of(nics, together(nics, standing, good), terms)
        wanted: list[tuple[str, str]] = []
        if self._assigner.wants(now_s) or ended is not None:
            wanted = self._wanted(tree, place, good, level_of, now_s)
        document = topology_document(
            tree, coverage, self.minima.slot_s, len(standing), len(good), len(wanted)
        )
        number = ended.number if ended is not None else 0
        # Also of a tree that is not used: it is one start of several.
        kept = msgspec.msgpack.encode(dict(zip(place, tree.terms_ns.tolist(), strict=True)))
        return tree, document, Findings(number, gained, tuple(removed), tuple(wanted), kept)

    def _wanted(
        self,
        tree: FabricTree,
        place: Mapping[str, int],
        good: list[KeptPair],
        level_of: Mapping[str, float],
        now_s: float,
    ) -> list[tuple[str, str]]:
        lately = self.minima.recent_hosts(now_s)
        # What is measured of a NIC without standing pairs would not be used.
        room = [
            self._capacity.get(nic.host, 0) if nic.host in lately and name in level_of else 0
            for name, nic in zip(place, tree.nics, strict=True)
        ]
        silent = {
            (min(place[a], place[b]), max(place[a], place[b]))
            for a, b in self._assigner.given_up(now_s)
            if a in place and b in place
        }
        chosen = temporary_peers(tree, room, self._assigner.number, silent)
        if chosen:
            names = tree.nics
            return [pair_of(names[a].name, names[b].name) for a, b in chosen[:MOST_ROUND]]
        # The tree stands: what it stands on is measured anew before it is too old.
        old = sorted(pair.at_s for pair in good)
        due = old[0] + LONGEST_S / 2 if old else now_s
        if now_s <= due:
            return []
        found: list[tuple[str, str]] = []
        for pair in sorted(good, key=lambda one: one.at_s):
            a, b = place[pair.a], place[pair.b]
            if pair.at_s > now_s - LONGEST_S / 2 or len(found) >= MOST_ROUND:
                break
            if room[a] > 0 and room[b] > 0:
                room[a] -= 1
                room[b] -= 1
                found.append((pair.a, pair.b))
        return found

    def learned(self, findings: Findings, now_s: float) -> None:
        """Takes what `compute` has found, and begins the next round."""
        self._kept.drop(findings.removed)
        self._kept.add(findings.gained)
        self._kept.prune(now_s)
        self._terms = findings.terms
        self._capacity = {
            host: most for host, most in self._capacity.items() if self.minima.has_edges_of(host)
        }
        if findings.round:
            answered = frozenset((pair.a, pair.b) for pair in findings.gained)
            self._assigner.settle(findings.round, answered, now_s)
        if self._assigner.wants(now_s):
            self._assigner.begin(findings.wanted, now_s)

    def assigned(self, now_s: float) -> AssignedPeers | None:
        """What is assigned, when it has changed since the last call."""
        self._assigner.advance(now_s)
        current = self._assigner.current
        if (current.number if current is not None else 0) == self._published:
            return None
        if current is None:
            self._published = 0
            return AssignedPeers()
        self._published = current.number
        edges: dict[str, list[EdgeName]] = defaultdict(list)
        for pair in sorted(current.pairs):
            for near, far in (pair, pair[::-1]):
                host, _, device = near.partition("/")
                edges[host].append(EdgeName(device, *_parts(far)))
        packed = {host: msgspec.msgpack.encode(tuple(several)) for host, several in edges.items()}
        return AssignedPeers(current.number, current.period_s, current.until_s, packed)


def _unpacked(terms: bytes, place: Iterable[str]) -> Floats:
    """Terms of Findings, in the order of these NICs; NaN of one that had none."""
    known = msgspec.msgpack.decode(terms, type=dict[str, float]) if terms else {}
    return np.array([known.get(name, math.nan) for name in place])


def _parts(name: str) -> tuple[str, str]:
    host, _, device = name.partition("/")
    return host, device
