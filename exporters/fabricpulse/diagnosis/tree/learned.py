"""What the coordinator tells of the fabric's tree. Pure."""

from collections import defaultdict
from typing import Any

import numpy as np

from fabricpulse.diagnosis.tree.confirmed import confirmed
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
# Of the pairs that are nearer than the tree says, where it is still believed. Of random simulated fabrics
# (`make bench NAME=map ARGS="--only tree_random"`) those that were placed wrongly without this had 6.5 % at least.
_MOST_CONTRADICTIONS = 0.05


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
    # Of the whole tree: a NIC that is not placed yet contradicts nothing that its pairs fit.
    wrong = tree.contradictions()
    found, tree = tree, confirmed(tree)
    nics, delays = tree.nics, tree.delays
    paired = len(np.unique(np.concatenate([delays.a, delays.b])))
    placed = int(np.count_nonzero((tree.of_kind(Kind.LEAF) >= 0) | (tree.of_kind(Kind.GROUP) >= 0)))
    sentences = missing(coverage, len(nics), slot_s)
    sigma_ns = round(tree.sigma_ns)
    if len(delays) and len(nics) >= LEAST_NICS and placed < _LEAST_PLACED * paired:
        found = tree = tree_of(nics, Delays.of((), nics))
        sentences.append(
            f"of {paired} NICs the delays place {placed}, too few to be believed: all may be below one leaf, a NIC has "
            f"too few peers below its own, or levels differ by less than the stamps' noise ({sigma_ns} ns)"
        )
    if wrong > _MOST_CONTRADICTIONS:
        found = tree = tree_of(nics, Delays.of((), nics))
        sentences.append(
            f"{wrong:.0%} of the pairs are nearer than the tree that fits best says: it is not believed; more pairs, "
            "or some minutes, will tell"
        )
    kinds = [
        was.kind
        for was, now in zip(found.groups, tree.groups, strict=True)
        if now.kind is Kind.GROUP and now.nics
    ]
    if either := kinds.count(Kind.GROUP):
        sentences.append(
            f"{either} groups may be leaves or machines, as all hosts of theirs are virtual: if each host has a "
            "machine of its own, set hosts_share_machines: false of the coordinator"
        )
    if several := len(kinds) - either:
        sentences.append(
            f"{several} groups may be several leaves: too few pairs within them are known, or a leaf may be nearer to "
            f"the next one than the stamps' noise ({sigma_ns} ns) shows"
        )
    parts = unseparated(tree)
    if parts:
        sentences.append(
            f"{parts} leaves may be parts of others: too few NICs of theirs are peers of one another"
        )
    return {
        "hosts": coverage.hosts,
        "edges": coverage.pairs,
        "unseparated": parts,
        "missing": sentences,
        **document_of(tree),
        # Of what was measured, also where no tree is found from it.
        "pairs": len(delays) if standing is None else standing,
        "temporary_pairs": kept,
        "wanted_pairs": wanted,
        "sigma_ns": sigma_ns,
    }


def unseparated(tree: FabricTree) -> int:
    """Leaves that no pairs hold apart from each other leaf of their pod."""
    n = len(tree.groups)
    leaf = tree.of_kind(Kind.LEAF)
    a, b = leaf[tree.delays.a], leaf[tree.delays.b]
    across = (a >= 0) & (b >= 0) & (a != b)
    low, high = np.minimum(a, b)[across], np.maximum(a, b)[across]
    pairs, which = np.unique(low * n + high, return_inverse=True)
    far = np.bincount(which, tree.score[across], len(pairs)) <= -ENOUGH
    x, y = np.divmod(pairs[far], n)
    parent = np.array([group.parent for group in tree.groups])
    beside_it = parent[x] == parent[y]
    apart = np.bincount(np.concatenate([x[beside_it], y[beside_it]]), minlength=n)
    leaves = [number for number, group in enumerate(tree.groups) if group.kind is Kind.LEAF and group.nics]
    beside: dict[int, int] = defaultdict(int)
    for number in leaves:
        beside[tree.groups[number].parent] += 1
    return sum(bool(apart[number] < beside[tree.groups[number].parent] - 1) for number in leaves)
