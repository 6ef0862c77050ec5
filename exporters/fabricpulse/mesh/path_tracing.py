"""Traces the paths of this host's flows, a few at a time, and keeps what is known of them."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from fabricpulse.core.fleet.membership import Nic
from fabricpulse.mesh.config import Probe
from fabricpulse.mesh.fleet_view import FleetView
from fabricpulse.mesh.path_schedule import Hops, PathSchedule, swept


class Tracer(Protocol):
    """What the engine offers."""

    def trace(self, edge: int, path: int) -> bool:
        """Asks for a trace; False if it cannot be made now."""

    def take_traces(self) -> list[tuple[int, int, int, list[str]]]:
        """Generation of the configuration, edge, source port and hops of each that has ended."""


class PathTracing:
    """Of one daemon. known : hops by edge and source port, of the view that is probed. changes : counts them."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._schedules: list[PathSchedule[tuple[int, int]]] = []
        self._nic_of: list[int] = []
        self._edges: list[tuple[Nic, str, str, str]] = []
        self.known: dict[tuple[int, int], Hops] = {}
        self.changes = self.traces = self.unanswered = 0

    def configure(self, view: FleetView) -> None:
        """For what is probed now; what is known of edges that stay is kept."""
        edges = [(view.nics[p.nic], p.host, p.device, p.address) for p in view.peers]
        before = {edge: number for number, edge in enumerate(self._edges)}
        kept = {
            (number, port): self.known[before[edge], port]
            for number, edge in enumerate(edges)
            for port in range(self._probe.paths)
            if edge in before and (before[edge], port) in self.known
        }
        self._edges, self.known = edges, kept
        self._nic_of = [peer.nic for peer in view.peers]
        self._schedules = [
            PathSchedule(
                swept([edge for edge, nic in enumerate(self._nic_of) if nic == index], self._probe.paths),
                self._probe.trace_s,
                self._probe.retrace_s,
                {key: hops for key, hops in kept.items() if self._nic_of[key[0]] == index},
            )
            for index in range(len(view.nics))
        ]
        self.changes += 1

    def tick(self, engine: Tracer, generation: int, now_s: float) -> None:
        """Takes what has ended and asks for what is due. generation : the engine's configuration now."""
        for number, edge, port, hops in engine.take_traces():
            if number != generation or edge >= len(self._nic_of):
                continue
            self.traces += 1
            self.unanswered += not hops
            schedule = self._schedules[self._nic_of[edge]]
            if schedule.traced((edge, port), tuple(hops)):
                self.known = {**self.known, **schedule.known()}
                self.changes += 1
        for schedule in self._schedules:
            if (due := schedule.due(now_s)) is not None and not engine.trace(*due):
                schedule.refused(due)

    async def run(self, engine: Callable[[], Tracer], generation: Callable[[], int]) -> None:
        """Traces until cancelled."""
        while True:
            await asyncio.sleep(min(self._probe.trace_s, 1.0))
            self.tick(engine(), generation(), time.monotonic())
