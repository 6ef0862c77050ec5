"""Losses of this host's flows, reported to the coordinator: seldom while there are none, without delay otherwise."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from urllib.parse import urlsplit

import aiohttp
import msgspec

from fabricpulse.core.log import get_logger
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.core.web.urls import redact
from fabricpulse.diagnosis.wire.messages import (
    EVIDENCE_PATH,
    PROTOCOL,
    EdgeName,
    EvidenceReply,
    EvidenceReport,
    FlowEvidence,
    FlowPath,
    HostFacts,
    LeastDelay,
    pack_delays,
    pack_flows,
)
from fabricpulse.diagnosis.wire.queue_pairs import QueuePairPath
from fabricpulse.hostinfo.virtual_machine import is_virtual_machine
from fabricpulse.mesh.config import MeshConfig
from fabricpulse.mesh.fleet_view import FleetView
from fabricpulse.mesh.least_delays import LeastDelays
from fabricpulse.mesh.link_count import carrier_losses
from fabricpulse.mesh.lldp_leaves import Leaves
from fabricpulse.mesh.path_schedule import Hops
from fabricpulse.mesh.rdma_plane.reported_paths import PathKey, ReportedPaths
from fabricpulse.mesh.snapshot import CUT, MAYBE_CUT, HealthState, Snapshot
from fabricpulse.mesh.temporary_peers import TemporaryPeers

log = get_logger(__name__)

_PACKETS = 3  # of a train
_ROUND_S = 1.0
_HEALTHY_ROUND_S = 5.0
_MOST_PATHS = 500  # of one report


@dataclass(frozen=True)
class _More:
    """moved : devices whose cable may have been unplugged. connections : by device, another value after that.
    temporary, delays : of temporary peers. leaves : None where the coordinator knows them.
    """

    moved: tuple[str, ...]
    connections: dict[str, tuple[int, int]]
    temporary: tuple[EdgeName, ...]
    delays: Sequence[LeastDelay]
    leaves: Leaves | None


def url_of(config: MeshConfig) -> str:
    """Where evidence goes: as configured, or where the membership comes from; "" for nowhere."""
    if config.evidence.url:
        return config.evidence.url.rstrip("/")
    parts = urlsplit(config.membership.url)
    return f"{parts.scheme}://{parts.netloc}" if config.membership.url else ""


@dataclass(frozen=True)
class Rates:
    """Packets a second that a healthy flow has: on the main path, on each other source port."""

    main: float
    swept: float

    @classmethod
    def of(cls, config: MeshConfig) -> "Rates":
        """Of the probe settings, which are alike on all hosts."""
        probe = config.probe
        packets = probe.trains_per_s * _PACKETS
        if probe.paths < 2 or probe.sweep == 0:
            return cls(packets, 0.0)
        return cls(packets * (1 - 1 / probe.sweep), packets / probe.sweep / (probe.paths - 1))


class EvidenceWindow:
    """Pure. What has been lost since the last report that was taken."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._before: Snapshot | None = None
        self._before_s = 0.0

    def since_taken(self, snapshot: Snapshot, now_s: float) -> tuple[list[FlowEvidence], bool]:
        """Flows that suffer, and whether this host stalled: then losses prove nothing.

        A flow suffers that has lost packets, is slow, drops large ones or may do so.

        now_s : monotonic.
        """
        before = self._before
        if before is None or before.generation != snapshot.generation:
            return [], False
        found = []
        for number, (old, new) in enumerate(zip(before.edges, snapshot.edges, strict=True)):
            silent_s = 0.0
            if new.inbound == HealthState.DOWN and new.received_age_ns >= 0:
                silent_s = min(now_s - self._before_s, new.received_age_ns / 1e9)
            if not silent_s and old.lost == new.lost and not (new.degraded_host_ns or new.maybe_cut):
                continue  # nearly all
            for port in range(new.paths):
                path, then = new.path(port), old.path(port)
                # Of a peer that is silent the numbering says nothing; it sends as the others do.
                presumed = round(silent_s * (self._rates.swept if port else self._rates.main))
                sent, lost = path.expected - then.expected + presumed, path.lost - then.lost + presumed
                slow = path.latency == HealthState.DOWN
                if lost > 0 or slow or path.cut:
                    sent, lost = max(sent, lost, 0), max(lost, 0)
                    cut, maybe_cut = path.cut == CUT, path.cut == MAYBE_CUT
                    found.append(FlowEvidence(number, port, slow, sent, lost, cut, maybe_cut))
        stalled = (snapshot.stalls, snapshot.clock_steps) != (before.stalls, before.clock_steps)
        overflowed = sum(nic.overflows for nic in snapshot.nics) != sum(nic.overflows for nic in before.nics)
        return found, stalled or overflowed

    def taken(self, snapshot: Snapshot, now_s: float) -> None:
        """The coordinator has received what `since_taken` returned for this snapshot."""
        self._before, self._before_s = snapshot, now_s


def new_paths(
    sent: Mapping[tuple[int, int], Hops], known: Mapping[tuple[int, int], Hops]
) -> tuple[FlowPath, ...]:
    """The paths in a report: those that differ from what was reported, some hundred at a time."""
    changed = (FlowPath(*key, hops) for key, hops in known.items() if sent.get(key) != hops)
    return tuple(islice(changed, _MOST_PATHS))


def connections(view: FleetView, snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    """Of each device what changes when its cable may have been unplugged: as its peers receive it, and as the kernel
    counts. A host that stalls sees no outage by its probes; a link that is down now has been unplugged, perhaps.
    """
    return {
        nic.device: (state.disconnects if state.link else -1, carrier_losses(nic.device))
        for nic, state in zip(view.nics, snapshot.nics, strict=True)
    }


class EvidenceReporter:
    """Reports until cancelled."""

    def __init__(
        self,
        url: str,
        config: MeshConfig,
        state: Callable[[], tuple[FleetView, Snapshot]],
        paths: Callable[[], Mapping[tuple[int, int], Hops]] = dict,
        temporary: TemporaryPeers | None = None,
        queue_pairs: Callable[[], Mapping[PathKey, QueuePairPath]] = dict,
        leaves: Callable[[], Leaves] = tuple,
    ) -> None:
        """state : the view and the engine's snapshot of the same configuration. paths : what is known of that view's
        flows, by edge and source port. temporary : None where none are taken. queue_pairs : paths of those of jobs.
        leaves : of devices, by LLDP.
        """
        self._url = url
        self._config = config
        self._state = state
        self._paths = paths
        self._sent_paths: dict[tuple[int, int], Hops] = {}
        self._queue_pairs = queue_pairs
        self._reported_pairs = ReportedPaths()
        self._leaves = leaves
        self._sent_leaves: Leaves = ()
        self._rates = Rates.of(config)
        self._window = EvidenceWindow(self._rates)
        self._delays = LeastDelays(config.evidence.delays_s, config.latency.window_s)
        self._temporary = temporary if config.evidence.delays_s else None
        self._virtual = is_virtual_machine()
        self._connections: dict[str, tuple[int, int]] = {}
        self._sent: FleetView | None = None
        self._revision = 0
        self._reached = True

    async def run(self) -> None:
        """A report a second while something suffers, one in five seconds otherwise."""
        last_s = 0.0
        async with HttpClient(self._config.evidence.http_client, connections=1) as client:
            while True:
                await asyncio.sleep(_ROUND_S)
                view, snapshot = self._state()
                now_s = time.monotonic()
                if self._temporary is not None:
                    await self._temporary.tick(now_s)
                flows, stalled = self._window.since_taken(snapshot, now_s)
                self._delays.add(snapshot, now_s)
                delays = self._delays.due(now_s) if view is self._sent else []
                if view is not self._sent:
                    self._sent_paths = {}
                    self._reported_pairs.clear()
                healthy = not flows and view is self._sent
                more = self._more(view, snapshot, now_s)
                has_news = bool(delays or more.moved or more.temporary or more.leaves is not None)
                if healthy and not has_news and now_s - last_s < _HEALTHY_ROUND_S:
                    continue
                paths = new_paths(self._sent_paths, self._paths())
                pairs = self._reported_pairs.due(self._queue_pairs(), now_s)
                reply = await self._send(client, view, flows, stalled, paths, delays, more, pairs)
                if reply is not None:
                    self._connections = more.connections
                    self._sent_leaves = self._sent_leaves if more.leaves is None else more.leaves
                    if self._temporary is not None and more.temporary:
                        self._temporary.taken(now_s)
                    self._window.taken(snapshot, now_s)
                    if delays:
                        self._delays.taken(now_s)
                    self._sent_paths.update(((path.edge, path.port), path.hops) for path in paths)
                    self._reported_pairs.taken(pairs, reply.refused_queue_pairs, now_s)
                    last_s = now_s

    def _more(self, view: FleetView, snapshot: Snapshot, now_s: float) -> _More:
        """What the fabric's tree needs beside the delays of standing edges."""
        now = connections(view, snapshot)
        before = self._connections
        moved = tuple(device for device, count in now.items() if before.get(device) != count)
        edges, delays = self._temporary.due(now_s) if self._temporary is not None else ((), [])
        leaves = self._leaves()
        # A coordinator that gets the edges anew knows of none.
        known = self._sent_leaves if view is self._sent else ()
        return _More(moved, now, edges, delays, None if leaves == known else leaves)

    async def _send(
        self,
        client: HttpClient,
        view: FleetView,
        flows: Sequence[FlowEvidence],
        stalled: bool,
        paths: tuple[FlowPath, ...],
        delays: Sequence[LeastDelay],
        more: _More,
        pairs: tuple[QueuePairPath, ...] = (),
    ) -> EvidenceReply | None:
        """None where the report was not taken."""
        edges = facts = None
        if view is not self._sent:
            self._revision += 1
            edges = tuple(EdgeName(view.nics[p.nic].device, p.host, p.device) for p in view.peers)
            facts = HostFacts(
                tuple((nic.device, nic.network) for nic in view.nics),
                self._virtual,
                self._config.evidence.temporary_peers if self._temporary is not None else 0,
            )
        report = EvidenceReport(
            PROTOCOL,
            view.host,
            self._revision,
            self._config.probe.paths,
            self._rates.main,
            self._rates.swept,
            pack_flows(flows),
            stalled,
            edges,
            paths,
            pack_delays(delays),
            facts,
            more.temporary,
            pack_delays(more.delays),
            more.moved,
            pairs,
            more.leaves,
        )
        try:
            async with client.post(
                self._url + EVIDENCE_PATH, data=msgspec.msgpack.encode(report)
            ) as response:
                body = await read_body(response)
                if response.status != 200:
                    raise aiohttp.ClientError(f"HTTP status {response.status}")
                reply = msgspec.msgpack.decode(body, type=EvidenceReply)
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError) as error:
            if self._reached:
                log.warning(
                    "evidence does not reach the coordinator", url=redact(self._url), error=describe(error)
                )
            self._reached = False
            return None
        if not self._reached:
            log.info("evidence reaches the coordinator again", url=redact(self._url))
        self._reached = True
        if self._temporary is not None:
            self._temporary.offered(reply, time.monotonic())
        # A coordinator that was restarted asks for the edges.
        self._sent = None if reply.needs_edges else view
        return None if reply.needs_edges else reply
