"""Traces the paths of the queue pairs of this host's jobs, a few at a time, and keeps what is known of them."""

import asyncio
import errno
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabricpulse.core.fleet.membership import Membership
from fabricpulse.core.log import get_logger
from fabricpulse.core.run_dir import plugin_dir
from fabricpulse.diagnosis.wire.queue_pairs import QueuePairFlow, QueuePairPath
from fabricpulse.mesh.config import Probe
from fabricpulse.mesh.fleet_view import FleetView
from fabricpulse.mesh.path_schedule import Hops, PathSchedule
from fabricpulse.mesh.rdma_plane.hop_probe import MOST_HOPS, ROCE_PORT, Found, Way, traced

if TYPE_CHECKING:
    from fabricpulse.mesh.rdma_plane.queue_pairs import Carried, QueuePairSource

log = get_logger(__name__)

# How often the telemetry of jobs is read: milliseconds of work for each of their processes.
POLL_S = 15.0
_RDMA_DEVICES = Path("/sys/class/infiniband")
Fleet = Callable[[], tuple[FleetView, Membership | None]]
Trace = Callable[[list[Way]], list[Found]]


class QueuePairTracing:
    """Of one daemon. known : hops by flow. packets : sent so far. errors : by flow the errno with which its last trace
    could not be made: EADDRINUSE where somebody's socket has its source port.
    """

    def __init__(self, probe: Probe, fleet: Fleet, trace: Trace = traced) -> None:
        """fleet : what is probed, and the membership that it is from."""
        self._probe = probe
        self._fleet = fleet
        self._trace = trace
        self._source: QueuePairSource | None = None
        self._schedules: dict[str, PathSchedule[QueuePairFlow]] = {}
        self._lengths: dict[tuple[str, str], tuple[int, float]] = {}
        self.carried: Mapping[QueuePairFlow, Carried] = {}
        self.known: dict[QueuePairFlow, Hops] = {}
        self.errors: dict[QueuePairFlow, int] = {}
        self.packets = 0

    def follow(self, carried: "Mapping[QueuePairFlow, Carried]") -> None:
        """These are the flows from now on."""
        self.carried = carried
        by_device: dict[str, list[QueuePairFlow]] = {}
        for flow in carried:
            by_device.setdefault(flow.device, []).append(flow)
        self._schedules = {d: s for d, s in self._schedules.items() if d in by_device}
        for device, flows in by_device.items():
            if device in self._schedules:
                self._schedules[device].follow(flows)
            else:
                self._schedules[device] = PathSchedule(flows, self._probe.trace_s, self._probe.retrace_s)
        self.known = {flow: hops for flow, hops in self.known.items() if flow in carried}
        self.errors = {flow: error for flow, error in self.errors.items() if flow in carried}
        ends = {(flow.near, flow.far) for flow in carried}
        self._lengths = {end: length for end, length in self._lengths.items() if end in ends}

    def step(self, now_s: float) -> None:
        """Traces what is due, one flow of each NIC. Blocks for as long as switches are waited for."""
        due = [flow for s in self._schedules.values() if (flow := s.due(now_s)) is not None]
        if not due:
            return
        self._measure(due, now_s)
        lengths = [self._lengths.get((flow.near, flow.far), (0, 0.0))[0] for flow in due]
        ways = [self._way(flow, ROCE_PORT, hops) for flow, hops in zip(due, lengths, strict=True)]
        found = iter(self._traced([way for way in ways if way.hops]))
        for flow, way in zip(due, ways, strict=True):
            result = next(found) if way.hops else Found(())
            # As new objects: this is a thread, and others iterate over them.
            if result.error or flow in self.errors:
                kept = {other: error for other, error in self.errors.items() if other != flow}
                self.errors = {**kept, flow: result.error} if result.error else kept
            if self._schedules[flow.device].traced(flow, result.hops):
                self.known = {**self.known, flow: self._schedules[flow.device].known()[flow]}

    def _measure(self, due: list[QueuePairFlow], now_s: float) -> None:
        """How many switches there are to the peers of these flows."""
        ends = {(flow.near, flow.far): flow for flow in due}
        stale = [flow for end, flow in ends.items() if self._lengths.get(end, (0, 0.0))[1] <= now_s]
        found = self._traced([self._way(flow, self._probe.port, MOST_HOPS) for flow in stale])
        for flow, result in zip(stale, found, strict=True):
            if result.hops:
                until_s = now_s + self._probe.retrace_s
                self._lengths[flow.near, flow.far] = len(result.hops), until_s

    def _way(self, flow: QueuePairFlow, to: int, hops: int) -> Way:
        device = flow.device if self._probe.bind_device else ""
        port = flow.port if to == ROCE_PORT else 0
        return Way(flow.near, flow.far, port, to, flow.traffic_class, device, hops)

    def _traced(self, ways: list[Way]) -> list[Found]:
        found = self._trace(ways) if ways else []
        self.packets += sum(one.sent for one in found)
        return found

    def paths(self) -> dict[tuple[str, str, str, int], QueuePairPath]:
        """What goes to the coordinator: flows of which some switch is known."""
        found = {}
        for flow, hops in self.known.items():
            if (carried := self.carried.get(flow)) is not None:
                path = QueuePairPath(
                    *(flow.device, flow.peer, flow.peer_device, flow.port),
                    *(tuple(carried.numbers), tuple(carried.workloads), hops),
                )
                found[path.key] = path
        return found

    def counts(self) -> dict[str, int]:
        """Flows by state; only the known ones where there are none."""
        if not self.carried:
            return {"known": 0}
        failed = len(self.errors.keys() - self.known.keys())
        known = len(self.known)
        return {"known": known, "failed": failed, "unknown": max(len(self.carried) - known - failed, 0)}

    def document(self) -> list[dict[str, Any]]:
        """For people: all flows."""
        return [
            {
                "device": flow.device,
                "peer": flow.peer,
                "peer_device": flow.peer_device,
                "source_port": flow.port,
                "traffic_class": flow.traffic_class,
                "queue_pairs": carried.numbers,
                "workloads": carried.workloads,
                "hops": list(self.known.get(flow, ())),
                "error": errno.errorcode.get(self.errors[flow], "EIO") if flow in self.errors else None,
            }
            for flow, carried in self.carried.items()
        ]

    async def run(self) -> None:
        """Traces until cancelled. Without RDMA devices it does next to nothing."""
        next_s = 0.0
        while True:
            await asyncio.sleep(min(self._probe.trace_s, 1.0))
            now_s = time.monotonic()
            if now_s >= next_s:
                next_s = now_s + POLL_S
                self.follow(await asyncio.to_thread(self._poll))
            if self._schedules:
                await asyncio.to_thread(self.step, now_s)

    def _poll(self) -> "Mapping[QueuePairFlow, Carried]":
        view, membership = self._fleet()
        suffixes = {Path(name).suffix for name in _names(plugin_dir())}
        # Of a host without RDMA devices the plugin's telemetry has no queue pairs.
        wanted = ".verbs" in suffixes or (".telemetry" in suffixes and _names(_RDMA_DEVICES))
        if membership is None or not wanted:
            return {}
        if self._source is None:
            # Here: it loads numpy, which hosts without jobs over RDMA need for nothing else.
            from fabricpulse.mesh.rdma_plane.queue_pairs import QueuePairSource

            self._source = QueuePairSource(plugin_dir())
        return self._source.flows(view, membership)


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []
