"""What was lost, by flow and by component: the rows and columns that `locate` searches. Pure."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.flows.components import (
    LOG_KNOWN,
    LOG_OTHER_WAY,
    LOG_PRIOR,
    Codes,
    Kind,
    Nodes,
    code,
    codes,
    kinds,
    nodes,
)
from fabricpulse.diagnosis.flows.flow_table import Floats, Flows, FlowTable, Totals
from fabricpulse.diagnosis.search.unseen import NOTHING_UNSEEN, Unseen

# Packets a second and flows of components, while all is well.
_Loads = Callable[[Codes, Flows], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Parameters:
    """What counts as evidence.

    background : share of packets that a healthy fabric loses. dispersion : by how much losses come together: the three
    packets of a train are often lost as one. threshold : nats that a component must explain beyond its prior
    probability. alternatives : nats within which another component is named beside it. most : components named at most.
    """

    background: float = 2e-5
    dispersion: float = 3.0
    threshold: float = 8.0
    alternatives: float = 3.0
    most: int = 16


@dataclass(frozen=True)
class Evidence:
    """Components that may be faulty, and the flows with losses that cross one of them (rows).

    packets : that crossed the component while all was well. hit : of them lost. back : of a link, the place of its
    other way among the components, -1 where that is none. both : nats by which both ways together are more probable
    than two links. boost : nats of the prior that are due to what is known: they steer the search, and prove nothing.
    row, column : row and component wherever one crosses the other, by component; those of component i
    from start[i] to start[i + 1].
    """

    components: Codes
    packets: Floats
    hit: Floats
    prior: Floats
    back: Flows
    both: Floats
    boost: Floats
    row: Flows
    column: Flows
    start: Flows
    flows: Flows
    lost: Floats
    sent: Floats
    unnamed: NDArray[np.bool_]
    table: FlowTable
    hops: Nodes
    # What does not depend on what is chosen is worked out once for each component.
    _akin: dict[int, Flows] = field(default_factory=dict)
    rivals: dict[int, Flows] = field(default_factory=dict)

    def akin(self, component: int) -> Flows:
        """The rows that may cross it beside those that do: which of some silent switches is on a path is not always
        known.
        """
        if component not in self._akin:
            may = self.table.akin(int(self.components[component]), self.hops)
            may[self.rows(component)] = False
            self._akin[component] = np.flatnonzero(may)
        return self._akin[component]

    def find(self, component: int) -> int:
        """The place of a component, -1 where it can be none that is faulty."""
        place = int(np.searchsorted(self.components, component))
        return place if place < len(self.components) and self.components[place] == component else -1

    def rows(self, component: int) -> Flows:
        """The flows that cross it."""
        return self.row[self.start[component] : self.start[component + 1]]

    def summed(self, weight: Floats) -> Floats:
        """Of each component, the sum over the rows that cross it."""
        # Each component has a row, or it would be no candidate.
        return np.add.reduceat(weight[self.row], self.start[:-1]) if len(self.components) else np.empty(0)

    def crossings(self, components: Flows) -> tuple[Flows, Flows]:
        """Row and position in `components`, wherever one crosses the other."""
        sizes = self.start[components + 1] - self.start[components]
        column = np.repeat(np.arange(len(components)), sizes)
        first = np.repeat(self.start[components] - np.cumsum(sizes) + sizes, sizes)
        return self.row[first + np.arange(len(column))], column


def alone(hit: Floats, packets: Floats, prior: Floats, p: Parameters) -> Floats:
    """The score of each component if it were the only one that is faulty; -inf if it loses no more than usual."""
    q = np.clip(hit / packets, 1e-12, 1 - 1e-9)
    gain = hit * np.log(q / p.background) + (packets - hit) * np.log((1 - q) / (1 - p.background))
    return np.asarray(np.where(q > p.background, gain / p.dispersion + prior, -np.inf), float)


def evidence_of(
    table: FlowTable,
    totals: Totals,
    flows: Flows,
    lost: Floats,
    sent: Floats,
    window_s: float | None,
    p: Parameters,
    unseen: Unseen = NOTHING_UNSEEN,
    known: Collection[int] = (),
) -> Evidence:
    """That of `flows` (ascending, each with a loss), as of `locate`. Components that do not explain enough by
    themselves are left out, for they never will: nearly all, as healthy flows lose a packet now and then.
    """
    search = _Search(table, flows, lost, sent, window_s, p)
    (source, destination), hops = table.ends_of(flows), table.hops_of(flows)
    hosts = [table.host_of[source], table.host_of[destination]]
    # A flow between two NICs of one host crosses that host once.
    hosts[1] = np.where(hosts[1] == hosts[0], -1, hosts[1])
    # Of the flows with losses it is known what was sent.
    less = _Less(table, unseen.beside(flows))

    def total(components: Codes, _: Flows) -> tuple[Floats, Floats]:
        rate, crossed_by = totals.of(components)
        if window_s is None:
            return rate, crossed_by - less.of(components)
        return rate - less.of(components) / window_s, crossed_by

    for kind, columns in (
        (Kind.HOST, hosts),
        (Kind.NIC, [source, destination]),
        (Kind.NIC_TX, [source]),
        (Kind.NIC_RX, [destination]),
        (Kind.SWITCH, list(hops.T)),
    ):
        search.take(kind, columns, lambda ids, kind=kind: codes(kind, ids), total)  # type: ignore[misc]
    near, far = hops[:, :-1].astype(np.int64), hops[:, 1:].astype(np.int64)
    cabled = (near >= 0) & (far >= 0)
    cables, number = np.unique(near[cabled] << 31 | far[cabled], return_inverse=True)
    links = np.full(near.shape, -1)
    links[cabled] = number
    search.take(
        Kind.LINK,
        list(links.T),
        lambda ids: codes(Kind.LINK, cables[ids] >> 31, cables[ids] & (1 << 31) - 1),
        total,
    )
    # Pairs and single flows are nobody else's: what crosses them is their own. The flows of a pair are neighbours.
    edges = table.edge_of(flows)
    first = np.flatnonzero(np.diff(edges, prepend=-1))
    search.take(
        Kind.PAIR,
        [np.cumsum(np.diff(edges, prepend=-1) != 0) - 1],
        lambda ids: codes(Kind.PAIR, source[first[ids]], destination[first[ids]]),
        lambda _, ids: table.edge_load(edges[first[ids]]),
    )
    search.take(
        Kind.FLOW,
        [np.arange(len(flows))],
        lambda ids: np.int64(code(Kind.FLOW, 0)) + flows[ids],
        lambda _, ids: (table.rate_of(flows[ids]).astype(float), np.ones(len(ids))),
    )
    return search.evidence(known)


class _Less:
    """Packets that count neither as lost nor as received, by the components that they would have crossed."""

    def __init__(self, table: FlowTable, unseen: Unseen) -> None:
        self._packets = unseen.packets
        columns = list(table.shared(unseen.flows)) if len(unseen.flows) else []
        self._columns = [(int(kinds(column.max(initial=-1))), column) for column in columns]

    def of(self, components: Codes) -> Floats:
        """Of each of some components of one kind, ascending."""
        found = np.zeros(len(components))
        if not len(components):
            return found
        wanted = int(kinds(components[0]))
        for kind, column in self._columns:
            if kind == wanted:
                at = np.minimum(np.searchsorted(components, column), len(components) - 1)
                same = components[at] == column
                found += np.bincount(at[same], self._packets[same], len(components))
        return found


class _Search:
    """Takes in the components kind by kind, in the order of their codes, and keeps those that can be faulty."""

    def __init__(
        self,
        table: FlowTable,
        flows: Flows,
        lost: Floats,
        sent: Floats,
        window_s: float | None,
        p: Parameters,
    ) -> None:
        self._table, self._flows, self._lost, self._sent = table, flows, lost, sent
        self._window_s, self._p = window_s, p
        # A rate is a plan; of the flows with losses it is known what was sent.
        self._more = sent - table.rate_of(flows) * window_s if window_s is not None else np.zeros(len(flows))
        self._count = 0
        self._found: list[tuple[Codes, Floats, Floats, Floats]] = []
        self._rows: list[Flows] = []
        self._columns: list[Flows] = []

    def take(
        self, kind: Kind, columns: Sequence[Nodes | Flows], names: Callable[[Flows], Codes], loads: _Loads
    ) -> None:
        """columns : number of the component that a row crosses, negative for none. names : components by number,
        ascending. loads : of components and their numbers.
        """
        if not columns:
            return
        p = self._p
        shifted = [np.maximum(column, -1).astype(np.int64) + 1 for column in columns]
        size = max(int(column.max(initial=0)) for column in shifted) + 1
        hit = _summed(shifted, self._lost, size)
        # However few packets cross it: fewer losses can be no evidence. Most components lost one or two.
        least = (p.threshold - LOG_PRIOR[kind]) * p.dispersion / -np.log(p.background)
        ids = np.flatnonzero(hit >= (1 - 1e-9) * least)
        components, hit = names(ids), hit[ids]
        rate, crossed_by = loads(components, ids)
        if self._window_s is None:
            packets = np.maximum(crossed_by, hit)
        else:
            packets = np.maximum(rate * self._window_s + _summed(shifted, self._more, size)[ids], hit)
        prior = np.full(len(ids), LOG_PRIOR[kind])
        able = alone(hit, packets, prior, p) > p.threshold
        able &= ~_one_of_several(components, self._table)
        count = int(np.count_nonzero(able))
        place = np.full(size, -1)
        place[ids[able] + 1] = np.arange(self._count, self._count + count)
        self._count += count
        self._found.append((components[able], packets[able], hit[able], prior[able]))
        for column in shifted:
            at = place[column]
            rows = np.flatnonzero(at >= 0)
            self._rows.append(rows)
            self._columns.append(at[rows])

    def evidence(self, known: Collection[int]) -> Evidence:
        """Of all that was kept."""
        components, packets, hit, prior = (np.concatenate(part) for part in zip(*self._found, strict=True))
        boost = (
            np.where(np.isin(components, list(known)), LOG_KNOWN - prior, 0.0)
            if known
            else np.zeros_like(prior)
        )
        prior = prior + boost
        row, column = np.concatenate(self._rows), np.concatenate(self._columns)
        crossed = np.zeros(len(self._flows), bool)
        crossed[row] = True
        used = np.flatnonzero(crossed)
        row = (np.cumsum(crossed) - 1)[row]
        # By component, then by row: one number is sorted several times as fast as two.
        bits = len(used).bit_length()
        both = np.sort(column << bits | row)
        row, column = both & (1 << bits) - 1, both >> bits
        start = np.concatenate([[0], np.cumsum(np.bincount(column, minlength=self._count))])
        back = _other_ways(components)
        rarer = np.minimum(prior, prior[back]) if len(prior) else prior
        return Evidence(
            components,
            packets,
            hit,
            prior,
            back,
            np.where(back >= 0, np.maximum(LOG_OTHER_WAY - rarer, 0.0), 0.0),
            boost,
            row,
            column,
            start,
            self._flows[used],
            self._lost[used],
            self._sent[used],
            _unnamed(components, self._table.first_unnamed),
            self._table,
            self._table.hops_of(self._flows[used]),
        )


def _other_ways(components: Codes) -> Flows:
    back = np.full(len(components), -1, np.int64)
    links = np.flatnonzero(kinds(components) == Kind.LINK)
    if len(links):
        a, b = nodes(components[links])
        order = np.argsort(components[links])
        ways, wanted = components[links][order], codes(Kind.LINK, b.astype(np.int32), a.astype(np.int32))
        at = np.minimum(np.searchsorted(ways, wanted), len(ways) - 1)
        there = ways[at] == wanted
        back[links[there]] = links[order[at[there]]]
    return back


def _summed(columns: Sequence[Flows], weight: Floats, size: int) -> Floats:
    """Of each component the sum over its rows; columns : its number and one, 0 for none."""
    sums = np.zeros(size)
    for column in columns:
        sums += np.bincount(column, weight, size)
    return sums[1:]


def _one_of_several(components: Codes, table: FlowTable) -> NDArray[np.bool_]:
    """What stands for one of several switches, it is not known which, is none that could be faulty."""
    several = [table.first_unnamed + number for number, may_be in enumerate(table.may_be) if may_be]
    a, b = nodes(components)
    fabric = np.isin(kinds(components), (Kind.SWITCH, Kind.LINK))
    return np.asarray(fabric & (np.isin(a, several) | np.isin(b, several)))


def _unnamed(components: Codes, first: int) -> NDArray[np.bool_]:
    a, b = nodes(components)
    fabric = np.isin(kinds(components), (Kind.SWITCH, Kind.LINK))
    return fabric & ((a >= first) | (b >= first))
