"""Who probes whom: one graph for the fleet, computed alike on every host from the membership alone.

An edge is undirected: both of its ends send trains to each other, so in-degree equals out-degree by construction.
Degrees of two NICs may differ: where rings agree and the further ones find no place either, a NIC has a few peers
below K.

Same network: the NICs of a network are put on several rings, each ordered by another hash, and neighbours on a ring are
peers. A ring adds two peers to each NIC, and a join or leave changes three edges of it. Further rings, in a fixed
order, fill up the places that are left where two rings agree. Between networks: the hosts are put on a ring, and each
NIC is joined to the next network's NIC of the next host, one ring for each two peers. These edges cross the spine.

Random rings and not one circle with chords: the diameter stays logarithmic, which the clock needs, and a join moves
O(K) edges instead of O(K^2).
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fabricpulse.core.fleet.membership import Membership

DEFAULT_PEERS = 10
DEFAULT_CROSS_PEERS = 2
# Rings beyond those that are needed when no two of them agree. Measured: with 6 more, 99 % of NICs have all K peers.
_MORE_RINGS = 6


@dataclass(frozen=True, order=True)
class NicKey:
    """A NIC in the fleet."""

    host: str
    device: str


Edge = tuple[NicKey, NicKey]
"""Two NICs, the smaller first."""


def peer_graph(
    membership: Membership, peers: int = DEFAULT_PEERS, cross_peers: int = DEFAULT_CROSS_PEERS
) -> frozenset[Edge]:
    """The edges of the fleet.

    peers : K, peers of a NIC, at most. cross_peers : how many of them are on other networks; the rest is on its own.
    Where there are fewer NICs than that, all of them are peers. NICs of one host are never peers.
    Raises ValueError for numbers below zero.
    """
    if peers < 0 or cross_peers < 0:
        raise ValueError("a NIC cannot have fewer than 0 peers")
    cross = min(cross_peers, peers)
    edges: set[Edge] = set()
    networks: dict[str, list[NicKey]] = defaultdict(list)
    hosts: dict[str, dict[str, NicKey]] = {}
    for host in membership.hosts:
        by_network: dict[str, NicKey] = {}
        for nic in sorted(host.nics, key=lambda nic: nic.device):
            key = NicKey(host.name, nic.device)
            networks[nic.network].append(key)
            by_network.setdefault(nic.network, key)
        hosts[host.name] = by_network
    several = len(networks) > 1
    for name, nics in networks.items():
        edges |= _rings(name, nics, peers - cross if several else peers)
    if several:
        edges |= _cross(hosts, cross)
    return frozenset(edges)


def peers_of(edges: Iterable[Edge], nic: NicKey) -> list[NicKey]:
    """The peers of `nic`, in order."""
    return sorted(b if a == nic else a for a, b in edges if nic in (a, b))


def _order(salt: str, names: Iterable[str]) -> list[str]:
    def key(name: str) -> bytes:
        return hashlib.blake2b(f"{salt}\0{name}".encode(), digest_size=8).digest()

    return sorted(names, key=lambda name: (key(name), name))


def _edge(a: NicKey, b: NicKey) -> Edge:
    return (a, b) if a < b else (b, a)


def _rings(network: str, nics: Sequence[NicKey], degree: int) -> set[Edge]:
    if degree <= 0:
        return set()
    hosts = {nic.host for nic in nics}
    if len(hosts) <= degree + 1 and len(hosts) == len(nics):
        return {_edge(a, b) for a in nics for b in nics if a < b}
    by_name = {f"{nic.host}\0{nic.device}": nic for nic in nics}
    edges: set[Edge] = set()
    count: dict[NicKey, int] = defaultdict(int)
    for ring in range((degree + 1) // 2 + _MORE_RINGS):
        order = [by_name[name] for name in _order(f"{network}\0{ring}", by_name)]
        for a, b in zip(order, order[1:] + order[:1], strict=True):
            edge = _edge(a, b)
            if a.host == b.host or edge in edges or count[a] >= degree or count[b] >= degree:
                continue
            edges.add(edge)
            count[a] += 1
            count[b] += 1
    return edges


def _cross(hosts: dict[str, dict[str, NicKey]], degree: int) -> set[Edge]:
    edges: set[Edge] = set()
    for ring in range((degree + 1) // 2):
        order = _order(f"\0cross\0{ring}", hosts)
        for name, following in zip(order, order[1:] + order[:1], strict=True):
            if name == following:
                continue
            for network, nic in hosts[name].items():
                others = sorted(other for other in hosts[following] if other != network)
                if not others:
                    continue
                # The next network in order, so that each network of the next host is met once.
                later = [other for other in others if other > network]
                step = ring % len(others)
                target = (later + [other for other in others if other < network])[step]
                edges.add(_edge(nic, hosts[following][target]))
    return edges
