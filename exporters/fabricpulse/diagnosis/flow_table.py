"""Every flow of the fleet, and the components that it crosses. A flow is one source port of a directed pair of NICs."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.components import Codes, Kind, Nodes, codes, parts

Floats = NDArray[np.float64]
Flows = NDArray[np.int64]

# Flows whose components are laid out at once: bounds the memory of `FlowTable.totals`.
_CHUNK = 250_000


@dataclass(frozen=True)
class FlowTable:
    """Columns of all flows.

    source, destination : NICs, as nodes. host_of : the host of each NIC, as a node; -1 for a host that has only one
    NIC, which cannot be told from it. rate : packets a second when all is well, 0 where nothing is sent. edge : flows
    of one pair have one number; numbers ascend. hops : switches in order, NO_HOP behind the last; those that do not
    answer have got nodes too, from first_unnamed: `silent_hops.named`. may_be : of each of those, the others one of
    which it is, where it is not known which.
    """

    source: Nodes
    destination: Nodes
    host_of: Nodes
    rate: NDArray[np.float32]
    edge: Nodes
    hops: Nodes
    first_unnamed: int = 1 << 30
    may_be: tuple[tuple[int, ...], ...] = ()
    edge_rate: Floats = field(init=False)
    edge_flows: Floats = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge_rate", np.bincount(self.edge, weights=self.rate))
        object.__setattr__(self, "edge_flows", np.bincount(self.edge, weights=self.rate > 0))

    def __len__(self) -> int:
        return len(self.source)

    def shared(self, flows: Flows) -> Iterator[Codes]:
        """Column by column the components of `flows` that other pairs may cross too; -1 where there is none."""
        source, destination = self.source[flows], self.destination[flows]
        yield codes(Kind.HOST, self.host_of[source])
        yield codes(Kind.HOST, self.host_of[destination])
        yield codes(Kind.NIC, source)
        yield codes(Kind.NIC, destination)
        yield codes(Kind.NIC_TX, source)
        yield codes(Kind.NIC_RX, destination)
        hops = self.hops[flows]
        for column in hops.T:
            yield codes(Kind.SWITCH, column)
        for i in range(hops.shape[1] - 1):
            yield codes(Kind.LINK, hops[:, i], hops[:, i + 1])

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
    """Sums up the whole table. Takes some seconds for millions of flows: once for each change of fleet or paths."""
    parts: list[tuple[Codes, Floats, Floats]] = []
    for start in range(0, len(table), _CHUNK):
        flows = np.arange(start, min(start + _CHUNK, len(table)))
        flows = flows[table.rate[flows] > 0]
        rate = table.rate[flows].astype(float)
        for column in table.shared(flows):
            there = column >= 0
            if there.any():
                parts.append(_summed(column[there], rate[there], None))
        if len(parts) > 64:
            parts = [_merged(parts)]
    merged = _merged(parts) if parts else (np.empty(0, np.int64), np.empty(0), np.empty(0))
    return Totals(*merged)


def _merged(parts: list[tuple[Codes, Floats, Floats]]) -> tuple[Codes, Floats, Floats]:
    components, rate, flows = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _summed(components, rate, flows)


def _summed(components: Codes, rate: Floats, flows: Floats | None) -> tuple[Codes, Floats, Floats]:
    unique, inverse = np.unique(components, return_inverse=True)
    rates, counts = np.bincount(inverse, weights=rate), np.bincount(inverse, weights=flows)
    return unique, rates.astype(float), counts.astype(float)
