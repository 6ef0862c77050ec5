"""The mesh exporter's /metrics: from a snapshot to text. The label part of a series is rendered once per membership."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import Exposition, render_labels
from fabricpulse.exporters.mesh import metrics as m
from fabricpulse.exporters.mesh.faults import EdgeView, Fault, diagnose
from fabricpulse.exporters.mesh.fleet_view import FleetView
from fabricpulse.exporters.mesh.snapshot import DROP_REASONS, Cause, Distribution, EdgeState, Snapshot, State

STATE_NAMES = {State.UNKNOWN: "unknown", State.UP: "connected", State.DOWN: "disconnected"}
CAUSE_NAMES = {cause: cause.name.lower() for cause in Cause}


class PathSummary(NamedTuple):
    """Delays over the source ports of an edge, ns. worst : index of the worst path. dead : paths that do not arrive."""

    best_ns: int
    median_ns: int
    worst_ns: int
    worst: int
    dead: int


def summarize_paths(edge: EdgeState) -> PathSummary | None:
    """Best, median and worst source port of an edge; None before any was measured. A dead path is the worst."""
    raw = edge.raw_paths
    known: list[tuple[int, int]] = []
    dead = 0
    worst_dead = -1
    for index in range(edge.paths):
        if raw[4 * index + 3] == State.DOWN:
            dead += 1
            worst_dead = index
        elif raw[4 * index + 2] > -(1 << 63):
            known.append((raw[4 * index + 2], index))
    if not known:
        return None
    known.sort()
    worst_ns, worst = known[-1]
    return PathSummary(known[0][0], known[len(known) // 2][0], worst_ns, worst_dead if dead else worst, dead)


def edge_faults(view: FleetView, snapshot: Snapshot) -> list[Fault | None]:
    """The fault of each edge of the snapshot."""
    views = []
    for peer, edge in zip(view.peers, snapshot.edges, strict=True):
        dead = sum(1 for index in range(edge.paths) if edge.raw_paths[4 * index + 3] == State.DOWN)
        views.append(
            EdgeView(
                view.nics[peer.nic].device,
                peer.host,
                peer.device,
                edge.state,
                edge.inbound,
                edge.outbound,
                snapshot.nics[peer.nic].state,
                dead,
            )
        )
    return diagnose(views)


@dataclass
class Counters:
    """What the daemon itself counts, for the exposition."""

    realtime: bool = False
    membership_ok: bool = False
    membership_changed_s: float = 0.0
    pushes: dict[str, int] = field(default_factory=dict)
    push_failures: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)


class MeshExposition:
    """Writes the samples of one membership."""

    def __init__(self, view: FleetView, port: int) -> None:
        self._view = view
        self._port = port
        self._nic_values = [(nic.device, nic.network) for nic in view.nics]
        self._edge_values = [(view.nics[peer.nic].device, peer.host, peer.device) for peer in view.peers]
        self._edge_labels = [render_labels(m.EDGE_UP, values) for values in self._edge_values]
        self._quantile_labels = {
            quantile: [
                render_labels(m.EDGE_OWD, values, f'quantile="{quantile}"') for values in self._edge_values
            ]
            for quantile in ("0.5", "0.99", "1")
        }
        self._path_labels = {
            path: [render_labels(m.EDGE_PATH_OWD, (*values, path)) for values in self._edge_values]
            for path in ("best", "median", "worst")
        }

    def write(self, out: Exposition, snapshot: Snapshot, counters: Counters) -> None:
        """Adds everything to `out`. NICs come first: they stay when the sample cap cuts."""
        self._write_nics(out, snapshot)
        self._write_engine(out, snapshot, counters)
        self._write_edges(out, snapshot.edges)
        for values, fault in zip(self._edge_values, edge_faults(self._view, snapshot), strict=True):
            if fault is not None:
                out.add(m.EDGE_FAULT, (*values, fault), 1)

    def _write_nics(self, out: Exposition, snapshot: Snapshot) -> None:
        nics = list(zip(self._nic_values, snapshot.nics, strict=True))
        for values, nic in nics:
            if nic.state != State.UNKNOWN:
                out.add(m.NIC_CONNECTED, values, int(nic.state == State.UP))
            for state, name in STATE_NAMES.items():
                out.add(m.NIC_STATE, (*values, name), int(nic.state == state))
            if nic.cause != Cause.NONE:
                out.add(m.NIC_CAUSE, (*values, CAUSE_NAMES[Cause(nic.cause)]), 1)
            out.add(m.NIC_DISCONNECTS, values, nic.disconnects)
            out.add(m.NIC_RECONNECTS, values, nic.reconnects)
            out.add(m.NIC_CHANGED, values, nic.changed_host_ns / 1e9)
            _histogram(out, m.NIC_OUTAGE, values, nic.outages)
            _histogram(out, m.PROBE_OWD, values, nic.owd)
            for reason, count in zip(DROP_REASONS, nic.drops, strict=True):
                out.add(m.PROBES_DROPPED, (*values, reason), count)
            out.add(m.PROBE_OVERFLOWS, values, nic.overflows)
            out.add(m.PROBE_STAMPS_LOST, values, nic.stamps_lost)
        errors = [0] * len(nics)
        for edge in snapshot.edges:
            errors[edge.nic] += edge.send_errors
        for (values, _), count in zip(nics, errors, strict=True):
            out.add(m.SEND_ERRORS, values, count)

    def _write_engine(self, out: Exposition, snapshot: Snapshot, counters: Counters) -> None:
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
            (m.MEMBERSHIP_TIME, counters.membership_changed_s),
            (m.EVENTS_DROPPED, snapshot.events_dropped),
        )
        for spec, value in single:
            out.add(spec, (), value)
        labelled: Sequence[tuple[MetricSpec, Mapping[str, int]]] = (
            (m.PUSHES, counters.pushes),
            (m.PUSH_FAILURES, counters.push_failures),
            (m.EVENTS, counters.events),
        )
        for spec, values in labelled:
            for label, count in values.items():
                out.add(spec, (label,), count)

    def _write_edges(self, out: Exposition, edges: Sequence[EdgeState]) -> None:
        labels = self._edge_labels

        def family(spec: MetricSpec, value: Callable[[EdgeState], int | None]) -> None:
            name = spec.name
            out.add_lines(
                spec,
                [
                    f"{name}{label} {v}\n"
                    for label, edge in zip(labels, edges, strict=True)
                    if (v := value(edge)) is not None
                ],
            )

        def verdict(state: int) -> int | None:
            return None if state == State.UNKNOWN else int(state == State.UP)

        family(m.EDGE_UP, lambda e: verdict(e.state))
        family(m.EDGE_SENT, lambda e: e.sent)
        family(m.EDGE_RECEIVED, lambda e: e.received)
        family(m.EDGE_LOST, lambda e: e.lost)
        family(m.EDGE_INBOUND, lambda e: verdict(e.inbound))
        family(m.EDGE_OUTBOUND, lambda e: verdict(e.outbound))
        self._write_owd(out, edges)
        self._write_paths(out, edges)

    def _write_owd(self, out: Exposition, edges: Sequence[EdgeState]) -> None:
        half, most, top = (self._quantile_labels[q] for q in ("0.5", "0.99", "1"))
        name = m.EDGE_OWD.name
        groups = []
        for index, (label, edge) in enumerate(zip(self._edge_labels, edges, strict=True)):
            group = []
            if edge.window_count:
                group = [
                    f"{name}{half[index]} {edge.owd_p50_ns / 1e9!r}\n",
                    f"{name}{most[index]} {edge.owd_p99_ns / 1e9!r}\n",
                    f"{name}{top[index]} {edge.owd_max_ns / 1e9!r}\n",
                ]
            group.append(f"{name}_sum{label} {edge.owd_sum_ns / 1e9!r}\n")
            group.append(f"{name}_count{label} {edge.owd_count}\n")
            groups.append(group)
        out.add_groups(m.EDGE_OWD, groups)

        def seconds(
            spec: MetricSpec, value: Callable[[EdgeState], int], known: Callable[[EdgeState], bool]
        ) -> None:
            out.add_lines(
                spec,
                [
                    f"{spec.name}{label} {value(edge) / 1e9!r}\n"
                    for label, edge in zip(self._edge_labels, edges, strict=True)
                    if known(edge)
                ],
            )

        seconds(m.EDGE_OWD_BOUND, lambda e: e.owd_bound_ns, lambda e: e.window_count > 0)
        seconds(m.EDGE_BASELINE, lambda e: e.baseline_ns, lambda e: e.latency != State.UNKNOWN)
        out.add_lines(
            m.EDGE_ELEVATED,
            [
                f"{m.EDGE_ELEVATED.name}{label} {int(edge.latency == State.DOWN)}\n"
                for label, edge in zip(self._edge_labels, edges, strict=True)
                if edge.latency != State.UNKNOWN
            ],
        )

    def _write_paths(self, out: Exposition, edges: Sequence[EdgeState]) -> None:
        best, median, worst = (self._path_labels[path] for path in ("best", "median", "worst"))
        delays, ports, down = [], [], []
        name = m.EDGE_PATH_OWD.name
        for index, (label, edge) in enumerate(zip(self._edge_labels, edges, strict=True)):
            summary = summarize_paths(edge)
            if summary is None:
                continue
            delays.append(f"{name}{best[index]} {summary.best_ns / 1e9!r}\n")
            delays.append(f"{name}{median[index]} {summary.median_ns / 1e9!r}\n")
            delays.append(f"{name}{worst[index]} {summary.worst_ns / 1e9!r}\n")
            ports.append(f"{m.EDGE_WORST_PORT.name}{label} {self._port + summary.worst}\n")
        for label, edge in zip(self._edge_labels, edges, strict=True):
            if edge.received:
                dead = edge.raw_paths[3::4].count(State.DOWN)
                down.append(f"{m.EDGE_PATHS_DOWN.name}{label} {dead}\n")
        out.add_lines(m.EDGE_PATH_OWD, delays)
        out.add_lines(m.EDGE_WORST_PORT, ports)
        out.add_lines(m.EDGE_PATHS_DOWN, down)


def _histogram(out: Exposition, spec: MetricSpec, values: Iterable[str], distribution: Distribution) -> None:
    out.add_histogram(spec, tuple(values), distribution.counts, distribution.sum_ns / 1e9)
