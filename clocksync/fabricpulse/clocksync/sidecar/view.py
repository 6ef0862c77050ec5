"""What the sidecar shows: the status document, the history, the metrics."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fabricpulse.clocksync import metrics
from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import FleetClock
from fabricpulse.clocksync.edge.estimator import Quality
from fabricpulse.clocksync.outputs.outputs import Outputs
from fabricpulse.clocksync.sidecar.coordinator_client import CoordinatorClient
from fabricpulse.clocksync.sidecar.host_edges import HostEdge, HostEdges
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.shm.clock_page import ClockPage, ClockStatus

_WORST_EDGES = 5
# Rounds that `clocksync status --plot` can look back: an hour.
_HISTORY = 3600


@dataclass(frozen=True)
class _Point:
    at_s: float
    correction_ns: int
    bound_ns: int
    rate_ppb: float
    status: str


@dataclass
class SidecarHistory:
    """The last hour of rounds."""

    _points: deque[_Point] = field(default_factory=lambda: deque(maxlen=_HISTORY))

    def add(self, clock: FleetClock, page: ClockPage, raw_ns: int, correction_ns: int) -> None:
        """Remembers a round. page : as readers see it. correction_ns : what was published minus what the new correction
        asks for.
        """
        bound_ns = page.at(raw_ns).bound_ns
        rate_ppb = clock.rate_ppt * 1e-3
        self._points.append(
            _Point(time.monotonic(), correction_ns, bound_ns, rate_ppb, page.status.name.lower())
        )

    def document(self) -> list[dict[str, Any]]:
        """As `fabricpulse.clocksync.plot.HistoryPoint`s, oldest first."""
        now = time.monotonic()
        return [
            {
                "age_s": now - p.at_s,
                "correction_ns": p.correction_ns,
                "bound_ns": p.bound_ns,
                "rate_ppb": p.rate_ppb,
                "status": p.status,
            }
            for p in self._points
        ]


@dataclass(frozen=True)
class SidecarView:
    """What there is to see `now`. shown : the page of `clock` as readers see it.

    root, suspect : as the coordinator last said.

    anchor_bound_ns : how far from UTC the host's own clock may be, None while it is no anchor. anchor_refused : as in
    SystemAnchor. contradictions : by source.
    """

    host: str
    now: CrossTimestamp
    clock: FleetClock
    shown: ClockPage
    edges: HostEdges
    coordinator: CoordinatorClient
    outputs: Outputs
    root: str
    suspect: str
    fit_s: float
    anchor_bound_ns: int | None
    anchor_refused: str
    contradictions: Mapping[str, int]

    def status(self) -> dict[str, Any]:
        """The document of `/api/v1/clocksync/status`."""
        page, known = self.shown, self.clock.known
        fleet = page.at(self.now.raw_ns)
        return {
            "host": self.host,
            "status": page.status.name.lower(),
            "why": self._why(),
            "host_ns": self.now.host_ns,
            "fleet_ns": fleet.fleet_ns if known else None,
            "bound_ns": fleet.bound_ns if known else None,
            "estimated_error_ns": self._likely_ns() or None,
            "offset_ns": fleet.fleet_ns - self.now.host_ns if known else None,
            "rate_ppb": self.clock.rate_ppt * 1e-3,
            "coordinator_up": self.coordinator.up,
            "root": self.root,
            "anchor_bound_ns": self.anchor_bound_ns,
            "anchor_refused": self.anchor_refused,
            "suspect": self.suspect,
            "disruptions": page.disruptions,
            "host_clock_steps": self.clock.host.steps,
            "edges": [_edge_document(edge) for edge in self.edges],
        }

    def _likely_ns(self) -> int:
        synchronized = self.shown.status == ClockStatus.SYNCHRONIZED
        return self.clock.estimated_error_ns(self.now) if synchronized else 0

    def _why(self) -> str:
        """Why fleet time is not synchronised, "" when it is: the first thing to look at."""
        if self.shown.status == ClockStatus.SYNCHRONIZED:
            return ""
        if self.clock.page.status == ClockStatus.SYNCHRONIZED:
            return (
                "no new probe samples, or none until just now, so that a pause of the machine would not be noticed: "
                "do fabricpulse mesh and the peers run? Or delays have shifted, as if this host's clock moved"
            )
        if self.clock.disrupted_raw_ns is not None:
            return "fleet time of this host contradicts the fleet's (was the machine paused?): soon it is set anew"
        if self.edges.refused:
            return f"no probe samples: {self.edges.refused}"
        if not self.edges.engine_seen:
            return "no probe samples: is fabricpulse mesh running on this host, with the same FABRICPULSE_RUN_DIR?"
        if not len(self.edges):
            return "the mesh has no edges: is this host in its membership, and any other?"
        if self.clock.no_quorum and self.coordinator.up:
            return (
                "this partition has no quorum (most of the fleet, or every anchor, is unreachable): holdover until the "
                "rest of the fleet is reachable; if that will not return, restart all sidecars of this partition, "
                "then its coordinators"
            )
        if not self.edges.fits():
            return (
                "no edge has samples of both directions: do the peers run, and do their NICs reach this host?"
            )
        if not self.coordinator.up:
            if refused := self.coordinator.refused:
                return f"no coordinator takes the reports, and no neighbour has a fleet time: {refused}"
            return "no coordinator answers, and no neighbour has a fleet time"
        if self.suspect:
            return f"the coordinator accepts none of this host's edges: {self.suspect}"
        return "the coordinator has no edge that ties this host to the fleet: do the peers' sidecars report to it?"

    def metrics(self, text_format: TextFormat) -> bytes:
        """The exposition."""
        out = Exposition()
        page, known = self.shown, self.clock.known
        time_now = page.at(self.now.raw_ns)
        out.add(metrics.BOUND, (), time_now.bound_ns * 1e-9 if known else float("inf"))
        if likely_ns := self._likely_ns():
            out.add(metrics.ESTIMATED_ERROR, (), likely_ns * 1e-9)
        if known:
            out.add(metrics.OFFSET, (), (time_now.fleet_ns - self.now.host_ns) * 1e-9)
            out.add(metrics.FREQUENCY, (), 1.0 + self.clock.rate_ppt * 1e-12)
            slew = self.clock.target.at(self.now.raw_ns) - page.current.at(self.now.raw_ns)
            out.add(metrics.SLEW, (), slew * 1e-9)
        out.add(metrics.SYNCHRONIZED, (), int(page.status == ClockStatus.SYNCHRONIZED))
        for status in ClockStatus:
            out.add(metrics.STATUS, (status.name.lower(),), int(page.status == status))
        out.add(metrics.HOST_CLOCK_STEPS, (), self.clock.host.steps)
        for source, count in self.contradictions.items():
            out.add(metrics.CONTRADICTIONS, (source,), count)
        self._add_edges(out)
        out.add(metrics.EDGE_STEPS, (), self.edges.steps)
        out.add(metrics.ROUTE_CHANGES, (), self.edges.route_changes)
        out.add(metrics.SAMPLES, (), self.edges.samples)
        out.add(metrics.SAMPLES_LOST, (), self.edges.lost)
        out.add(metrics.COORDINATOR_UP, (), int(self.coordinator.up))
        for reason, count in self.coordinator.errors.items():
            out.add(metrics.REPORT_ERRORS, (reason,), count)
        out.add(metrics.SUSPECT, (), int(bool(self.suspect)))
        out.add(metrics.FIT_SECONDS, (), self.fit_s)
        for output, refclock in self.outputs.refclocks.items():
            out.add(metrics.OUTPUT_SAMPLES, (output,), refclock.sent)
            out.add(metrics.OUTPUT_FAILURES, (output,), refclock.failed)
        return out.render(text_format)

    def _add_edges(self, out: Exposition) -> None:
        qualities = [_quality(edge) for edge in self.edges]
        for quality in (*(q.name.lower() for q in Quality), "peer", "none"):
            out.add(metrics.EDGES, (quality,), qualities.count(quality))
        tested = [(edge, edge.residual) for edge in self.edges if edge.fit and edge.residual]
        tested.sort(key=lambda pair: -abs(pair[1].residual_ns))
        for edge, residual in tested[:_WORST_EDGES]:
            name = (edge.name.device, edge.name.peer, edge.name.peer_device)
            out.add(metrics.EDGE_RESIDUAL, name, residual.residual_ns * 1e-9)


def _quality(edge: HostEdge) -> str:
    """What the fit rests on; "peer" where the other end fits the edge."""
    if edge.fit is not None:
        return edge.fit.quality.name.lower()
    return "none" if edge.ours else "peer"


def _edge_document(edge: HostEdge) -> dict[str, Any]:
    fit = edge.fit
    residual = edge.residual if fit is not None else None
    return {
        "device": edge.name.device,
        "peer": edge.name.peer,
        "peer_device": edge.name.peer_device,
        "t_ns": fit.t_ns if fit else None,
        "offset_ns": fit.offset_ns if fit else None,
        "raw_offset_ns": fit.raw_offset_ns if fit else None,
        "rate_ppb": fit.rate_ppb if fit else None,
        "half_gap_ns": fit.half_gap_ns if fit else None,
        "bound_ns": fit.bound_ns if fit else None,
        "sigma_ns": fit.sigma_ns if fit else None,
        "trains": fit.trains if fit else 0,
        "quality": _quality(edge),
        "residual_ns": residual.residual_ns if residual else None,
        "fits": residual.fits if residual else None,
    }
