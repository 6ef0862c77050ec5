"""What kind of place a group is: machine, leaf, pod. Pure.

Delays give groups within groups, and no names for them. A machine holds a handful of virtual machines and nothing else;
the smallest group that may be none is a leaf, what holds leaves a pod.
"""

import enum
from collections.abc import Sequence
from statistics import median

from fabricpulse.diagnosis.tree.measured import NicFacts

# Virtual machines on one machine, at most: one each for eight accelerators.
MOST_ON_MACHINE = 8
# The way over a leaf, both ways, is longer than that within a machine by a switch and four transceivers.
NEARER_NS = 500.0
# Over a leaf is one switch, over a spine two more and longer cables: what a leaf adds to a machine is less than this
# share of what a pod adds to a leaf.
_MOST_OF_NEXT = 0.5


class Kind(enum.StrEnum):
    """Of a group. FABRIC : the whole, and what holds pods. GROUP : NICs near one another, machine or leaf."""

    MACHINE = "machine"
    LEAF = "leaf"
    POD = "pod"
    FABRIC = "fabric"
    GROUP = "group"


def kinds_of(
    parents: Sequence[int],
    offsets: Sequence[float],
    members: Sequence[Sequence[int]],
    nics: Sequence[NicFacts],
) -> list[Kind]:
    """Of each group, as in FabricTree."""
    children: list[list[int]] = [[] for _ in parents]
    for number, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(number)
    able = [not children[g] and _may_be_machine([nics[n] for n in members[g]]) for g in range(len(parents))]
    kinds = [Kind.FABRIC] * len(parents)
    machines = _machines(parents, offsets, children, able)
    for number in range(len(parents) - 1, 0, -1):
        below = {kinds[child] for child in children[number]}
        if number in machines:
            kinds[number] = Kind.MACHINE
        elif able[number]:
            # Beside larger leaves it is one; where most groups are so small it may be either. One larger group
            # among them may be several machines that have not been distinguished.
            beside = children[parents[number]]
            small = sum(len(members[other]) for other in beside if able[other])
            either = 2 * small >= sum(len(members[other]) for other in beside)
            kinds[number] = Kind.GROUP if either else Kind.LEAF
        elif below <= {Kind.MACHINE}:
            kinds[number] = Kind.LEAF
        elif below <= {Kind.LEAF, Kind.MACHINE}:
            kinds[number] = Kind.POD
    return kinds


def _may_be_machine(group: Sequence[NicFacts]) -> bool:
    hosts = {nic.host: nic.virtual for nic in group}
    return len(hosts) <= MOST_ON_MACHINE and all(hosts.values())


def _machines(
    parents: Sequence[int],
    offsets: Sequence[float],
    children: Sequence[Sequence[int]],
    able: Sequence[bool],
) -> set[int]:
    """Small groups of virtual machines inside a leaf: nearer than leaves beside them, or within what is no machine."""
    inside = [number for number in range(1, len(parents)) if able[number] and parents[number] > 0]

    def gap(number: int) -> float:
        return offsets[parents[number]] - offsets[number]

    # Leaves in a pod look like machines in a leaf, but for this. The middle ones tell for all: one may be mistaken, and
    # of two groups alone the sum is known.
    above = {parents[number] for number in inside}
    if not inside or median(map(gap, inside)) > _MOST_OF_NEXT * median(map(gap, above)):
        return set()
    found = set()
    for number in inside:
        leaves = [offsets[child] for child in children[parents[number]] if not able[child]]
        if not leaves or offsets[number] < min(leaves) - NEARER_NS:
            found.add(number)
    return found
