"""The part of a tree that is published: places that more than one pair holds, and leaves that are no more than one.
Pure.

A single pair may be wrong for a reason that nobody thought of. So two are asked for, and both must be with NICs that
are published there themselves: of a leaf of three of which two pairs are known nothing is published, as each is a
single one.

The smallest groups that pairs show need not be leaves: those of a pod may not have been distinguished yet, or be nearer
to one another than what a pair can show. Then what is published is a group.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from fabricpulse.diagnosis.tree.fabric_tree import FabricTree, Group, common
from fabricpulse.diagnosis.tree.levels import Kind
from fabricpulse.diagnosis.tree.machine_pairs import with_machine_pairs
from fabricpulse.diagnosis.tree.measured import Ints

_LEAST_PAIRS = 2
# Pairs that hold a NIC, for each one that speaks for another group.
_CONTESTED = 3
# Pairs inside a group, for each of its parts (NICs, or groups in it), none of them nearer than the others, before it is
# taken for undivided: two leaves of it would have been met with a probability of 99.7 %. Of few parts this share of all
# pairs of them: some never answer.
UNDIVIDED = 3
_SMALL_SHARE = 0.8
_SMALL = 2 * UNDIVIDED / _SMALL_SHARE + 1  # NICs, from where on that is more
# A leaf and its pod are farther apart, both ways: by a switch of 300 ns and two transceivers at least.
_NEXT_LEVEL_NS = 1000.0


def confirmed(tree: FabricTree) -> FabricTree:
    """The tree without the places that a single pair tells: those NICs are in the whole. On a machine of two hosts no
    two pairs can be: such a NIC is published below its leaf, where two pairs fit that, and on its machine where others
    are alike (machine_pairs.py). A group may end without any NIC. What may be several leaves is of kind GROUP.
    """
    group_of = tree.group_of.copy()
    machine = np.array([group.kind is Kind.MACHINE and group.parent > 0 for group in tree.groups])
    parent = np.array([max(group.parent, 0) for group in tree.groups])
    unsure = (group_of > 0) & ~_held(tree, group_of)
    while unsure.any():
        group_of[unsure] = np.where(machine[group_of[unsure]], parent[group_of[unsure]], 0)
        unsure = (group_of > 0) & ~_held(tree, group_of)
    group_of = with_machine_pairs(tree, group_of)
    members: list[list[int]] = [[] for _ in tree.groups]
    for nic, number in enumerate(group_of.tolist()):
        for above in tree.above(number):
            members[above].append(nic)
    members[0] = list(tree.groups[0].nics)
    groups = tuple(replace(group, nics=tuple(nics)) for group, nics in zip(tree.groups, members, strict=True))
    certain = replace(tree, groups=groups, group_of=group_of)
    return replace(certain, groups=_named(certain))


def undivided(tree: FabricTree) -> NDArray[np.bool_]:
    """Of each group whether its pairs show that there are no groups in it but those that are known."""
    n = len(tree.groups)
    if tree.margin_ns > _NEXT_LEVEL_NS:
        return np.zeros(n, bool)
    fit = np.abs(tree.residuals()) < tree.margin_ns
    both, x, y = (column[fit] for column in parts_of(tree))
    pairs = np.unique(np.stack([both, np.minimum(x, y), np.maximum(x, y)]), axis=1)
    measured = np.bincount(pairs[0], minlength=n)
    found = np.zeros(n, bool)
    parts = np.bincount(tree.group_of, minlength=n)
    for group in tree.groups[1:]:
        parts[group.parent] += bool(group.nics)
    for number, group in enumerate(tree.groups):
        size = int(parts[number])
        possible = size * (size - 1) // 2
        if len(group.nics) == size < _SMALL:
            # NICs of one host are no pair.
            several = Counter(tree.nics[nic].host for nic in group.nics).values()
            possible -= sum(count * (count - 1) // 2 for count in several)
        found[number] = measured[number] >= min(UNDIVIDED * size, math.ceil(_SMALL_SHARE * possible))
    return found


def parts_of(tree: FabricTree) -> tuple[Ints, Ints, Ints]:
    """Of each pair the smallest group that holds both NICs, and of either end the part of it: the group below, or
    -1 - its number of a NIC that is in none.
    """
    both = tree.separate()
    levels, depth = _levels(tree.groups, tree.group_of)
    x, y = (
        np.where((part := levels[depth[both] + 1, end]) > 0, part, -1 - end)
        for end in (tree.delays.a, tree.delays.b)
    )
    return both, x, y


def _named(tree: FabricTree) -> tuple[Group, ...]:
    """The groups, those that may be more than one leaf as groups; what holds none but such is no pod either."""
    whole = undivided(tree)
    kinds = [group.kind for group in tree.groups]
    for number, group in enumerate(tree.groups):
        if group.kind is Kind.LEAF and not whole[number]:
            kinds[number] = Kind.GROUP
    leaves = {group.parent for group, kind in zip(tree.groups, kinds, strict=True) if kind is Kind.LEAF}
    for number, group in enumerate(tree.groups):
        # Below one that is no nearer than the whole (branches.py) leaves may be in several pods.
        rest = group.parent >= 0 and group.offset_ns == tree.groups[group.parent].offset_ns
        if group.kind is Kind.POD and (number not in leaves or (rest and not whole[number])):
            kinds[number] = Kind.GROUP
    return tuple(replace(group, kind=kind) for group, kind in zip(tree.groups, kinds, strict=True))


def _held(tree: FabricTree, group_of: Ints) -> NDArray[np.bool_]:
    """Of each NIC whether enough of its pairs are of its group, and few speak for another one, whether most of its
    pairs are no farther than their class, and whether pairs that fit the class of its group hang together there.
    """
    n, ends = len(tree.nics), (tree.delays.a, tree.delays.b)
    ns, limit = tree.without_terms(), tree.limits_ns()
    fits = np.array([group.offset_ns for group in tree.groups]) + tree.margin_ns
    levels, depth = _levels(tree.groups, group_of)
    both = common(tree.groups, group_of, tree.delays)
    count, rivals = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for near, far in (ends, ends[::-1]):
        np.add.at(count, near[(both > 0) & (both == group_of[near]) & (ns < limit[both])], 1)
        # Below what holds both, the group that the other end is in.
        other = levels[depth[both] + 1, far]
        use = (other > 0) & (both != group_of[far]) & (ns < limit[other])
        which, votes = np.unique(near[use] * len(limit) + other[use], return_counts=True)
        np.maximum.at(rivals, which // len(limit), votes)
    held: NDArray[np.bool_] = count - _CONTESTED * rivals >= _LEAST_PAIRS
    # Queues that are never empty are the exception: where most pairs are farther than their class the term is wrong.
    farther = ns > fits[both]
    far = np.bincount(np.concatenate([end[farther] for end in ends]), minlength=n)
    held &= 2 * far <= np.bincount(np.concatenate(ends), minlength=n)
    # Two leaves between which all pairs are farther are no group, though each by itself fits: not all of such pairs are
    # congested.
    for at in levels[1:-1]:
        here = at[ends[0]]
        use = (here > 0) & (here == at[ends[1]]) & (ns < fits[here])
        graph = csr_array((np.ones(int(use.sum())), (ends[0][use], ends[1][use])), shape=(n, n))
        _, part = connected_components(graph, directed=False)
        _, first, which, size = np.unique(part, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(size, kind="stable")
        largest = np.zeros(len(limit), np.int64)
        largest[at[first[order]]] = order
        held &= (at == 0) | (which == largest[at])
    return held


def _levels(groups: Sequence[Group], group_of: Ints) -> tuple[Ints, Ints]:
    """By depth and NIC the group above it that is so deep in the tree, 0 for none; the last row is 0. Of each group how
    deep it is, the whole 0.
    """
    depth = np.zeros(len(groups), np.int64)
    for number, group in enumerate(groups):
        depth[number] = depth[group.parent] + 1 if group.parent >= 0 else 0
    parent = np.array([max(group.parent, 0) for group in groups])
    levels = np.zeros((int(depth.max()) + 2, len(group_of)), np.int64)
    at = group_of.copy()
    for level in range(len(levels) - 2, 0, -1):
        deep = depth[at] == level
        levels[level, deep] = at[deep]
        at = np.where(deep, parent[at], at)
    return levels, depth
