"""The next hops of each leaf, as the traced paths show them. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.flows.components import Nodes
from fabricpulse.diagnosis.flows.flow_table import FlowTable

# Edges that are worked on at once: bounds memory.
_EDGES = 8192

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class NextHops:
    """Rows, ascending by leaf, then by next hop, as nodes of the table.

    hop : -1 for those that do not answer, or are not traced yet. flows : from this leaf over this next hop. ways :
    pairs of NICs that have such a flow. nic : of each row one of the NICs whose first switch this leaf is. pairs : by
    leaf, pairs of NICs that have a flow over a known next hop.
    """

    leaf: Nodes
    hop: Nodes
    flows: Counts
    ways: Counts
    nic: Nodes
    pairs: Mapping[int, int]


def next_hops(table: FlowTable) -> NextHops:
    """Of all leaves of which some path leads to another switch. A leaf is a switch that is the first of some path."""
    nodes = np.int64(table.first_switch + int(table.hops.max(initial=0)) + 2)
    edges = len(table.source)
    rows = [np.zeros((4, 0), np.int64)]
    pairs = Counter[int]()
    for start in range(0, edges if table.hops.shape[1] > 1 else 0, _EDGES):
        some = np.arange(start, min(start + _EDGES, edges))
        flows = np.arange(table.first[some[0]], table.first[some[-1] + 1])
        first, second = (_nodes(table, flows, column) for column in (0, 1))
        use = (first >= 0) & (first < table.first_unnamed) & (second >= 0) & (table.rate_of(flows) > 0)
        flows, first, second = flows[use], first[use], second[use]
        second = np.where(second < table.first_unnamed, second, -1)
        edge = table.edge_of(flows)
        # One row for each pair of NICs with the first two switches of some of its flows.
        way, at, count = np.unique(
            ((edge - start) * nodes + first) * nodes + second + 1, return_index=True, return_counts=True
        )
        row, one, number = np.unique(
            first[at] * nodes + second[at] + 1, return_index=True, return_inverse=True
        )
        columns = np.bincount(number, count, len(row)), np.bincount(number, minlength=len(row))
        rows.append(np.stack([row, *(c.astype(np.int64) for c in columns), table.source[edge[at][one]]]))
        known = np.unique(way[way % nodes > 0] // nodes) % nodes
        pairs.update(dict(zip(*(u.tolist() for u in np.unique(known, return_counts=True)), strict=True)))
    every, flow, ways, nic = np.concatenate(rows, axis=1)
    row, one, number = np.unique(every, return_index=True, return_inverse=True)
    return NextHops(
        (row // nodes).astype(np.int32),
        (row % nodes - 1).astype(np.int32),
        np.bincount(number, flow, len(row)).astype(np.int64),
        np.bincount(number, ways, len(row)).astype(np.int64),
        nic[one].astype(np.int32),
        pairs,
    )


def _nodes(table: FlowTable, flows: NDArray[np.int64], column: int) -> NDArray[np.int64]:
    """The switches of one hop, below 0 where there is none."""
    hops = table.hops[flows, column].astype(np.int64)
    return np.asarray(np.where(hops >= 0, hops + table.first_switch, hops), np.int64)
