"""Switches that do not answer to probes with a limited time to live: identified by what is beside them.

The tier of a hop is its distance from the nearer end of its path: 0 for a leaf, 1 for a spine, 2 for a core switch, on
the way up and down alike. What is known of a silent hop is the groups of the switches beside it: switches of one tier
that are cabled to one switch are of one group. A spine of a pod has the group of the pod's leaves below it and that of
its plane's core switches above it, which no other spine has.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from fabricpulse.diagnosis.flows.components import NO_HOP, SILENT_HOP, Nodes
from fabricpulse.diagnosis.flows.hop_rows import Hops, with_room
from fabricpulse.diagnosis.flows.planes import Planes

Numbers = NDArray[np.int64]
# By (tier, its neighbour's): neighbours, ascending, and the group of each.
_Groups = dict[tuple[int, int], tuple[Numbers, Numbers]]

# Silent hops may be beside one another: those that became known tell more of the others.
_PASSES = 3
# Rows that are worked on at once: bounds memory.
_ROWS = 65_536
_BITS = 31
# Switches beside a silent one that its name has, at least and at most: it is a label of an alert.
_FEWEST_BESIDE, _MOST_BESIDE = 2, 4
_UNKNOWN = -1


@dataclass(frozen=True)
class SilentSwitch:
    """One switch, or several that cannot be distinguished. plane : that it is in. beside : named switches around it, as
    nodes. may_be : the silent switches, as nodes, one of which some hops of this one are, when it is not known which; a
    switch of its own if there are none.
    """

    plane: int
    beside: tuple[int, ...]
    may_be: tuple[int, ...] = ()


def named(hops: Hops, nodes: int, planes: Planes) -> tuple[Hops, tuple[SilentSwitch, ...]]:
    """Puts a node of its own in the place of every silent hop.

    Two silent hops are one switch if they are of one plane and tier and beside switches of the same groups. One of
    which less is known is the only one that it may be; of several that it may be, none (`SilentSwitch.may_be`). Where
    all of a tier are silent, or only the leaves were declared, those of a plane are one: what lies between.
    hops : as of FlowTable, with SILENT_HOP; is changed. nodes : the first number that is free. planes : of each path.
    Returns hops without SILENT_HOP, another array where numbers have become too large for it, and the new switches, the
    first of them `nodes`.
    """
    cables = _Cables(nodes)
    silent = []
    for start in range(0, len(hops), _ROWS):
        part = hops[start : start + _ROWS].astype(np.int32)
        cables.add(part)
        silent.append(start + np.flatnonzero((part == SILENT_HOP).any(axis=1)))
    silent = [rows for rows in silent if len(rows)]
    found = _Found(nodes)
    for _ in range(_PASSES):
        groups, more = cables.groups(), 0
        for rows in silent:
            hops, count = _named_some(hops, rows, planes, groups, found, cables)
            more += count
        if not more:
            break
    groups = cables.groups()
    for rows in silent:
        hops, _ = _named_some(hops, rows, planes, groups, found, None)
    final, plane, may_be = found.merged()
    beside: list[set[int]] = [set() for _ in may_be]
    for rows in silent:
        paths = hops[rows].astype(np.int32)
        new = paths >= nodes
        paths[new] = final[paths[new] - nodes]
        hops[rows] = paths
        _add_beside(beside, paths, nodes)
    return hops, tuple(
        SilentSwitch(of, tuple(sorted(each)), may)
        for of, each, may in zip(plane, beside, may_be, strict=True)
    )


def silent_names(
    silent: Sequence[SilentSwitch], fabric: Callable[[int], str], switches: Sequence[str]
) -> list[str]:
    """A name for each: that of the fabric of its plane, and of several there which switches are beside it, those first
    that few others are beside, as many as it takes and four at most. fabric : by plane. switches : names of nodes.
    """
    of_plane: dict[int, list[int]] = {}
    for at, switch in enumerate(silent):
        of_plane.setdefault(switch.plane, []).append(at)
    found = [fabric(switch.plane) for switch in silent]
    for several in (some for some in of_plane.values() if len(some) > 1):
        shared = Counter(node for at in several for node in silent[at].beside)
        beside = {
            at: [switches[node] for node in sorted(silent[at].beside, key=lambda n: (shared[n], switches[n]))]
            for at in several
        }
        used: set[str] = set()
        for at in several:
            base = found[at].removesuffix(")")
            base += ", " if base != found[at] else "("
            own = beside[at] or ["no switch that answers"]
            texts = (
                f"{base}beside {', '.join(own[:k])})"
                for k in range(min(_FEWEST_BESIDE, len(own)), min(_MOST_BESIDE, len(own)) + 1)
            )
            name = next((text for text in texts if text not in used), f"{base}no. {len(used) + 1})")
            used.add(name)
            found[at] = name
    return found


def _named_some(
    hops: Hops, rows: Numbers, planes: Planes, groups: _Groups, found: "_Found", cables: "_Cables | None"
) -> tuple[Hops, int]:
    """Names the silent hops of some rows of which both neighbours are known, all of them without `cables`, which learn
    what that tells. Returns all hops, and how many were named.
    """
    paths = hops[rows].astype(np.int32)
    length = (paths != NO_HOP).sum(axis=1)
    row, place = np.nonzero(paths == SILENT_HOP)
    tier, sides = _sides(paths, length, row, place, groups)
    if cables is not None:
        # At the top of a path both sides are of one tier, and cabled to this switch: one of them tells the group.
        top = (2 * place + 1 == length[row])[:, None]
        sides = np.where(top & (sides == _UNKNOWN), sides[:, ::-1], sides)
        known = (sides != _UNKNOWN).all(axis=1)
        row, place, tier, sides = row[known], place[known], tier[known], sides[known]
    if len(row):
        paths[row, place] = found.nodes_of(planes[rows[row]], tier, sides)
        hops = with_room(hops, int(paths.max()))
        hops[rows] = paths
        if cables is not None:
            cables.add(paths[np.unique(row)])
    return hops, len(row)


def _tier(length: Numbers, place: Numbers) -> Numbers:
    return np.asarray(np.minimum(place, length - 1 - place), np.int64)


class _Cables:
    """Which switch is beside which, by the tiers of both."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._pairs: dict[
            tuple[int, int], Numbers
        ] = {}  # (tier, its neighbour's): middle and side in one number

    def add(self, hops: Nodes) -> None:
        """Takes in the cables of these paths between a named switch and one that is named or has got a number."""
        length = (hops != NO_HOP).sum(axis=1)
        for place in range(hops.shape[1] - 1):
            near, far = hops[:, place].astype(np.int64), hops[:, place + 1].astype(np.int64)
            both = np.flatnonzero((near >= 0) & (far >= 0))
            for size in np.unique(length[both]).tolist():
                these = both[length[both] == size]
                a, b = min(place, size - 1 - place), min(place + 1, size - 2 - place)
                cables = np.divmod(np.unique((near[these] << _BITS) | far[these]), np.int64(1) << _BITS)
                self._take((a, b), *cables)
                self._take((b, a), *cables[::-1])

    def _take(self, tiers: tuple[int, int], middle: Numbers, side: Numbers) -> None:
        named = middle < self._nodes
        new = middle[named] << _BITS | side[named]
        old = self._pairs.get(tiers)
        self._pairs[tiers] = new if old is None else np.unique(np.concatenate([old, new]))

    def groups(self) -> _Groups:
        """By (tier, its neighbour's): neighbours, ascending, and the group of each, a number that it keeps."""
        return {tiers: _grouped(pairs) for tiers, pairs in self._pairs.items() if len(pairs)}


def _grouped(pairs: Numbers) -> tuple[Numbers, Numbers]:
    each = np.divmod(pairs, np.int64(1) << _BITS)
    middles, middle = np.unique(each[0], return_inverse=True)
    sides, side = np.unique(each[1], return_inverse=True)
    size = len(sides) + len(middles)
    graph = csr_array((np.ones(len(pairs), np.int8), (side, len(sides) + middle)), shape=(size, size))
    label = connected_components(graph, directed=False)[1][: len(sides)]
    # The smallest member stands for its group: others may join it later.
    least = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(least, label, sides)
    return sides, least[label]


def _sides(
    paths: Nodes,
    length: Numbers,
    row: Numbers,
    place: Numbers,
    groups: _Groups,
) -> tuple[Numbers, Numbers]:
    """Of each silent hop its tier, and two columns: the groups before and behind it, with the tier in the number;
    _UNKNOWN for a silent neighbour. Beside the end of a path is nothing, which is known.
    """
    size = length[row]
    tier = _tier(size, place)
    sides = np.zeros((len(row), 2), np.int64)
    for column, step in enumerate((-1, 1)):
        there = place + step
        inside = np.flatnonzero((there >= 0) & (there < size))
        node = paths[row[inside], there[inside]].astype(np.int64)
        near = _tier(size[inside], there[inside])
        group = np.full(len(inside), _UNKNOWN, np.int64)
        for mine, other in {*zip(tier[inside].tolist(), near.tolist(), strict=True)}:
            these = np.flatnonzero((tier[inside] == mine) & (near == other) & (node >= 0))
            base = (other + 1) << _BITS
            if (mine, other) not in groups:
                group[these] = base
                continue
            members, label = groups[mine, other]
            at = np.minimum(np.searchsorted(members, node[these]), len(members) - 1)
            group[these] = base + np.where(members[at] == node[these], label[at], node[these])
        sides[inside, column] = group
    return tier, sides


@dataclass
class _Found:
    """The silent switches so far. first : number of the first; keys : plane, tier and groups around, of each."""

    first: int
    keys: dict[tuple[int, int, frozenset[int]], int] = field(default_factory=dict)

    def nodes_of(self, planes: Planes, tier: Numbers, sides: Numbers) -> Numbers:
        """A number for each hop, the same for the same plane, tier and groups."""
        table = np.stack([planes.astype(np.int64), tier, sides.min(axis=1), sides.max(axis=1)], axis=1)
        unique, inverse = np.unique(table, axis=0, return_inverse=True)
        numbers = [
            self.keys.setdefault((p, t, frozenset({a, b} - {_UNKNOWN})), self.first + len(self.keys))
            for p, t, a, b in unique.tolist()
        ]
        return np.array(numbers, np.int64)[inverse.reshape(-1)]

    def merged(self) -> tuple[Numbers, list[int], list[tuple[int, ...]]]:
        """Final numbers of all; the plane of each of the final ones, and what it may be."""
        keys = list(self.keys)
        more = [
            [k for k, (p, t, g) in enumerate(keys) if (p, t) == (plane, tier) and g > groups]
            for plane, tier, groups in keys
        ]
        # What may itself be several is no answer to what another one may be.
        whole = [[k for k in candidates if not more[k]] for candidates in more]
        kept = [k for k in range(len(keys)) if len(whole[k]) != 1]
        number = {k: self.first + at for at, k in enumerate(kept)}
        final = [number[whole[k][0]] if len(whole[k]) == 1 else number[k] for k in range(len(keys))]
        may_be = [tuple(number[c] for c in whole[k]) for k in kept]
        return np.array(final, np.int64), [keys[k][0] for k in kept], may_be


def _add_beside(found: list[set[int]], paths: Nodes, nodes: int) -> None:
    for place in range(paths.shape[1] - 1):
        for silent, other in (
            (paths[:, place], paths[:, place + 1]),
            (paths[:, place + 1], paths[:, place]),
        ):
            there = (silent >= nodes) & (other >= 0) & (other < nodes)
            pairs = np.unique(silent[there].astype(np.int64) << _BITS | other[there])
            for pair in pairs.tolist():
                found[(pair >> _BITS) - nodes].add(pair & (1 << _BITS) - 1)
