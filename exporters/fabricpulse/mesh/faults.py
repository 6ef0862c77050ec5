"""What a dead edge means, seen together with all others of this host: pure, from states to words."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from fabricpulse.mesh.snapshot import State

Fault = Literal["local_nic", "peer_host", "peer_nic", "outbound", "pair", "path"]
FAULTS: tuple[Fault, ...] = ("local_nic", "peer_host", "peer_nic", "outbound", "pair", "path")


class EdgeView(NamedTuple):
    """What is known of one edge. nic_up : the local NIC is connected. dead_paths : source ports that are dead."""

    device: str
    peer: str
    peer_device: str
    state: int
    inbound: int
    outbound: int
    nic_state: int
    dead_paths: int = 0


def diagnose(edges: Sequence[EdgeView]) -> list[Fault | None]:
    """The fault of each edge, None where there is none or nothing is known.

    local_nic : our own NIC is disconnected, the edge tells nothing of the peer. peer_host : no NIC of the peer is heard
    on any of our connected NICs. peer_nic : this NIC of the peer is not heard, another of its NICs is.
    outbound : the peer is heard and does not hear us; the other direction is told by the other end. pair : other edges
    reach this very NIC of the peer. path : the edge works, some of its source ports do not.
    """
    host_edges: dict[str, list[EdgeView]] = defaultdict(list)
    nic_edges: dict[tuple[str, str], list[EdgeView]] = defaultdict(list)
    for edge in edges:
        # An edge of a dead NIC of ours is no witness.
        if edge.nic_state == State.UP and edge.state != State.UNKNOWN:
            host_edges[edge.peer].append(edge)
            nic_edges[edge.peer, edge.peer_device].append(edge)

    def silent(views: Sequence[EdgeView]) -> bool:
        return all(view.state == State.DOWN and view.inbound != State.UP for view in views)

    faults: list[Fault | None] = []
    for edge in edges:
        fault: Fault | None = None
        if edge.state == State.UP:
            fault = "path" if edge.dead_paths else None
        elif edge.state == State.DOWN:
            if edge.nic_state != State.UP:
                fault = "local_nic"
            elif edge.inbound == State.UP:
                fault = "outbound"
            elif silent(host_edges[edge.peer]):
                fault = "peer_host"
            elif silent(nic_edges[edge.peer, edge.peer_device]):
                fault = "peer_nic"
            else:
                fault = "pair"
        faults.append(fault)
    return faults
