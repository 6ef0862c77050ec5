"""The full detail as JSON, for people and for tools: what does not belong in metrics."""

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fabricpulse.mesh.exposition import CAUSE_NAMES, STATE_NAMES, edge_evidence
from fabricpulse.mesh.fleet_view import FleetView
from fabricpulse.mesh.front_end import FrontEndWatch
from fabricpulse.mesh.nic_stamps import stamps_of
from fabricpulse.mesh.path_schedule import Hops
from fabricpulse.mesh.snapshot import (
    CUT,
    DROP_REASONS,
    UNKNOWN_OWD,
    Cause,
    EdgeState,
    HealthState,
    Snapshot,
    worst_path,
)

_EDGE_STATES = {HealthState.UNKNOWN: "unknown", HealthState.UP: "up", HealthState.DOWN: "down"}


def edges_document(
    view: FleetView,
    snapshot: Snapshot,
    port: int,
    front_end: FrontEndWatch,
    hops: Mapping[tuple[int, int], Hops] = MappingProxyType({}),
    queue_pairs: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """`/api/v1/edges`: front end, NICs, edges, source ports, as docs/mesh-api.md describes field by field.

    port : UDP port of the probes, the first of the source ports. hops : switches of our flows, by edge and port.
    queue_pairs : of jobs, as QueuePairTracing describes them.
    """
    synchronized = snapshot.clock_status in (1, 2)
    nics = [
        {
            "device": nic.device,
            "network": nic.network,
            "address": nic.address,
            "state": STATE_NAMES[HealthState(state.state)],
            "cause": CAUSE_NAMES[Cause(state.cause)] if state.cause else None,
            "link_up": state.link,
            "open": state.open,
            "open_error": os.strerror(state.open_errno) if state.open_errno else None,
            "disconnects": state.disconnects,
            "reconnects": state.reconnects,
            "changed_host_ns": state.changed_host_ns or None,
            "down_ns": state.down_ns or None,
            "dropped": dict(zip(DROP_REASONS, state.drops, strict=True)),
            "receive_overflows": state.overflows,
            "tx_stamps_lost": state.stamps_lost,
            "stamps": stamps_of(state),
        }
        for nic, state in zip(view.nics, snapshot.nics, strict=True)
    ]
    seen = edge_evidence(view, snapshot)
    edges = []
    for number, (peer, edge, evidence) in enumerate(zip(view.peers, snapshot.edges, seen, strict=True)):
        nic = view.nics[peer.nic]
        edges.append(
            {
                "device": nic.device,
                "network": nic.network,
                "peer": peer.host,
                "peer_device": peer.device,
                "peer_network": peer.network,
                "peer_address": peer.address,
                "evidence": evidence,
                **_edge(edge, port),
                "outbound_hops": [list(hops.get((number, path), ())) for path in range(edge.paths)],
            }
        )
    return {
        "host": view.host,
        "clock_synchronized": synchronized,
        "clock_error_bound_ns": snapshot.clock_bound_ns if synchronized else None,
        "front_end": {
            "state": STATE_NAMES[front_end.health.state],
            "disconnects": front_end.health.disconnects,
            # null = it answers
            "targets": front_end.described(),
        },
        "nics": nics,
        "edges": edges,
        "queue_pairs": list(queue_pairs),
    }


def _edge(edge: EdgeState, port: int) -> dict[str, Any]:
    known = edge.window_count > 0
    learned = edge.latency != HealthState.UNKNOWN
    worst = worst_path(edge)
    return {
        "slot": edge.slot,
        "state": _EDGE_STATES[HealthState(edge.state)],
        "inbound": _EDGE_STATES[HealthState(edge.inbound)],
        "outbound": _EDGE_STATES[HealthState(edge.outbound)],
        "received_age_ns": edge.received_age_ns if edge.received_age_ns >= 0 else None,
        "received_by_peer_age_ns": edge.received_by_peer_age_ns
        if edge.received_by_peer_age_ns >= 0
        else None,
        "changed_host_ns": edge.changed_host_ns or None,
        "degraded_host_ns": edge.degraded_host_ns or None,
        "sent": edge.sent,
        "send_errors": edge.send_errors,
        "received": edge.received,
        "lost": edge.lost,
        "outbound_lost": edge.outbound_lost,
        "rtt_ns": edge.rtt_ns if edge.rtt_ns != UNKNOWN_OWD else None,
        "owd_ns": {
            "min": edge.owd_min_ns,
            "p50": edge.owd_p50_ns,
            "p99": edge.owd_p99_ns,
            "max": edge.owd_max_ns,
            "error_bound": edge.owd_bound_ns,
        }
        if known
        else None,
        "latency": {
            "elevated": edge.latency == HealthState.DOWN if learned else None,
            "baseline_ns": edge.baseline_ns if learned else None,
            "limit_ns": edge.limit_ns,
        },
        "mtu_black_hole_bytes": edge.black_hole_bytes or None,
        "worst_port": port + worst if worst is not None else None,
        "paths": [
            {
                "port": port + index,
                "state": _EDGE_STATES[HealthState(path.state)],
                "owd_ns": path.owd_ns,
                "expected": path.expected,
                "lost": path.lost,
                "loss_ratio": path.loss_ppm / 1e6,
                "lossy": bool(path.lossy),
                "drops_large": path.cut == CUT,
                "elevated": path.latency == HealthState.DOWN if path.latency else None,
            }
            for index, path in enumerate(edge.path(i) for i in range(edge.paths))
        ],
    }
