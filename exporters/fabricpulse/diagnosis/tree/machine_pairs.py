"""Machines of two virtual machines, which a single pair tells. Pure.

One pair alone may be wrong for a reason that nobody thought of. But a fleet has many machines, and what the way over a
leaf adds to the way within one is the same for all of them: pairs that are nearer by just so much have one reason.
"""

import numpy as np

from fabricpulse.diagnosis.tree.fabric_tree import FabricTree
from fabricpulse.diagnosis.tree.levels import NEARER_NS, Kind
from fabricpulse.diagnosis.tree.measured import Ints

# Machines that must be alike, and their share of all that are found.
_LEAST_ALIKE = 5
_MOST_ALIKE = 0.8


def with_machine_pairs(tree: FabricTree, group_of: Ints) -> Ints:
    """The places of all NICs, those of machines of two among them that are as near as most machines are. group_of :
    places that two pairs tell, or more; both NICs must have their leaf by that.
    """
    ns = tree.without_terms()
    key = tree.delays.a * len(tree.nics) + tree.delays.b
    order = np.argsort(key)
    nearer: list[float] = []
    single: list[tuple[int, tuple[int, ...], float]] = []
    for number, group in enumerate(tree.groups):
        if group.kind is not Kind.MACHINE or group.parent <= 0:
            continue
        leaf = tree.groups[group.parent].offset_ns
        nics = tuple(sorted(group.nics))
        if any(group_of[nic] == number for nic in nics):
            nearer.append(group.offset_ns - leaf)
        elif len(nics) == 2 and all(group_of[nic] == group.parent for nic in nics):
            wanted = nics[0] * len(tree.nics) + nics[1]
            at = int(np.searchsorted(key, wanted, sorter=order))
            if at < len(key) and key[order[at]] == wanted:
                single.append((number, nics, float(ns[order[at]]) - leaf))
                nearer.append(single[-1][2])
    if not single:
        return group_of
    usual = float(np.median(nearer))
    alike = np.abs(np.array(nearer) - usual) <= tree.margin_ns
    if usual > -NEARER_NS or alike.sum() < _LEAST_ALIKE or alike.mean() < _MOST_ALIKE:
        return group_of
    found = group_of.copy()
    for number, nics, value in single:
        if abs(value - usual) <= tree.margin_ns:
            found[list(nics)] = number
    return found
