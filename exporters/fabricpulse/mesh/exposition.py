"""The mesh exporter's /metrics: from a snapshot to text. The samples of edges, most of all, are rendered natively."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fabricpulse.core.alerting.metrics import expose_pushes
from fabricpulse.core.alerting.pusher import PushCounters
from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import Exposition, format_value, render_labels
from fabricpulse.core.metrics.recent_delays import RecentDelays
from fabricpulse.mesh import _probe_engine as native
from fabricpulse.mesh import metrics as m
from fabricpulse.mesh.config import PerEdge
from fabricpulse.mesh.edge_evidence import EdgeView, Evidence, evidence_of
from fabricpulse.mesh.fleet_view import FleetView
from fabricpulse.mesh.front_end import FrontEndHealth
from fabricpulse.mesh.recent_disconnects import RecentDisconnects
from fabricpulse.mesh.snapshot import (
    DROP_REASONS,
    Cause,
    Distribution,
    HealthState,
    Snapshot,
    parse_snapshot,
)

STATE_NAMES = {HealthState.UNKNOWN: "unknown", HealthState.UP: "connected", HealthState.DOWN: "disconnected"}
CAUSE_NAMES = {cause: cause.name.lower() for cause in Cause}


# Hosts of a fleet whose edges are all exported where per_edge is "auto": 64 hosts with 8 NICs have 100,000 such series.
MOST_HOSTS_WITH_ALL_EDGES = 64

# In the order of struct NicEdges in exporters/probe_engine/edge_text.h.
_EDGE_COUNTS = ("up", "down", "unknown", "degraded")
_PROBE_COUNTS = ("sent", "received", "inbound_lost", "outbound_lost")
# In the order of enum EdgeFamily in exporters/probe_engine/edge_text.h.
_EDGE_FAMILIES = (
    m.EDGE_UP,
    m.EDGE_SENT,
    m.EDGE_RECEIVED,
    m.EDGE_LOST,
    m.EDGE_INBOUND,
    m.EDGE_OUTBOUND,
    m.EDGE_OWD,
    m.EDGE_OWD_BOUND,
    m.EDGE_PATH_OWD,
    m.EDGE_WORST_PORT,
    m.EDGE_PATHS_DOWN,
    m.EDGE_BASELINE,
    m.EDGE_ELEVATED,
    m.EDGE_OUTBOUND_LOST,
    m.EDGE_RTT,
    m.EDGE_DEGRADED,
    m.EDGE_WORST_LOSS,
    m.EDGE_BLACK_HOLE,
)


def edge_evidence(view: FleetView, snapshot: Snapshot) -> list[Evidence | None]:
    """The evidence of each edge of the snapshot."""
    dead = [edge.dead_paths() for edge in snapshot.edges]
    if not any(dead) and not any(edge.state == HealthState.DOWN for edge in snapshot.edges):
        return [None] * len(snapshot.edges)  # nearly every scrape of a fleet's life
    views = [
        EdgeView(
            view.nics[peer.nic].device,
            peer.host,
            peer.device,
            edge.state,
            edge.inbound,
            edge.outbound,
            snapshot.nics[peer.nic].state,
            paths,
        )
        for peer, edge, paths in zip(view.peers, snapshot.edges, dead, strict=True)
    ]
    return evidence_of(views)


@dataclass
class Counters:
    """What the daemon itself counts, for the exposition."""

    realtime: bool = False
    membership_ok: bool = False
    member: bool | None = None
    membership_held: bool = False
    membership_changed_s: float = 0.0
    path_traces: int = 0
    path_traces_unanswered: int = 0
    paths_known: int = 0
    queue_pair_paths: dict[str, int] = field(default_factory=lambda: {"known": 0})
    temporary_peers: int = 0
    pushes: Mapping[str, PushCounters] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    front_end: FrontEndHealth = field(default_factory=FrontEndHealth)


Nic = tuple[str, str]  # device, network
_OF = {q: f'quantile="{q:g}"' for q in m.RECENT_QUANTILES}


def recent_delays() -> RecentDelays[Nic]:
    """What the delays of each NIC were lately: kept over changes of the membership, taken at each scrape."""
    return RecentDelays[Nic](m.PROBE_OWD.buckets, m.RECENT_QUANTILES, m.RECENT_OWD_S)


class MeshExposition:
    """Writes the samples of one membership. per_edge : which edges, as in MeshConfig. delays : see recent_delays.
    disconnects : of the NICs, lately.
    """

    def __init__(
        self,
        view: FleetView,
        port: int,
        per_edge: PerEdge = "auto",
        delays: RecentDelays[Nic] | None = None,
        disconnects: RecentDisconnects | None = None,
    ) -> None:
        self._disconnects = RecentDisconnects(-math.inf) if disconnects is None else disconnects
        self._delays = recent_delays() if delays is None else delays
        if per_edge == "auto":
            per_edge = "all" if view.members <= MOST_HOSTS_WITH_ALL_EDGES else "worst"
        self._per_edge = per_edge
        self._view = view
        self._nic_values = [(nic.device, nic.network) for nic in view.nics]
        self._leaves = [nic.leaf for nic in view.nics]
        self._edge_values = [(view.nics[peer.nic].device, peer.host, peer.device) for peer in view.peers]
        self._edge_text = native.EdgeText(
            [spec.name for spec in _EDGE_FAMILIES],
            [render_labels(m.EDGE_UP, values)[1:-1] for values in self._edge_values],
            port,
        )

    def write(self, out: Exposition, raw: bytes, counters: Counters, now_s: float) -> None:
        """Adds everything to `out`. raw : `Engine.snapshot()`. now_s : of a monotonic clock, seconds. NICs come first:
        they stay when the sample cap cuts.

        Raises ValueError for a snapshot of another configuration.
        """
        nic_edges, impaired = self._edge_text.summarize(raw, len(self._nic_values))
        snapshot = parse_snapshot(raw, edges_too=impaired)
        self._write_nics(out, snapshot, nic_edges)
        self._write_disconnects(out, snapshot, now_s)
        self._write_recent_delays(out, snapshot, now_s)
        self._write_engine(out, snapshot, counters)
        if self._per_edge != "none":
            self._write_edges(out, raw)
        if not impaired or self._per_edge == "none":
            return  # nearly every scrape of a fleet's life
        for values, seen in zip(self._edge_values, edge_evidence(self._view, snapshot), strict=True):
            if seen is not None:
                out.add(m.EDGE_EVIDENCE, (*values, seen), 1)

    def _write_nics(self, out: Exposition, snapshot: Snapshot, nic_edges: Sequence[Sequence[int]]) -> None:
        nics = list(zip(self._nic_values, self._leaves, snapshot.nics, strict=True))
        for values, leaf, nic in nics:
            if nic.state != HealthState.UNKNOWN:
                out.add(m.NIC_CONNECTED, (*values, leaf), int(nic.state == HealthState.UP))
            for state, name in STATE_NAMES.items():
                out.add(m.NIC_STATE, (*values, name), int(nic.state == state))
            if nic.cause != Cause.NONE:
                out.add(m.NIC_CAUSE, (*values, CAUSE_NAMES[Cause(nic.cause)]), 1)
            out.add(m.NIC_DISCONNECTS, (*values, leaf), nic.disconnects)
            out.add(m.NIC_RECONNECTS, values, nic.reconnects)
            out.add(m.NIC_CHANGED, values, nic.changed_host_ns / 1e9)
            _histogram(out, m.NIC_OUTAGE, values, nic.outages)
            _histogram(out, m.PROBE_OWD, values, nic.owd)
            for reason, count in zip(DROP_REASONS, nic.drops, strict=True):
                out.add(m.PROBES_DROPPED, (*values, reason), count)
            out.add(m.PROBE_OVERFLOWS, values, nic.overflows)
            out.add(m.PROBE_STAMPS_LOST, values, nic.stamps_lost)
            if nic.phc >= 0 or nic.phc_errno:
                out.add(m.NIC_STAMPS, values, nic.phc_good)
                out.add(m.NIC_CLOCK_LOST, values, nic.phc_lost)
            if nic.phc_good:
                out.add(m.NIC_CLOCK_ERROR, values, nic.phc_error_ns / 1e9)
        for values, counts in zip(self._nic_values, nic_edges, strict=True):
            for edge_state, count in zip(_EDGE_COUNTS, counts[:4], strict=True):
                out.add(m.NIC_EDGES, (*values, edge_state), count)
            out.add(m.SEND_ERRORS, values, counts[4])
            for event, count in zip(_PROBE_COUNTS, counts[5:], strict=True):
                out.add(m.NIC_PROBES, (*values, event), count)

    def _write_disconnects(self, out: Exposition, snapshot: Snapshot, now_s: float) -> None:
        for values, leaf, nic in zip(self._nic_values, self._leaves, snapshot.nics, strict=True):
            down = nic.state == HealthState.DOWN
            if down or (nic.state == HealthState.UP and self._disconnects.is_recent(values, now_s)):
                out.add(m.NIC_DISCONNECTED, (*values, leaf), int(down))
            for nth, age_s in enumerate(self._disconnects.ages(values, now_s), 1):
                out.add(m.NIC_DISCONNECT_AGE, (*values, leaf, str(nth)), age_s)

    def _write_recent_delays(self, out: Exposition, snapshot: Snapshot, now_s: float) -> None:
        counts = {values: nic.owd.counts for values, nic in zip(self._nic_values, snapshot.nics, strict=True)}
        lines = [
            f"{m.RECENT_OWD.name}{render_labels(m.RECENT_OWD, values, _OF[q])} {format_value(value)}\n"
            for values, found in self._delays.take(now_s, counts).items()
            for q, value in zip(self._delays.quantiles, found, strict=True)
        ]
        out.add_block(m.RECENT_OWD, "".join(lines), len(lines))

    def _write_engine(self, out: Exposition, snapshot: Snapshot, counters: Counters) -> None:
        front_end = counters.front_end
        if front_end.state != HealthState.UNKNOWN:
            out.add(m.FRONT_END_CONNECTED, (), int(front_end.state == HealthState.UP))
        out.add(m.FRONT_END_DISCONNECTS, (), front_end.disconnects)
        out.add(m.FRONT_END_DOWN, (), front_end.down_s)
        _histogram(out, m.LATENESS, (), snapshot.lateness)
        single: Sequence[tuple[MetricSpec, float]] = (
            (m.STALLS, snapshot.stalls),
            (m.STALLED, snapshot.stalled_ns / 1e9),
            (m.CLOCK_STEPS, snapshot.clock_steps),
            (m.ENGINE_CPU, snapshot.cpu_ns / 1e9),
            (m.ENGINE_REALTIME, int(counters.realtime)),
            (m.SAMPLES, snapshot.samples),
            (m.MEMBERS, self._view.members),
            (m.MEMBERSHIP_SUCCESS, int(counters.membership_ok)),
            (m.MEMBERSHIP_HELD, int(counters.membership_held)),
            (m.MEMBERSHIP_TIME, counters.membership_changed_s),
            (m.PATH_TRACES, counters.path_traces),
            (m.PATH_TRACES_UNANSWERED, counters.path_traces_unanswered),
            (m.PATHS_KNOWN, counters.paths_known),
            (m.TEMPORARY_PEERS, counters.temporary_peers),
            (m.EVENTS_DROPPED, snapshot.events_dropped),
        )
        for spec, value in single:
            out.add(spec, (), value)
        if counters.member is not None:
            out.add(m.MEMBER, (), int(counters.member))
        for state, count in counters.queue_pair_paths.items():
            out.add(m.QUEUE_PAIR_PATHS, (state,), count)
        expose_pushes(counters.pushes, out)
        for kind, count in counters.events.items():
            out.add(m.EVENTS, (kind,), count)

    def _write_edges(self, out: Exposition, raw: bytes) -> None:
        for spec, (text, samples) in zip(
            _EDGE_FAMILIES, self._edge_text.render(raw, self._per_edge == "worst"), strict=True
        ):
            out.add_block(spec, text, samples)


def _histogram(out: Exposition, spec: MetricSpec, values: Iterable[str], distribution: Distribution) -> None:
    out.add_histogram(spec, tuple(values), distribution.counts, distribution.sum_ns / 1e9)
