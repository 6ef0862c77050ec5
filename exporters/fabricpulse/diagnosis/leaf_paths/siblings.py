"""Leaves that have fewer next hops than their siblings. Pure.

Two leaves are siblings if a chain of next hops that leaves share connects them: they are cabled to the same spines. A
leaf that shares none (each spine port answers by an address of its own) has those of its network that share none
either.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from fabricpulse.diagnosis.leaf_paths.found import State
from fabricpulse.diagnosis.leaf_paths.next_hops import Counts, NextHops

# How probable it may be that a live next hop has got none of a leaf's flows by chance: for a leaf that is named, and
# for one that counts as whole.
_CHANCE, _CHANCE_WHOLE = 1e-6, 1e-3
# Share of the other siblings that must have as many next hops; more where only the network says that they are siblings,
# for pods of one network may differ.
_MOST, _MOST_OF_NETWORK = 0.51, 0.75
_FEWEST_SIBLINGS = 2
# A next hop with less than this part of its share of the flows is none that merely does not answer.
_HIDDEN = 0.25
# The ports of a pair take ways of their own if a pair has this part of the ways that it would have by chance.
_OWN_WAYS = 0.75

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class LeafState:
    """leaf, hops, missing : nodes; hops has what it has, missing what most siblings have, as far as that is known by
    name. expected : next hops that most siblings have, 0 for unknown.
    """

    leaf: int
    state: State
    hops: tuple[int, ...]
    expected: int = 0
    siblings: int = 0
    missing: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Leaf:
    """flows, ways, pairs : as of NextHops, of known next hops; silent : flows of the others."""

    node: int
    nic: int
    hops: Numbers
    flows: Counts
    ways: Counts
    pairs: int
    silent: int

    def least_share(self, draws: str) -> float:
        """Of its next hops. draws : "flows" or "ways"."""
        count = getattr(self, draws)
        return float(count.min()) / float(count.sum()) if len(count) else 0.0

    def draws(self, draws: str) -> int:
        """How many there are."""
        return int(getattr(self, draws).sum())


def compared(found: NextHops, network_of: Callable[[int], str]) -> list[LeafState]:
    """All leaves. network_of : of a NIC (node), "" for unknown."""
    leaves = _leaves(found)
    answer: list[LeafState] = []
    for group, most in _groups(leaves, network_of):
        answer.extend(_compared(group, most))
    return answer


def _leaves(found: NextHops) -> list[_Leaf]:
    if not len(found.leaf):
        return []
    nodes, first = np.unique(found.leaf, return_index=True)
    ends = np.append(first[1:], len(found.leaf))
    leaves = []
    for node, start, end in zip(nodes.tolist(), first.tolist(), ends.tolist(), strict=True):
        hop, flows = found.hop[start:end].astype(np.int64), found.flows[start:end]
        known = hop >= 0
        leaves.append(
            _Leaf(
                *(node, int(found.nic[start]), hop[known], flows[known], found.ways[start:end][known]),
                *(found.pairs.get(node, 0), int(flows[~known].sum())),
            )
        )
    return leaves


def _groups(leaves: list[_Leaf], network_of: Callable[[int], str]) -> list[tuple[list[_Leaf], float]]:
    """Siblings, and the share of the others that a leaf is compared with."""
    if not leaves:
        return []
    hops, number = np.unique(np.concatenate([leaf.hops for leaf in leaves]), return_inverse=True)
    owner = np.repeat(np.arange(len(leaves)), [len(leaf.hops) for leaf in leaves])
    size = len(leaves) + len(hops)
    ones = np.ones(len(owner), np.int8)
    _, label = connected_components(csr_array((ones, (owner, len(leaves) + number)), (size, size)), False)
    label = label[: len(leaves)]
    together = np.bincount(label) > 1
    shared: dict[int, list[_Leaf]] = {}
    alone: dict[str, list[_Leaf]] = {}
    for leaf, group in zip(leaves, label.tolist(), strict=True):
        if together[group]:
            shared.setdefault(group, []).append(leaf)
        else:
            alone.setdefault(network_of(leaf.nic) or f"of {leaf.node}", []).append(leaf)
    return [(group, _MOST) for group in shared.values()] + [
        (group, _MOST_OF_NETWORK) for group in alone.values()
    ]


def _compared(group: list[_Leaf], most: float) -> list[LeafState]:
    others = len(group) - 1
    if others < _FEWEST_SIBLINGS:
        return [LeafState(leaf.node, State.UNKNOWN, tuple(leaf.hops.tolist())) for leaf in group]
    count = np.array([len(leaf.hops) for leaf in group])
    descending = np.sort(count)[::-1]
    wanted = max(_FEWEST_SIBLINGS, math.ceil(others * most))
    whole: dict[int, _Whole] = {}
    answer = []
    for leaf in group:
        own = len(leaf.hops)
        # The number that so many of the others have: without this leaf.
        expected = int(descending[wanted] if own >= descending[wanted - 1] else descending[wanted - 1])
        if expected not in whole:
            whole[expected] = _Whole.of([one for one in group if len(one.hops) >= max(expected, 1)], expected)
        state = _state(leaf, expected, whole[expected])
        missing = np.setdiff1d(whole[expected].hops, leaf.hops) if state is State.FEWER else leaf.hops[:0]
        answer.append(
            LeafState(
                *(leaf.node, state, tuple(leaf.hops.tolist()), expected, others, tuple(missing.tolist()))
            )
        )
    return answer


@dataclass(frozen=True)
class _Whole:
    """Of the leaves with as many next hops as is expected. hops : that most of them have. draws : "flows" where the
    ports of a pair take ways of their own; "ways" where they do not, as switches hash addresses only. share : the least
    that a next hop of such a leaf has of its draws, usually.
    """

    hops: Numbers
    draws: str
    share: float

    @classmethod
    def of(cls, leaves: list[_Leaf], expected: int) -> "_Whole":
        if not leaves or not expected:
            return cls(np.zeros(0, np.int64), "ways", 0.0)
        hops, count = np.unique(np.concatenate([leaf.hops for leaf in leaves]), return_counts=True)
        pairs = sum(leaf.pairs for leaf in leaves)
        flows, ways = (sum(leaf.draws(draws) for leaf in leaves) / pairs for draws in ("flows", "ways"))
        by_chance = expected * (1 - (1 - 1 / expected) ** flows)
        draws = "flows" if ways >= _OWN_WAYS * by_chance else "ways"
        share = float(np.median([leaf.least_share(draws) for leaf in leaves]))
        return cls(hops[2 * count > len(leaves)], draws, share)


def _state(leaf: _Leaf, expected: int, whole: _Whole) -> State:
    own, drawn = len(leaf.hops), leaf.draws(whole.draws)
    if not expected:
        return State.UNKNOWN  # no next hop of its siblings is known
    if own >= expected:
        # Of one more that has as many as the others, none would have been seen.
        chance = (own + 1) * (1 - 1 / (own + 1)) ** drawn
        return State.WHOLE if own and chance <= _CHANCE_WHOLE else State.UNKNOWN
    silent = leaf.silent / max(leaf.silent + leaf.draws("flows"), 1)
    hidden = silent / whole.share if whole.share else math.inf
    if hidden >= _HIDDEN and own + max(hidden, 1.0) >= expected:
        return State.UNKNOWN
    return State.FEWER if expected * (1 - whole.share) ** drawn <= _CHANCE else State.UNKNOWN
