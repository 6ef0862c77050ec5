"""What a host sees of its impaired edges, each beside all others of this host: pure, from states to words.

These are evidence, not causes: one host usually has a single edge to a peer, and then cannot distinguish a
dead peer from a dead NIC, cable or path. The fault can only be located by the evidence of many hosts together.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

from fabricpulse.mesh.snapshot import HealthState

Evidence = Literal[
    "own_nic_disconnected",
    "peer_silent",
    "peer_host_silent",
    "peer_nic_silent",
    "pair_silent",
    "peer_receives_nothing",
    "paths_down",
]


class EdgeView(NamedTuple):
    """What is known of one edge. nic_state : of the local NIC. dead_paths : source ports that are down."""

    device: str
    peer: str
    peer_device: str
    state: int
    inbound: int
    outbound: int
    nic_state: int
    dead_paths: int = 0


def evidence_of(edges: Sequence[EdgeView]) -> list[Evidence | None]:
    """The evidence of each edge, None where there is none or nothing is known.

    own_nic_disconnected : our own NIC is disconnected or unknown; the edge proves nothing about the peer.
    peer_silent : nothing arrives from the peer, and no other edge of this host shows more.
    peer_host_silent : several NICs of the peer's host have edges to connected NICs of ours, and all of them are silent.
    peer_nic_silent : this NIC of the peer is silent, another NIC of its host is not.
    pair_silent : this NIC of the peer is silent here, but not on another edge of ours.
    peer_receives_nothing : probes of the peer arrive and report that ours do not arrive there.
    paths_down : the edge works, some source ports of the peer do not arrive.
    """
    host_edges: dict[str, list[EdgeView]] = defaultdict(list)
    for edge in edges:
        # An edge of a NIC of ours that is not connected is no witness.
        if edge.nic_state == HealthState.UP and edge.state != HealthState.UNKNOWN:
            host_edges[edge.peer].append(edge)

    def received(view: EdgeView) -> bool:
        return view.state != HealthState.DOWN or view.inbound == HealthState.UP

    def silence(edge: EdgeView) -> Evidence:
        views = host_edges[edge.peer]
        if any(received(view) for view in views if view.peer_device == edge.peer_device):
            return "pair_silent"
        if any(received(view) for view in views):
            return "peer_nic_silent"
        return "peer_host_silent" if len({view.peer_device for view in views}) > 1 else "peer_silent"

    found: list[Evidence | None] = []
    for edge in edges:
        evidence: Evidence | None = None
        if edge.state == HealthState.UP:
            evidence = "paths_down" if edge.dead_paths else None
        elif edge.state == HealthState.DOWN:
            if edge.nic_state != HealthState.UP:
                evidence = "own_nic_disconnected"
            elif edge.inbound == HealthState.UP:
                evidence = "peer_receives_nothing"
            else:
                evidence = silence(edge)
        found.append(evidence)
    return found
