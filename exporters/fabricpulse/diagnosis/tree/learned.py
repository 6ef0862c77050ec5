"""What the coordinator tells of the fabric's tree. Pure."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from fabricpulse.diagnosis.tree.coverage import Coverage
from fabricpulse.diagnosis.tree.documents import document_of
from fabricpulse.diagnosis.tree.fabric_tree import FabricTree, tree_of
from fabricpulse.diagnosis.tree.grouping import ENOUGH
from fabricpulse.diagnosis.tree.levels import Kind
from fabricpulse.diagnosis.tree.measured import Delays
from fabricpulse.diagnosis.tree.missing import LEAST_NICS, missing

# Of the NICs that have pairs: where fewer are placed, too few pairs are near for the terms to be right. Of 54 simulated
# fabrics with ten peers a NIC seven had a leaf with a NIC of another one; all of them placed 55 % at most.
_LEAST_PLACED = 0.6
# Of the pairs that are nearer than the tree says, where it is still believed. Of simulated trees that were right 5.7 %
# at most, of those with a leaf that was none 12 % at least.
_MOST_CONTRADICTIONS = 0.08


def topology_document(
    tree: FabricTree,
    coverage: Coverage,
    slot_s: float,
    standing: int | None = None,
    kept: int = 0,
    wanted: int = 0,
) -> dict[str, Any]:
    """document_of, with `hosts` that tell of their edges, `edges` (pairs) that they have, `unseparated` and `missing`.
    slot_s : of the minima. standing : edges whose delay is known, all pairs of the tree by default. kept : pairs that
    temporary peers have measured. wanted : pairs that they are to measure next.
    """
    tree = confirmed(tree)
    nics, delays = tree.nics, tree.delays
    paired = len(np.unique(np.concatenate([delays.a, delays.b])))
    placed = int(np.count_nonzero((tree.of_kind(Kind.LEAF) >= 0) | (tree.of_kind(Kind.GROUP) >= 0)))
    told = missing(coverage, len(nics), slot_s)
    sigma_ns = round(tree.sigma_ns)
    if len(delays) and len(nics) >= LEAST_NICS and placed < _LEAST_PLACED * paired:
        tree = tree_of(nics, Delays.of((), nics))
        told.append(
            f"of {paired} NICs the delays place {placed}, too few to be believed: all may be below one leaf, a NIC has "
            f"too few peers below its own, or levels differ by less than the stamps' noise ({sigma_ns} ns)"
        )
    wrong = tree.contradictions()
    if wrong > _MOST_CONTRADICTIONS:
        tree = tree_of(nics, Delays.of((), nics))
        told.append(
            f"{wrong:.0%} of the pairs are nearer than the tree that fits best says: it is not believed; more pairs, "
            "or some minutes, will tell"
        )
    either = sum(group.kind is Kind.GROUP for group in tree.groups)
    if either:
        told.append(
            f"{either} groups may be leaves or machines, as all hosts of theirs are virtual: if each host has a "
            "machine of its own, set hosts_share_machines: false of the coordinator"
        )
    parts = unseparated(tree)
    if parts:
        told.append(f"{parts} leaves may be parts of others: too few NICs of theirs are peers of one another")
    return {
        "hosts": coverage.hosts,
        "edges": coverage.pairs,
        "unseparated": parts,
        "missing": told,
        **document_of(tree),
        # Of what was measured, also where no tree is told from it.
        "pairs": len(delays) if standing is None else standing,
        "temporary_pairs": kept,
        "wanted_pairs": wanted,
        "sigma_ns": sigma_ns,
    }


def confirmed(tree: FabricTree) -> FabricTree:
    """The tree without the places that a single pair tells, which may be wrong for a reason that nobody thought of. On
    a machine of two hosts no two pairs can be: such a NIC is told below its leaf, where two pairs fit that.
    """
    unsure = (tree.group_of > 0) & (tree.nats < 2 * ENOUGH)
    if not unsure.any():
        return tree
    common, fits = tree.separate(), np.abs(tree.residuals()) < tree.margin_ns
    group_of = tree.group_of.copy()
    out: dict[int, set[int]] = defaultdict(set)
    for number in np.unique(tree.group_of[unsure]).tolist():
        nics = np.flatnonzero(unsure & (tree.group_of == number))
        parent, count = tree.groups[number].parent, np.zeros(len(tree.nics), np.int64)
        if tree.groups[number].kind is Kind.MACHINE and parent > 0:
            for end in (tree.delays.a, tree.delays.b):
                np.add.at(count, end[(common == parent) & fits], 1)
        group_of[nics] = np.where(count[nics] >= 2, parent, 0)
        for nic in nics.tolist():
            out[number].add(nic)
            if not group_of[nic]:
                for above in tree.above(parent):
                    out[above].add(nic)
    groups = tuple(
        replace(group, nics=tuple(nic for nic in group.nics if not number or nic not in out[number]))
        for number, group in enumerate(tree.groups)
    )
    return replace(tree, groups=groups, group_of=group_of)


def unseparated(tree: FabricTree) -> int:
    """Leaves that no pairs hold apart from each other leaf of their pod."""
    between: dict[tuple[int, int], float] = defaultdict(float)
    leaf = tree.of_kind(Kind.LEAF)
    a, b = leaf[tree.delays.a], leaf[tree.delays.b]
    across = (a >= 0) & (b >= 0) & (a != b)
    for x, y, nats in zip(a[across].tolist(), b[across].tolist(), tree.score[across].tolist(), strict=True):
        between[min(x, y), max(x, y)] += nats
    apart: dict[int, int] = defaultdict(int)
    for (x, y), nats in between.items():
        if nats <= -ENOUGH and tree.groups[x].parent == tree.groups[y].parent:
            apart[x] += 1
            apart[y] += 1
    leaves = [number for number, group in enumerate(tree.groups) if group.kind is Kind.LEAF]
    beside: dict[int, int] = defaultdict(int)
    for number in leaves:
        beside[tree.groups[number].parent] += 1
    return sum(apart[number] < beside[tree.groups[number].parent] - 1 for number in leaves)
