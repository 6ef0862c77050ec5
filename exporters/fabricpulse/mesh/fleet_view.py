"""From the membership to what this host's engine probes: pure."""

from dataclasses import dataclass

from fabricpulse.core.fleet.membership import Membership, Nic
from fabricpulse.mesh.peer_graph import NicKey, peer_graph, peers_of


@dataclass(frozen=True)
class Peer:
    """The far end of an edge. nic : index of the local NIC."""

    nic: int
    host: str
    device: str
    network: str
    address: str


@dataclass(frozen=True)
class FleetView:
    """What one host has to probe. host : as the membership calls it. is_member : it is in the membership."""

    host: str
    nics: tuple[Nic, ...]
    peers: tuple[Peer, ...]
    members: int
    is_member: bool = True


def view_of(membership: Membership, host: str, peers: int, cross_peers: int) -> FleetView:
    """This host's NICs and edges. A host that is no member has none.

    host : this host's short or fully qualified name. Takes a second of CPU time for 1,000 hosts with 8 NICs: not for an
    event loop.
    """
    own = membership.host(host)
    if own is None:
        return FleetView(host, (), (), len(membership.hosts), is_member=False)
    nics = own.nics
    by_key = {NicKey(h.name, nic.device): nic for h in membership.hosts for nic in h.nics}
    graph = peer_graph(membership, peers, cross_peers)
    near = [edge for edge in graph if own.name in (edge[0].host, edge[1].host)]
    found = [
        Peer(index, key.host, key.device, by_key[key].network, by_key[key].address)
        for index, nic in enumerate(nics)
        for key in peers_of(near, NicKey(own.name, nic.device))
        # A NIC with an address of the other family cannot be reached.
        if (":" in by_key[key].address) == (":" in nic.address)
    ]
    return FleetView(own.name, nics, tuple(found), len(membership.hosts))
