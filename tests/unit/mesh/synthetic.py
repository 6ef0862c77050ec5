"""Engine snapshots and fleet views made up for the tests, all values distinct and plausible."""

from fabricpulse.core.fleet.membership import Nic
from fabricpulse.mesh import _probe_engine as native
from fabricpulse.mesh.fleet_view import FleetView, Peer
from fabricpulse.mesh.snapshot import (
    EDGE,
    HEADER,
    NIC,
    UNKNOWN_OWD,
    Distribution,
    EdgeState,
    HealthState,
    NicState,
    Snapshot,
)

OWD, OUTAGE, LATE = (
    len(bounds) + 1
    for bounds in (native.OWD_BUCKETS_NS, native.OUTAGE_BUCKETS_NS, native.LATENESS_BUCKETS_NS)
)


def nic_state(index, state=HealthState.UP, cause=0):
    return NicState(
        state=state,
        cause=cause,
        open=True,
        link=True,
        open_errno=0,
        disconnects=index,
        reconnects=index,
        changed_host_ns=1_700_000_000_000_000_000 + index,
        down_ns=0,
        outages=Distribution(tuple(range(OUTAGE)), 12_345_678_901 + index),
        owd=Distribution(tuple(1000 + i + index for i in range(OWD)), 98_765_432_100),
        drops=tuple(range(7)),
        overflows=3,
        stamps_lost=4,
        phc_lost=5,
        phc_error_ns=640,
        phc=0 if index == 1 else -1,
        phc_errno=0,
        phc_good=int(index == 1),
    )


def edge_state(index, nic, state=HealthState.UP, paths=8, latency=HealthState.UP):
    raw = []
    for path in range(native.MAX_PATHS):
        raw += [
            300 + path,
            path,
            2_000 + 10 * path + index if path < paths else UNKNOWN_OWD,
            *(int(HealthState.UP), int(HealthState.UP), 0, 0, 0),
        ]
    return EdgeState(
        slot=index,
        nic=nic,
        state=state,
        inbound=state,
        outbound=HealthState.UP if state == HealthState.UP else HealthState.UNKNOWN,
        latency=latency,
        paths=paths,
        sent=150_000 + index,
        send_errors=index % 3,
        received=149_000 + index,
        lost=7 + index,
        received_age_ns=12_000_000,
        received_by_peer_age_ns=30_000_000,
        owd_count=50_000 + index,
        owd_sum_ns=105_000_000 + index,
        window_count=1_400,
        peer_epoch=99,
        owd_p50_ns=2_100 + index,
        owd_p99_ns=3_900 + index,
        owd_max_ns=88_000 + index,
        owd_min_ns=1_800,
        owd_bound_ns=140,
        baseline_ns=2_050 + index,
        limit_ns=26_150,
        outbound_lost=3 + index,
        rtt_ns=4_200 + index,
        changed_host_ns=1_700_000_001_000_000_000,
        degraded_host_ns=0,
        black_hole_bytes=0,
        maybe_cut=0,
        raw_paths=tuple(raw),
    )


def view_and_snapshot(nics=2, peers=3):
    """A host with `nics` NICs of `peers` peers each, everything up."""
    view = FleetView(
        "h0",
        tuple(Nic(device=f"rail{n}", address=f"10.{n}.0.1", network=f"rail{n}") for n in range(nics)),
        tuple(
            Peer(n, f"h{p + 1}", f"rail{n}", f"rail{n}", f"10.{n}.0.{p + 2}")
            for n in range(nics)
            for p in range(peers)
        ),
        peers + 1,
    )
    snapshot = Snapshot(
        generation=1,
        clock_status=1,
        ticks=62_500,
        stalls=1,
        stalled_ns=2_000_000_000,
        cpu_ns=14_000_000_000,
        clock_steps=0,
        events_dropped=0,
        samples=1_000_000,
        clock_bound_ns=70,
        lateness=Distribution(tuple(range(LATE)), 5_000_000),
        nics=[nic_state(n) for n in range(nics)],
        edges=[edge_state(i, i // peers) for i in range(nics * peers)],
    )
    return view, snapshot


def pack_snapshot(snapshot: Snapshot) -> bytes:
    """What the engine would answer: the inverse of parse_snapshot."""
    lateness = snapshot.lateness
    counts = len(snapshot.nics), len(snapshot.edges)
    parts = [HEADER.pack(snapshot.generation, *counts, *snapshot[1:10], *lateness.counts, lateness.sum_ns)]
    for nic in snapshot.nics:
        distributions = (*nic.outages.counts, nic.outages.sum_ns, *nic.owd.counts, nic.owd.sum_ns)
        parts.append(NIC.pack(*nic[:9], *distributions, *nic.drops, *nic[-7:]))
    parts += [EDGE.pack(*edge[:-1], *edge.raw_paths) for edge in snapshot.edges]
    return b"".join(parts)
