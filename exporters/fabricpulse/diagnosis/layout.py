"""From what hosts have told of their edges and paths to the table of all flows of the fleet. Pure."""

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fabricpulse.diagnosis.components import NO_HOP, SILENT_HOP
from fabricpulse.diagnosis.flow_table import FlowTable, totals
from fabricpulse.diagnosis.messages import MOST_HOPS, EdgeName
from fabricpulse.diagnosis.silent_hops import named
from fabricpulse.diagnosis.suspect_names import Layout

FABRIC = "fabric"
# On a path: the hops of a trace, and a declared leaf behind them.
_MOST_NODES = MOST_HOPS + 1


@dataclass
class Reporter:
    """A host, as it has last told. A flow is a number: that of its edge times ports, plus its port."""

    revision: int
    edges: tuple[EdgeName, ...]
    ports: int
    rates: tuple[float, float]
    heard_s: float
    epoch: int  # of the numbers of its flows
    first: int = 0  # its first flow in the table
    # Where its flows go, by edge times ports plus port; before : as it was told before the edges were.
    paths: dict[int, tuple[str, ...]] = field(default_factory=dict)
    before: dict[int, tuple[str, ...]] = field(default_factory=dict)
    before_until_s: float = 0.0
    slow: frozenset[int] = frozenset()
    cut: frozenset[int] = frozenset()
    # Edges whose way is not known in full. Nine of ten packets take the main path, and that one way of many: the ports
    # of such an edge count alike, or a fault of one way looks like one of the pairs whose main path takes it.
    even: frozenset[int] = frozenset()
    # Edges that the peer has no more: nothing is sent on them, which is neither loss nor health.
    ended: frozenset[int] = frozenset()

    def weight(self, flow: int) -> float:
        """Of its packets; flow : edge times ports plus port."""
        edge, port = divmod(flow, self.ports)
        main, swept = self.rates
        return swept / main if port == 0 and edge in self.even and swept > 0 else 1.0

    def going(self, flows: Iterable[int]) -> list[int]:
        """Those that are still sent on."""
        return [flow for flow in flows if flow // self.ports not in self.ended]


def laid_out(
    hosts: Mapping[str, Reporter], leaf_of: Mapping[str, str], switch_of: Mapping[str, str]
) -> Layout:
    """All flows of these hosts, one after the other; tells each host where its own begin, and which have ended.
    leaf_of : by host/device. switch_of : by address.
    """
    nodes: dict[str, int] = {}

    def node(name: str) -> int:
        return nodes.setdefault(name, len(nodes))

    # Millions of flows: as lists of Python's numbers they would be gigabytes.
    source, destination, edge, hops = array("i"), array("i"), array("i"), array("i")
    rate = array("f")
    longest = 1
    pairs = 0
    numbers = {name: {edge: number for number, edge in enumerate(hosts[name].edges)} for name in hosts}
    for name in hosts:
        host = hosts[name]
        host.first = len(source)
        even = set()
        back_of = [
            numbers.get(one.peer, {}).get(EdgeName(one.peer_device, name, one.device)) for one in host.edges
        ]
        host.ended = frozenset(
            number
            for number, (one, back) in enumerate(zip(host.edges, back_of, strict=True))
            if back is None and one.peer in numbers
        )
        if 2 * len(host.ended) > len(host.edges):
            # It has left the fleet; with others perhaps, of which it does not know.
            host.ended = frozenset(range(len(host.edges)))
        for number, one in enumerate(host.edges):
            far, near = f"{one.peer}/{one.peer_device}", f"{name}/{one.device}"
            source.extend(host.ports * [node(far)])
            destination.extend(host.ports * [node(near)])
            for port in range(host.ports):
                path = _path(
                    (far, near), _traced(hosts.get(one.peer), back_of[number], port), node, leaf_of, switch_of
                )
                path = path[:_MOST_NODES]
                longest = max(longest, len(path))
                hops.extend((*path, *(_MOST_NODES - len(path)) * [NO_HOP]))
                if port == 0 and host.ports > 1 and SILENT_HOP in path:
                    even.add(number)
            main = host.rates[1] if number in even and host.rates[1] > 0 else host.rates[0]
            swept = (host.ports - 1) * [host.rates[1]]
            rate.extend(host.ports * [0.0] if number in host.ended else [main, *swept])
            edge.extend(host.ports * [pairs])
            pairs += 1
        host.even = frozenset(even)
    devices: dict[str, set[str]] = {}
    for nic in [name for name in nodes if "/" in name]:
        devices.setdefault(nic.partition("/")[0], set()).add(nic)
    host_of = {nic: node(host) for host, nics in devices.items() if len(nics) > 1 for nic in nics}
    first_unnamed = len(nodes)
    rows = np.array(hops, np.int32).reshape(-1, _MOST_NODES)[:, :longest].copy()
    del hops
    rows, silent = named(rows, max(first_unnamed, 1))
    owner = np.full(first_unnamed + len(silent) + 1, -1, np.int32)
    for nic, number in host_of.items():
        owner[nodes[nic]] = number
    table = FlowTable(
        np.array(source, np.int32),
        np.array(destination, np.int32),
        owner,
        np.array(rate, np.float32),
        np.array(edge, np.int32),
        rows,
        first_unnamed,
        tuple(switch.may_be for switch in silent),
    )
    names = (*nodes, *(FABRIC for _ in silent))
    return Layout(table, totals(table), names)


def _traced(host: Reporter | None, edge: int | None, port: int) -> tuple[str, ...] | None:
    if host is None or edge is None or port >= host.ports:
        return None
    flow = edge * host.ports + port
    return host.paths.get(flow) or host.before.get(flow)


def _path(
    ends: tuple[str, str],
    traced: tuple[str, ...] | None,
    node: Callable[[str], int],
    leaf_of: Mapping[str, str],
    switch_of: Mapping[str, str],
) -> list[int]:
    """The switches of a flow. A leaf that is declared stands, whatever answers in its place."""
    first, last = leaf_of.get(ends[0], ""), leaf_of.get(ends[1], "")
    if first and first == last:
        return [node(first)]
    hops = [switch_of.get(hop, hop) for hop in traced or ()]
    if not hops:
        return [node(first), SILENT_HOP, node(last)] if first and last else []
    if first:
        hops[0] = first
    # Behind the last hop that answered there may be a silent leaf.
    if last and hops[-1] != last:
        hops.append(last)
    return [node(hop) if hop else SILENT_HOP for hop in hops]
