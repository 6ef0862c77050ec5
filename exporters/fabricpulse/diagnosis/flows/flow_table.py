"""Every flow of the fleet, and the components that it crosses. A flow is one source port of a directed pair of NICs."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.flows.components import Codes, Kind, Nodes, code, codes, parts
from fabricpulse.diagnosis.flows.hop_rows import Hops

Floats = NDArray[np.float64]
Flows = NDArray[np.int64]

# Flows whose components are laid out at once: bounds the memory of `FlowTable.totals`.
_CHUNK = 65_536


@dataclass(frozen=True)
class FlowTable:
    """All flows, edge by edge. An edge is a directed pair of NICs; its flows have consecutive numbers, one a source
    port.

    source, destination : NICs of each edge, as nodes. host_of : the host of each NIC, as a node; -1 for a host that has
    only one NIC, which cannot be distinguished from it. main, swept : by edge, packets a second on the first and on
    each other flow when all is well, 0 where nothing is sent. first : the first flow of each edge, and at the end how
    many flows there are. hops : by flow, switches counted from 0; those that do not answer have got numbers too:
    `silent_hops.named`. first_switch : node of switch 0, behind all hosts and NICs. first_unnamed : of the first that
    does not answer. may_be : of each of those, the others one of which it is, as nodes, where it is not known which.
    """

    source: Nodes
    destination: Nodes
    host_of: Nodes
    main: NDArray[np.float32]
    swept: NDArray[np.float32]
    first: Nodes | Flows
    hops: Hops
    first_switch: int = 0
    first_unnamed: int = 1 << 30
    may_be: tuple[tuple[int, ...], ...] = ()
    _ports: int = field(init=False)

    def __post_init__(self) -> None:
        # Of every edge; 0 where hosts differ.
        edges, flows = len(self.source), len(self)
        ports = flows // edges if edges else 1
        same = flows == ports * edges and bool((np.diff(self.first) == ports).all())
        object.__setattr__(self, "_ports", ports if same else 0)

    def __len__(self) -> int:
        return int(self.first[-1])

    def abandon(self) -> None:
        """Drops all columns, of a table that nobody uses any more."""
        for column in fields(self):
            if isinstance(array := getattr(self, column.name), np.ndarray):
                object.__setattr__(self, column.name, np.zeros(0, array.dtype))

    def edge_of(self, flows: Flows | Nodes) -> Flows:
        """The number of each flow's edge."""
        if self._ports:
            return np.asarray(flows // self._ports, np.int64)
        return np.searchsorted(self.first, flows, side="right") - 1

    def ends_of(self, flows: Flows) -> tuple[Nodes, Nodes]:
        """The source and the destination of each flow."""
        edge = self.edge_of(flows)
        return self.source[edge], self.destination[edge]

    def rate_of(self, flows: Flows | Nodes) -> NDArray[np.float32]:
        """Packets a second on each flow when all is well."""
        edge = self.edge_of(flows)
        return np.where(self.first[edge] == flows, self.main[edge], self.swept[edge])

    def edge_load(self, edges: Flows) -> tuple[Floats, Floats]:
        """Packets a second on all flows of each edge, and on how many there are any."""
        main, swept, others = self.main[edges], self.swept[edges], np.diff(self.first)[edges] - 1
        rate = main.astype(float) + others * swept.astype(float)
        return rate, (main > 0) + others * (swept > 0).astype(float)

    def hops_of(self, flows: Flows | slice) -> Nodes:
        """The switches of each flow in order, as nodes; SILENT_HOP, and NO_HOP behind the last."""
        hops = self.hops[flows].astype(np.int32)
        hops[hops >= 0] += self.first_switch
        return hops

    def shared(self, flows: Flows) -> Iterator[Codes]:
        """Column by column the components of `flows` that other pairs may cross too; -1 where there is none."""
        source, destination = self.ends_of(flows)
        yield codes(Kind.HOST, self.host_of[source])
        yield codes(Kind.HOST, self.host_of[destination])
        yield codes(Kind.NIC, source)
        yield codes(Kind.NIC, destination)
        yield codes(Kind.NIC_TX, source)
        yield codes(Kind.NIC_RX, destination)
        hops = self.hops_of(flows)
        for column in hops.T:
            yield codes(Kind.SWITCH, column)
        for i in range(hops.shape[1] - 1):
            yield codes(Kind.LINK, hops[:, i], hops[:, i + 1])

    def crossing(self, flows: Flows, components: Collection[int]) -> NDArray[np.bool_]:
        """Which of `flows` cross one of these components."""
        found = np.zeros(len(flows), bool)
        shared = [component for component in components if parts(component)[0] < Kind.PAIR]
        for column in self.shared(flows) if shared else ():
            found |= np.isin(column, shared)
        for component in set(components).difference(shared):
            kind, a, b = parts(component)
            if kind is Kind.PAIR:
                source, destination = self.ends_of(flows)
                found |= (source == a) & (destination == b)
            else:
                found |= flows == component - code(kind, 0)
        return found

    def akin(self, component: int, hops: Nodes) -> NDArray[np.bool_]:
        """Which of the flows with these hops may cross a switch or link, for all that is known of silent hops; none for
        another kind, and where all hops are known.
        """
        kind, a, b = parts(component)
        if kind is Kind.SWITCH and a >= self.first_unnamed:
            return np.asarray(np.isin(hops, self._same(a)).any(axis=1))
        if kind is Kind.LINK and max(a, b) >= self.first_unnamed:
            near, far = np.isin(hops[:, :-1], self._same(a)), np.isin(hops[:, 1:], self._same(b))
            return np.asarray((near & far).any(axis=1))
        return np.zeros(len(hops), bool)

    def _same(self, node: int) -> list[int]:
        """The nodes that may be this one."""
        if node < self.first_unnamed or not self.may_be:
            return [node]
        own = {node, *self.may_be[node - self.first_unnamed]}
        return [*own, *(self.first_unnamed + k for k, may in enumerate(self.may_be) if own.intersection(may))]


@dataclass(frozen=True)
class Totals:
    """Of every shared component: packets a second and flows that cross it while all is well."""

    components: Codes  # ascending
    rate: Floats
    flows: Floats

    def of(self, components: Codes) -> tuple[Floats, Floats]:
        """Rate and flows of each; 0 for one that no flow crosses."""
        if not len(self.components):
            return np.zeros(len(components)), np.zeros(len(components))
        at = np.minimum(np.searchsorted(self.components, components), len(self.components) - 1)
        known = self.components[at] == components
        return np.where(known, self.rate[at], 0.0), np.where(known, self.flows[at], 0.0)


def totals(table: FlowTable) -> Totals:
    """Sums up the whole table. Takes seconds for millions of flows: once for each change of fleet or paths."""
    numbers = table.source, table.destination, table.host_of
    nodes = 1 + max(int(column.max(initial=0)) for column in numbers)
    nodes = max(nodes, 1 + table.first_switch + int(table.hops.max(initial=0)))
    sums: dict[Kind, tuple[Floats, Floats]] = {
        kind: (np.zeros(nodes), np.zeros(nodes)) for kind in Kind if kind < Kind.LINK
    }
    links = _Links()
    for start in range(0, len(table), _CHUNK):
        flows = np.arange(start, min(start + _CHUNK, len(table)))
        rate = table.rate_of(flows).astype(float)
        sent = rate > 0
        source, destination = table.ends_of(flows)
        hops = table.hops_of(slice(start, start + _CHUNK))
        for kind, columns in (
            (Kind.HOST, (table.host_of[source], table.host_of[destination])),
            (Kind.NIC, (source, destination)),
            (Kind.NIC_TX, (source,)),
            (Kind.NIC_RX, (destination,)),
            (Kind.SWITCH, tuple(hops.T)),
        ):
            for column in columns:
                there = np.flatnonzero(sent & (column >= 0))
                sums[kind][0][:] += np.bincount(column[there], rate[there], nodes)
                sums[kind][1][:] += np.bincount(column[there], minlength=nodes)
        for i in range(hops.shape[1] - 1):
            links.add(codes(Kind.LINK, hops[:, i], hops[:, i + 1]), rate)
    crossed = {kind: np.flatnonzero(flows).astype(np.int32) for kind, (_, flows) in sums.items()}
    found = [(codes(k, n), sums[k][0][n], sums[k][1][n]) for k, n in crossed.items()]
    return Totals(*(np.concatenate(column) for column in zip(*found, links.summed(), strict=True)))


class _Links:
    """Sums of links: too many pairs of switches are none to have a number for each."""

    def __init__(self) -> None:
        self._parts: list[tuple[Codes, Floats, Floats]] = []

    def add(self, links: Codes, rate: Floats) -> None:
        there = np.flatnonzero((links >= 0) & (rate > 0))
        self._parts.append(_summed(links[there], rate[there], np.ones(len(there))))
        if len(self._parts) > 64:
            self._parts = [self.summed()]

    def summed(self) -> tuple[Codes, Floats, Floats]:
        if not self._parts:
            return np.empty(0, np.int64), np.empty(0), np.empty(0)
        return _summed(*(np.concatenate(column) for column in zip(*self._parts, strict=True)))


def _summed(components: Codes, rate: Floats, flows: Floats) -> tuple[Codes, Floats, Floats]:
    unique, inverse = np.unique(components, return_inverse=True)
    rates, counts = np.bincount(inverse, rate, len(unique)), np.bincount(inverse, flows, len(unique))
    return unique, rates.astype(float), counts.astype(float)
