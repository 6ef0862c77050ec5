"""NICs that belong together, from pairs that speak for it and pairs that speak against it. Pure.

Correlation clustering, greedy: the two groups whose pairs together speak most for it are joined first. A single wrong
pair joins two groups only where no other pair between them has been measured.
"""

import heapq
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from fabricpulse.diagnosis.tree.measured import Floats, Ints

# Nats that pairs between two groups must have together before these are joined, and before they are held apart.
ENOUGH = 6.0
_PASSES = 4
_TIE = 0.01
# Pairs whose common neighbours are counted at once: bounds memory.
_AT_ONCE = 1 << 14


def grouped(n: int, a: Ints, b: Ints, score: Floats) -> Ints:
    """The group of each of n NICs, by number of one of its NICs, or -1 - its own for one that is alone. score : of each
    pair, nats for being together.

    Of pairs that speak alike those come first whose NICs have many neighbours in common, and those last that might be
    the only bridge between two groups. A pair that other pairs of its NICs deny is left out, and all is done again.
    """
    evidence = score + _TIE * _in_common(n, a, b, score)
    groups = np.zeros(0, np.int64)
    for _ in range(_PASSES):
        groups = settled(joined(n, a, b, evidence), a, b, score)
        near = np.flatnonzero(evidence > 0)
        denied = near[_denied(groups, a, b, score, near)]
        if not len(denied):
            break
        evidence[denied] = 0.0
    return groups


def _in_common(n: int, a: Ints, b: Ints, score: Floats) -> Floats:
    """Of each pair that speaks for being together the number of NICs that are near to both, 0 of the others."""
    near = np.flatnonzero(score > 0)
    ends = np.concatenate([a[near], b[near]]), np.concatenate([b[near], a[near]])
    graph = csr_array((np.ones(len(ends[0]), np.int32), ends), shape=(n, n))
    count = np.zeros(len(a))
    for start in range(0, len(near), _AT_ONCE):
        rows = near[start : start + _AT_ONCE]
        count[rows] = graph[a[rows]].multiply(graph[b[rows]]).sum(axis=1)
    return count


def _denied(groups: Ints, a: Ints, b: Ints, score: Floats, these: Ints) -> NDArray[np.bool_]:
    """Which of these pairs have a NIC that has more pairs against the other one's group than for it."""
    _, group = np.unique(groups, return_inverse=True)
    several = int(group.max(initial=0)) + 1
    ends = (a, b), (b, a)
    asked, which = np.unique(
        np.concatenate([near[these] * several + group[far[these]] for near, far in ends]), return_inverse=True
    )
    # Few of a large fleet's pairs are of a NIC and a group that are asked for.
    places, nats = [], []
    for near, far in ends:
        key = near * several
        key += group[far]
        at = np.searchsorted(asked, key)
        there = np.flatnonzero(asked[np.minimum(at, len(asked) - 1)] == key) if len(asked) else these
        places.append(at[there])
        nats.append(score[there])
    total = np.bincount(np.concatenate(places), np.concatenate(nats), len(asked))[which]
    found: NDArray[np.bool_] = (total[: len(these)] < 0) | (total[len(these) :] < 0)
    return found


def joined(n: int, a: Ints, b: Ints, score: Floats) -> Ints:
    """The group of each of n NICs, by number of one of its NICs. score : of each pair, nats for being together."""
    use = np.flatnonzero((score != 0) & _connected(n, a, b, score))
    between: list[dict[int, float]] = [{} for _ in range(n)]
    parent = list(range(n))
    numbers = (
        parent.copy()
    )  # the same objects: another one as the key of each pair would be most of the memory
    for start in range(0, len(use), _AT_ONCE):
        rows = use[start : start + _AT_ONCE]
        for one, other, nats in zip(a[rows].tolist(), b[rows].tolist(), score[rows].tolist(), strict=True):
            x, y = numbers[one], numbers[other]
            between[x][y] = between[y][x] = between[x].get(y, 0.0) + nats
    heap = [(-nats, x, y) for x in numbers for y, nats in between[x].items() if x < y and nats >= ENOUGH]
    heapq.heapify(heap)
    while heap:
        negative, x, y = heapq.heappop(heap)
        if parent[x] != x or parent[y] != y or between[x].get(y) != -negative:
            continue  # has changed since
        if len(between[x]) < len(between[y]):
            x, y = y, x
        parent[y] = x
        del between[x][y]
        for z, nats in between[y].items():
            if z == x:
                continue
            del between[z][y]
            both = between[x].get(z, 0.0) + nats
            between[x][z] = between[z][x] = both
            if both >= ENOUGH:
                heapq.heappush(heap, (-both, min(x, z), max(x, z)))
        between[y] = {}
    for x in range(n):
        root = x
        while parent[root] != root:
            root = parent[root]
        parent[x] = root
    return np.array(parent, np.int64)


def _connected(n: int, a: Ints, b: Ints, score: Floats) -> NDArray[np.bool_]:
    """Of each pair whether its NICs could come together at all, over pairs that speak for it. At the top of a large
    fleet nearly none can, and those that cannot would be most of the memory.
    """
    near = score > 0
    graph = csr_array((np.ones(np.count_nonzero(near), np.int8), (a[near], b[near])), shape=(n, n))
    _, part = connected_components(graph, directed=False)
    found: NDArray[np.bool_] = part[a] == part[b]
    return found


def settled(groups: Ints, a: Ints, b: Ints, score: Floats, rounds: int = 3) -> Ints:
    """The same groups after each NIC has gone where its own pairs speak for, one that none speak for to itself."""
    groups = groups.copy()
    for _ in range(rounds):
        moved = 0
        votes: dict[int, dict[int, float]] = defaultdict(dict)
        own = groups[a] == groups[b]
        # Only who has a pair that contradicts its group can be better off elsewhere.
        doubtful = np.unique(
            np.concatenate([v[own & (score < 0)] for v in (a, b)] + [v[~own & (score > 0)] for v in (a, b)])
        )
        marked = np.zeros(len(groups), bool)
        marked[doubtful] = True
        for near, far in ((a, b), (b, a)):
            use = marked[near]
            for x, g, nats in zip(
                near[use].tolist(), groups[far[use]].tolist(), score[use].tolist(), strict=True
            ):
                votes[x][g] = votes[x].get(g, 0.0) + nats
        for x, of in votes.items():
            here = of.get(int(groups[x]), 0.0)
            best = max(of, key=lambda g: of[g])
            if of[best] >= ENOUGH and of[best] > here:
                groups[x], moved = best, moved + 1
            elif here < 0:
                groups[x], moved = -1 - x, moved + 1
        if not moved:
            break
    return groups


def margins(groups: Ints, a: Ints, b: Ints, score: Floats) -> Floats:
    """Nats by which each NIC's own pairs prefer its group to the next best one."""
    here = np.zeros(len(groups))
    own = groups[a] == groups[b]
    for near in (a, b):
        np.add.at(here, near[own], score[own])
    rivals: dict[tuple[int, int], float] = {}
    other = ~own & (score > 0)
    for near, far in ((a, b), (b, a)):
        for x, g, nats in zip(
            near[other].tolist(), groups[far[other]].tolist(), score[other].tolist(), strict=True
        ):
            rivals[x, g] = rivals.get((x, g), 0.0) + nats
    best = np.zeros(len(groups))
    for (x, _), nats in rivals.items():
        best[x] = max(best[x], nats)
    return here - best
