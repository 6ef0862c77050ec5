"""From what hosts have reported of their edges and paths to the table of all flows of the fleet. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.flows.components import NO_HOP, SILENT_HOP, Nodes
from fabricpulse.diagnosis.flows.flow_table import Floats, Flows, FlowTable, Totals, totals
from fabricpulse.diagnosis.flows.hop_rows import Hops, empty_rows
from fabricpulse.diagnosis.flows.known_paths import KnownPaths
from fabricpulse.diagnosis.flows.names import Names
from fabricpulse.diagnosis.flows.planes import FoundPlanes, Planes, found_planes
from fabricpulse.diagnosis.flows.silent_hops import named, silent_names

# Hosts, and rows of the table, that are worked on at once: bounds memory.
_HOSTS, _ROWS = 1000, 65_536
NO_FLOWS = np.zeros(0, np.int32)
_FLOWS_OF_A_HOST = 1 << 20


@dataclass(slots=True)
class Reporter:
    """A host, as it has last reported. A flow is a number: that of its edge times ports, plus its port.

    ends : in rows the NICs of each edge, its own and the far one, as numbers of `Names`. rates : packets a second on
    the first and on each other port. epoch : of the numbers of its flows. slow, cut, maybe_cut : flows that suffer so
    now. nics : device and network of each NIC, as far as it says. rerouted_s : when a path of it was last reported to
    have changed.
    """

    node: int
    revision: int
    ends: Nodes
    ports: int
    rates: tuple[float, float]
    last_report_s: float
    epoch: int
    paths: KnownPaths = field(default_factory=KnownPaths)
    before_until_s: float = 0.0
    slow: NDArray[np.int32] = field(default_factory=lambda: NO_FLOWS)
    cut: NDArray[np.int32] = field(default_factory=lambda: NO_FLOWS)
    maybe_cut: NDArray[np.int32] = field(default_factory=lambda: NO_FLOWS)
    nics: tuple[tuple[str, str], ...] = ()
    rerouted_s: float = -math.inf

    @property
    def edges(self) -> int:
        """How many it has."""
        return int(self.ends.shape[1])

    @property
    def flows(self) -> int:
        """How many it has."""
        return self.edges * self.ports


def renumbered(old: Reporter, new: Reporter) -> Flows:
    """Of each flow of a host the number that it has now, -1 for none: of edges that it still has."""
    found = np.full(old.flows, -1, np.int64)
    if old.ports != new.ports:
        return found
    place = {edge: number for number, edge in enumerate(zip(*new.ends.tolist(), strict=True))}
    now = np.array([place.get(edge, -1) for edge in zip(*old.ends.tolist(), strict=True)], np.int64)
    kept = np.flatnonzero(now >= 0)
    port = np.arange(old.ports)
    found.reshape(-1, old.ports)[kept] = now[kept, None] * old.ports + port
    return found


@dataclass(frozen=True)
class Layout:
    """The flows of a fleet with their sums. names : of the nodes of the table. epoch, first : of each host that of the
    numbers of its flows, and its first flow in the table; hosts in the order of the table. plane : of each switch.

    even, even_weight : flows whose packets weigh less than one, ascending. A way that is not known in full is one of
    many. Nine of ten packets take the main path, and that one way: the ports of such an edge count alike, or a fault of
    one way looks like one of the pairs whose main path takes it.
    """

    table: FlowTable
    totals: Totals
    names: tuple[str, ...]
    epoch: Flows
    first: Flows
    even: Flows
    even_weight: Floats
    plane: Planes
    _by_epoch: Flows = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_epoch", np.argsort(self.epoch))

    def abandon(self) -> None:
        """Drops large columns, of one that nobody uses any more."""
        self.table.abandon()
        object.__setattr__(self, "totals", Totals(np.zeros(0, np.int64), np.zeros(0), np.zeros(0)))

    def rows(self, epoch: Flows, flow: Flows) -> Flows:
        """Flows of hosts as flows of the table, -1 for those that are not in it or on which nothing is sent."""
        if not len(self.table):
            return np.full(len(flow), -1, np.int64)
        known = self.epoch[self._by_epoch]
        at = np.minimum(np.searchsorted(known, epoch), len(known) - 1)
        row = np.where(known[at] == epoch, self.first[self._by_epoch[at]] + flow, -1)
        return np.asarray(np.where(self.table.rate_of(row) > 0, row, -1), np.int64)

    def weight(self, rows: Flows) -> Floats:
        """Of packets of flows of the table."""
        if not len(self.even):
            return np.ones(len(rows))
        at = np.minimum(np.searchsorted(self.even, rows), len(self.even) - 1)
        return np.where(self.even[at] == rows, self.even_weight[at], 1.0)

    def plane_of(self, node: int) -> int:
        """That of a switch."""
        return int(self.plane[node - self.table.first_switch])

    def hosts(self, rows: Flows) -> tuple[Flows, Flows]:
        """Of flows of the table the epoch, and the number at the host: the inverse of `rows`."""
        host = np.searchsorted(self.first, rows, side="right") - 1
        return self.epoch[host], rows - self.first[host]

    def stable(self, rows: Flows) -> Flows:
        """Numbers that stand for the same flows of the table when the fleet has changed."""
        epoch, flow = self.hosts(rows)
        return epoch * _FLOWS_OF_A_HOST + flow


class _Edges:
    """All edges of some hosts as columns, one host after the other. flow : the first of each. back : the same edge as
    the other end has it, -1 for none. ended : the peer is there and has it no more.
    """

    def __init__(self, hosts: Sequence[Reporter], names: Names) -> None:
        count = np.array([host.edges for host in hosts], np.int64)
        self.first = np.cumsum(count) - count
        # Half a million edges are common: columns of four bytes.
        self.host = np.repeat(np.arange(len(hosts), dtype=np.int32), count)
        ends = [host.ends for host in hosts]
        self.near, self.far = np.concatenate(ends, axis=1) if ends else np.zeros((2, 0), np.int32)
        self.ports = np.array([host.ports for host in hosts], np.int32)[self.host]
        self.flow = np.cumsum(self.ports, dtype=np.int32) - self.ports
        self.back = self._back()
        owner = names.host_of()
        live = np.zeros(len(owner) + 1, bool)
        live[[host.node for host in hosts]] = True
        self.ended = (self.back < 0) & live[owner[self.far]]
        ended = np.bincount(self.host, self.ended, len(hosts))
        # It has left the fleet; with others perhaps, of which it does not know.
        self.ended |= (2 * ended > count)[self.host]

    def __len__(self) -> int:
        return len(self.near)

    def _back(self) -> Nodes:
        near, far = self.near.astype(np.int64), self.far.astype(np.int64)
        key = near << 32 | far
        order = np.argsort(key, kind="stable")
        known, wanted = key[order], far << 32 | near
        at = np.searchsorted(known, wanted, side="right") - 1
        return np.where((at >= 0) & (known[at] == wanted), order[at].astype(np.int32), np.int32(-1))


def laid_out(hosts: Sequence[Reporter], names: Names, switches: Names, leaf_of: Mapping[str, str]) -> Layout:
    """All flows of these hosts, one after the other. names : of hosts and NICs. leaf_of : by host/device."""
    edges = _Edges(hosts, names)
    leaf_of_nic = {
        names.find(nic): switches.of(leaf) for nic, leaf in leaf_of.items() if names.find(nic) >= 0
    }
    leaf = np.full(len(names), -1, np.int32)
    leaf[list(leaf_of_nic)] = list(leaf_of_nic.values())
    hops = _hops(hosts, edges, leaf, len(switches))
    rates = np.array([host.rates for host in hosts], np.float32).reshape(-1, 2)
    main, swept = rates[edges.host].T
    even = (edges.ports > 1) & (swept > 0)
    even[even] = (hops[edges.flow[even]] == SILENT_HOP).any(axis=1)
    even_flow, even_weight = edges.flow[even].astype(np.int64), (swept / main)[even].astype(np.float64)
    first_silent = len(names) + len(switches)
    planes = _planes(hosts, edges, names, hops, len(switches))
    hops, silent = named(hops, len(switches), np.repeat(planes.of_edge, edges.ports))
    table = FlowTable(
        edges.far,
        edges.near,
        _owners(edges, names),
        np.where(edges.ended, np.float32(0), np.where(even, swept, main)),
        np.where(edges.ended, np.float32(0), swept),
        np.append(edges.flow, edges.ports.sum(dtype=np.int32)),
        hops,
        len(names),
        first_silent,
        tuple(tuple(len(names) + other for other in switch.may_be) for switch in silent),
    )
    del edges, main, swept, even
    flows = np.array([host.flows for host in hosts], np.int64)
    return Layout(
        table,
        totals(table),
        (*names.texts(), *switches.texts(), *silent_names(silent, planes.fabric, switches.texts())),
        np.array([host.epoch for host in hosts], np.int64),
        np.cumsum(flows) - flows,
        even_flow,
        even_weight,
        np.append(planes.of_switch, np.array([switch.plane for switch in silent], np.uint8)),
    )


def _planes(hosts: Sequence[Reporter], edges: _Edges, names: Names, hops: Hops, switches: int) -> FoundPlanes:
    """Of each edge, by what hosts say of their NICs."""
    owner, texts = names.host_of(), names.texts()
    reporter = {host.node: host for host in hosts}
    nodes = np.array(sorted(reporter), np.int32)

    def network_of(nics: Flows) -> str:
        known = nics[np.isin(owner[nics], nodes)]
        if not len(known):
            return ""
        device = texts[known[0]].partition("/")[2]
        return dict(reporter[int(owner[known[0]])].nics).get(device, "")

    return found_planes(edges.near, edges.far, edges.ports, hops, switches, network_of, texts.__getitem__)


def _owners(edges: _Edges, names: Names) -> Nodes:
    """The host of each NIC, where it has more than one."""
    owner = names.host_of()
    nics = np.zeros(len(owner), bool)
    nics[edges.near] = nics[edges.far] = True
    nics &= owner >= 0
    count = np.bincount(owner[nics], minlength=len(owner))
    found = np.full(len(owner), -1, np.int32)
    found[nics] = np.where(count[owner[nics]] > 1, owner[nics], -1)
    return found


def _hops(hosts: Sequence[Reporter], edges: _Edges, leaf: Nodes, switches: int) -> Hops:
    """The switches of each flow: what its sender has traced. A leaf that is declared stands, whatever answers in its
    place. leaf : of each NIC, -1 for none.
    """
    traced = max((host.paths.hops.shape[1] for host in hosts), default=0)
    declared = bool((leaf >= 0).any())
    longest = max(traced, 3 * declared, 1)
    # Column by column: all that reads it does. The last one is hardly ever needed, and then not touched.
    rows = empty_rows(int(edges.ports.sum()), longest + 1, switches, "F")
    rows[:, :longest] = NO_HOP
    for flow, hops in _reported(hosts, edges):
        rows[flow, : hops.shape[1]] = hops
    if declared:
        for start in range(0, len(rows), _ROWS):
            part = slice(start, min(start + _ROWS, len(rows)))
            edge = np.searchsorted(edges.flow, np.arange(part.start, part.stop), side="right") - 1
            longest = _declared(rows, part, leaf[edges.far[edge]], leaf[edges.near[edge]], longest)
    return rows[:, :longest]


def _reported(hosts: Sequence[Reporter], edges: _Edges) -> Iterator[tuple[Flows, Hops]]:
    """Flows of the table and their hops, as those reported that send on them, some hosts at once."""
    for start in range(0, len(hosts), _HOSTS):
        some = [n for n in range(start, min(start + _HOSTS, len(hosts))) if len(hosts[n].paths.hops)]
        if not some:
            continue
        width = max(hosts[n].paths.hops.shape[1] for n in some)
        hops = np.full((sum(hosts[n].flows for n in some), width), NO_HOP, np.int32)
        at = 0
        for n in some:
            own = hosts[n].paths.hops
            hops[at : at + len(own), : own.shape[1]] = own
            at += hosts[n].flows
        of = np.concatenate([np.arange(hosts[n].edges) + edges.first[n] for n in some])
        ports = edges.ports[of]
        back = np.repeat(edges.back[of], ports)
        port = np.arange(len(hops)) - np.repeat(np.cumsum(ports) - ports, ports)
        use = (back >= 0) & (hops[:, 0] != NO_HOP)
        use[use] &= port[use] < edges.ports[back[use]]
        yield edges.flow[back[use]] + port[use], hops[use]


def _declared(every: Hops, part: slice, first: Nodes, last: Nodes, longest: int) -> int:
    """Puts declared leaves in their places, in some of the rows. first, last : of each of these, -1 for none. longest :
    columns in use. Returns how many are in use now.
    """
    rows = every[part]
    length = (rows[:, :longest] != NO_HOP).sum(axis=1)
    same = (first >= 0) & (first == last)
    rows[same, :longest] = NO_HOP
    rows[same, 0] = first[same]
    unknown = (length == 0) & (first >= 0) & (last >= 0) & ~same
    rows[unknown, 0], rows[unknown, 1], rows[unknown, 2] = first[unknown], SILENT_HOP, last[unknown]
    traced = (length > 0) & ~same
    begins = traced & (first >= 0)
    rows[begins, 0] = first[begins]
    # Behind the last hop that answered there may be a silent leaf.
    ends = np.flatnonzero(traced & (last >= 0))
    ends = ends[rows[ends, length[ends] - 1] != last[ends]]
    if len(ends) and length[ends].max() == longest:
        every[:, longest] = NO_HOP
        longest += 1
    rows[ends, length[ends]] = last[ends]
    return longest
