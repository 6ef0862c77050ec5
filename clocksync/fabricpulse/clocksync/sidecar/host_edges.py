"""The edges of this host: from the probe ring to fits, reports and residuals."""

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.edge.estimator import EdgeFit, EstimatorParameters
from fabricpulse.clocksync.edge.ownership import is_ours
from fabricpulse.clocksync.edge.samples import RAW, SAMPLE_DTYPE, SampleReader, train_interval_ns
from fabricpulse.clocksync.edge.window import EdgeWindow
from fabricpulse.clocksync.wire.messages import EdgeName, EdgeReport, EdgeResidual
from fabricpulse.core.log import get_logger
from fabricpulse.core.shm.mapping import LayoutError

log = get_logger(__name__)

# Samples that are already in the ring when we start are used: a restart then costs no window.
_BACKLOG = 1 << 14
# How often the thread that watches a ring asks whether there is another; without one, whether there is one.
_OTHER_RING_S, _ANY_RING_S = 1.0, 0.25


@dataclass
class HostEdge:
    """One edge. ours : this end reports it (ownership.py); the other end's fit is as good."""

    name: EdgeName
    generation: int
    ours: bool
    window: EdgeWindow
    fit: EdgeFit | None = None
    residual: EdgeResidual | None = None


class HostEdges:
    """Follows the probe ring at `path`, and a new one when the engine starts anew.

    samples, lost : counters. step_peers, fitted_peers : hosts to which the last round saw a clock step, and all of
    them. follow : called for each ring with SampleReader.counts and ns between two trains of an edge, once known.
    generation : counts changes of the edges. refused : why the ring that is there cannot be read, and what to do,
    "" while it can.
    """

    def __init__(self, path: Path, parameters: EstimatorParameters, host: str = "") -> None:
        """host : this host's name, until there is a ring to say it."""
        self.follow: Callable[[NDArray[np.uint64], int], None] = lambda *_: None
        self._followed = False
        self._path = path
        self._parameters = parameters
        self._name = host
        self._ring: SampleReader | None = None
        self._ring_host = ""
        self._edges_sequence = -1
        self._by_index: dict[int, HostEdge] = {}
        self._retired_steps = self._retired_route_changes = 0
        self.samples = self.lost = 0
        self._contradictions = 0
        self.stamp_epoch_ns: int | None = None
        self.step_peers: set[str] = set()
        self.fitted_peers: set[str] = set()
        self.generation = 0
        self.refused = ""

    def __iter__(self) -> Iterator[HostEdge]:
        return iter(self._by_index.values())

    def __len__(self) -> int:
        return len(self._by_index)

    @property
    def host(self) -> str:
        """The host's name: as the ring says, else as configured. Others measure their edges to the mesh's name."""
        return self._ring_host or self._name

    @property
    def steps(self) -> int:
        """Clock steps that edges have seen."""
        return self._retired_steps + sum(e.window.steps for e in self._by_index.values())

    @property
    def route_changes(self) -> int:
        """Changes of route that edges have seen."""
        return self._retired_route_changes + sum(e.window.route_changes for e in self._by_index.values())

    def read(self) -> None:
        """Takes what is new in the ring. One that cannot be read is `refused`, and logged once for each reason: fleet
        time goes on without samples, from coordinators and neighbours.
        """
        refused = ""
        try:
            self._read()
        except LayoutError as error:
            refused = (
                f"{error}: mesh and sidecar are of different versions; upgrade the older one, and restart it"
            )
        except OSError as error:
            refused = f"cannot read {self._path}: {error.strerror}; run mesh and sidecar as the same user"
        if refused and refused != self.refused:
            log.error("no probe samples", reason=refused)
        self.refused = refused

    def _read(self) -> None:
        if self._ring is not None and self._ring.stale():
            # Not closed: a thread may be at it (`watch`). It is unmapped with its last reference.
            self._ring = None
        if self._ring is None:
            try:
                self._ring = SampleReader(self._path, backlog=_BACKLOG)
            except FileNotFoundError:
                return
            self._ring_host = self._ring.host
            self._contradictions = self._ring.contradictions
            self.stamp_epoch_ns = self._ring.stamp_epoch_ns
            self._edges_sequence, self._followed = -1, False
            self._replace({})
            log.info("reading probe samples", host=self._ring.host, epoch=self._ring.epoch)
            if self._name not in ("", self._ring.host):
                log.warning(
                    "the host of the settings is not the name that the mesh has for this host, which counts, as others "
                    "know it by that: remove host from the sidecar's settings, or correct the mesh's",
                    host=self._name,
                    mesh=self._ring.host,
                )
        ring = self._ring
        if not self._take_table(ring):
            # It is not known yet whose the samples are; they wait in the ring.
            return
        lost = ring.lost
        samples = ring.read()
        before = self._by_index
        if not self._take_table(ring):
            return
        self.samples += len(samples)
        self.lost += ring.lost - lost
        if not self._followed and (interval_ns := train_interval_ns(samples)):
            self._followed = True
            self.follow(ring.counts, interval_ns)
        # Sorted once and cut, instead of searched for each edge.
        order = np.argsort(samples["edge"], kind="stable")
        numbers, ordered = samples["edge"][order], samples.view(RAW)[order].view(SAMPLE_DTYPE)
        begins, ends = (
            np.searchsorted(numbers, list(self._by_index), side).tolist() for side in ("left", "right")
        )
        for (index, edge), first, last in zip(self._by_index.items(), begins, ends, strict=True):
            # Of an edge that has just taken another's place, samples of both may be there.
            if first < last and before.get(index) is edge:
                edge.window.add(ordered[first:last])

    @property
    def engine_seen(self) -> bool:
        """True while there is a ring to read."""
        return self._ring is not None

    def _take_table(self, ring: SampleReader) -> bool:
        """Takes the edge table if it has changed; False where it cannot be read now."""
        sequence = ring.edges_sequence
        if sequence == self._edges_sequence:
            return True
        table = ring.edges()
        if table is None:
            return False
        self._edges_sequence = sequence
        edges = {}
        for index, entry in table.items():
            known = self._by_index.get(index)
            if known is not None and known.generation == entry.generation:
                edges[index] = known
                continue
            name = EdgeName(entry.device, entry.peer, entry.peer_device)
            ours = is_ours(self.host, name)
            edges[index] = HostEdge(name, entry.generation, ours, EdgeWindow(self._parameters))
        self._replace(edges)
        return True

    def _replace(self, edges: dict[int, HostEdge]) -> None:
        kept = {id(edge) for edge in edges.values()}
        for edge in self._by_index.values():
            if id(edge) not in kept:
                self._retired_steps += edge.window.steps
                self._retired_route_changes += edge.window.route_changes
        self._by_index = edges
        self.generation += 1

    def fit(self, now_ns: int, window_ns: int, *, everything: bool) -> None:
        """Fits the edges that are ours, or all, over the last `window_ns` before stamp time `now_ns`."""
        self.step_peers, self.fitted_peers = set(), set()
        for edge in self._by_index.values():
            edge.window.window_ns = window_ns
            if everything or edge.ours:
                steps = edge.window.steps
                edge.fit = edge.window.advance(now_ns)
                if edge.window.steps != steps:
                    self.step_peers.add(edge.name.peer)
                if edge.fit is not None or edge.window.steps != steps:
                    self.fitted_peers.add(edge.name.peer)
            else:
                edge.window.idle(now_ns)
                edge.fit = None

    def watch(self, notice: Callable[[], None], stopped: threading.Event) -> None:
        """For a thread of its own: calls `notice` when `contradicted` or `hidden_jump_ns` may have changed, until
        `stopped`. As a task of the event loop the same would cost more than all fits of ten edges.
        """
        ring = None
        while not stopped.is_set():
            before, ring = ring, self._ring
            if ring is None and before is None:
                stopped.wait(_ANY_RING_S)
            elif ring is None or ring is not before or ring.wait_notice(_OTHER_RING_S):
                notice()

    def end_watch(self) -> None:
        """Has the thread ask whether it is to end. It may not be waiting yet: until it has ended, again and again."""
        if self._ring is not None:
            self._ring.wake()

    def contradicted(self) -> bool:
        """Whether delays have contradicted this host's clock page since the last call (causality, the engine says)."""
        if self._ring is None:
            return False
        before, self._contradictions = self._contradictions, self._ring.contradictions
        return self._contradictions > before

    def hidden_jump_ns(self) -> int:
        """By how much this host's clock may have jumped unseen, beyond its bound: as the engine says of the delays of
        the last seconds, ns."""
        return self._ring.hidden_jump_ns if self._ring is not None else 0

    def clear(self) -> None:
        """Forgets all samples, also those that wait in the ring: this host's clocks were disrupted."""
        if self._ring is not None:
            self._ring.read()
        for edge in self._by_index.values():
            edge.window.clear()
            edge.fit = None

    def set_parameters(self, parameters: EstimatorParameters) -> None:
        """After a reload."""
        self._parameters = parameters
        for edge in self._by_index.values():
            edge.window.parameters = parameters

    def names(self) -> tuple[EdgeName, ...]:
        """All edges, in the order that reports count them."""
        return tuple(edge.name for edge in self._by_index.values())

    def fits(self) -> list[EdgeFit]:
        """The fits of the last round."""
        return [edge.fit for edge in self._by_index.values() if edge.fit is not None]

    def reports(self) -> list[EdgeReport]:
        """The fits of the last round, for the wire."""
        return [
            EdgeReport(
                t_ns=fit.t_ns,
                offset_ns=fit.offset_ns,
                rate_ppt=round(fit.rate_ppb * 1000),
                last_after_us=(fit.t_last_ns - fit.t_ns) // 1000,
                sigma_ns=round(fit.sigma_ns),
                rate_sigma_ppt=round(fit.rate_sigma_ppb * 1000),
                bound_ns=math.ceil(fit.bound_ns),
                edge=number,
                quality=int(fit.quality),
            )
            for number, edge in enumerate(self._by_index.values())
            if (fit := edge.fit) is not None
        ]

    def take_residuals(self, residuals: list[EdgeResidual]) -> None:
        """What the coordinator says of the edges that were reported."""
        edges = list(self._by_index.values())
        for residual in residuals:
            if residual.edge < len(edges):
                edges[residual.edge].residual = residual
