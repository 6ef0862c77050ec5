"""Switches that do not answer to probes with a limited time to live: told apart by what is beside them."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from fabricpulse.diagnosis.components import NO_HOP, SILENT_HOP, Nodes
from fabricpulse.diagnosis.flow_table import Flows


@dataclass(frozen=True)
class SilentSwitch:
    """One switch, or several that cannot be told apart. before, after : named switches around it, as nodes."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def named(hops: Nodes, nodes: int) -> tuple[Nodes, tuple[SilentSwitch, ...]]:
    """Puts a node of its own in the place of every silent hop.

    Two silent hops at one place of paths of one length are one switch if the hops before them lead to one named switch
    there, and the hops after them come from one: leaves of one pod have the same spines above them. Where all are
    silent (or only the leaves were declared) they are one: what lies between.
    hops : as of FlowTable, with SILENT_HOP. nodes : the first number that is free. Returns hops without SILENT_HOP, and
    the new switches, the first of them `nodes`.
    """
    hops = hops.copy()
    length = (hops != NO_HOP).sum(axis=1)
    found: list[SilentSwitch] = []
    for size in np.unique(length):
        these = np.flatnonzero(length == size)
        part = hops[these]
        # From the places as they were: a switch that has just got a number tells nothing of its neighbours.
        for place in range(int(size)):
            silent = part[:, place] == SILENT_HOP
            if not silent.any():
                continue
            before = part[:, place - 1] if place > 0 else np.full(len(these), SILENT_HOP, np.int32)
            after = part[:, place + 1] if place + 1 < size else np.full(len(these), SILENT_HOP, np.int32)
            kin = [_siblings(side[~silent], part[~silent, place], nodes) for side in (before, after)]
            near = [
                np.where(side[silent] >= 0, kin[k][side[silent]], -1)
                for k, side in enumerate((before, after))
            ]
            key = near[0].astype(np.int64) * (nodes + 1) + near[1]
            first = nodes + len(found)
            unique, inverse = np.unique(key, return_inverse=True)
            hops[these[silent], place] = first + inverse
            found += _described(before[silent], after[silent], inverse, len(unique))
    return hops, tuple(found)


def _siblings(side: Nodes, middle: Nodes, nodes: int) -> Flows:
    """Of each node the number of its group: nodes beside one named switch are of one. With no such switch at all, all
    nodes are of one group.
    """
    known = (side >= 0) & (middle >= 0)
    if not known.any():
        return np.zeros(nodes + 1, np.int64)
    pairs = np.unique(side[known].astype(np.int64) * nodes + middle[known])
    a, b = np.divmod(pairs, nodes)
    graph = csr_array((np.ones(len(pairs), np.int8), (a, nodes + b)), shape=(2 * nodes, 2 * nodes))
    return np.append(connected_components(graph, directed=False)[1][:nodes].astype(np.int64), -1)


def _described(before: Nodes, after: Nodes, group: Flows, groups: int) -> list[SilentSwitch]:
    def ends(side: Nodes) -> list[tuple[int, ...]]:
        sets: list[tuple[int, ...]] = [()] * groups
        pairs = np.unique(np.stack([group, side], axis=1)[side >= 0], axis=0)
        for number, node in pairs.tolist():
            sets[number] = (*sets[number], node)
        return sets

    return [SilentSwitch(*pair) for pair in zip(ends(before), ends(after), strict=True)]
