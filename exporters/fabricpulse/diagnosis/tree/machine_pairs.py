"""Virtual machines that a single pair places on their machine: those of a machine of two, and others that answer one
of the rest alone. Pure.

One pair alone may be wrong for a reason that nobody thought of. But a fleet has many machines, and what the way over a
leaf adds to the way within one is the same for all of them: pairs that are nearer by just so much have one reason. A
pair that does not answer says nothing; whoever shares a machine with one shares it with all that are there.
"""

import numpy as np

from fabricpulse.diagnosis.tree.fabric_tree import FabricTree
from fabricpulse.diagnosis.tree.levels import NEARER_NS, Kind
from fabricpulse.diagnosis.tree.measured import Ints

# Machines that must be alike, and their share of all that are found.
_LEAST_ALIKE = 5
_MOST_ALIKE = 0.8


def with_machine_pairs(tree: FabricTree, group_of: Ints) -> Ints:
    """The places of all NICs, those among them that one pair places on a machine, which is as near as most machines
    are. group_of : places that two pairs tell, or more; both NICs must have their leaf by that.
    """
    ns = tree.without_terms()
    offset = np.array([group.offset_ns for group in tree.groups])
    parent = np.array([max(group.parent, 0) for group in tree.groups])
    machine = np.array([group.kind is Kind.MACHINE and group.parent > 0 for group in tree.groups])
    a, b = tree.delays.a, tree.delays.b
    # Pairs within a machine that two pairs do not tell of at least one of both.
    both = tree.group_of[a]
    inside = machine[both] & (both == tree.group_of[b]) & ((group_of[a] != both) | (group_of[b] != both))
    for end in (a, b):
        inside &= (group_of[end] == both) | (group_of[end] == parent[both])
    rows = np.flatnonzero(inside)
    number = both[rows]
    nearer = ns[rows] - offset[parent[number]]
    # One that is longer by a queue that is never empty is no sign of another machine.
    near = nearer < -NEARER_NS
    rows, number, nearer = rows[near], number[near], nearer[near]
    if not len(rows):
        return group_of
    certain = np.unique(group_of[machine[group_of]])
    every = np.concatenate([offset[certain] - offset[parent[certain]], nearer])
    usual = float(np.median(every))
    alike = np.abs(every - usual) <= tree.margin_ns
    if usual > -NEARER_NS or alike.sum() < _LEAST_ALIKE or alike.mean() < _MOST_ALIKE:
        return group_of
    found = group_of.copy()
    usually = alike[len(certain) :]
    for end in (a, b):
        found[end[rows[usually]]] = number[usually]
    return found
