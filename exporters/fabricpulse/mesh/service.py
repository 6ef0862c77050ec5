"""The mesh exporter as a daemon: engine, membership, alerts and HTTP put together."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from fabricpulse.core.config import load_config, warn_of_restart
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.core.event_log import EventLog
from fabricpulse.core.fleet.membership import Membership
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.run_dir import ensure_run_dir, probe_ring_path, write_refused
from fabricpulse.core.run_lock import RunLock
from fabricpulse.core.shm.virtual_clock import host_now_ns, open_virtual_clock
from fabricpulse.core.supervision import supervised
from fabricpulse.core.web.request_guard import query_int
from fabricpulse.core.web.server import WebServer
from fabricpulse.mesh import _probe_engine as native
from fabricpulse.mesh.alerts import AlertPusher, Nic
from fabricpulse.mesh.api import edges_document
from fabricpulse.mesh.config import MOST_EVENTS, MeshConfig, load_keys
from fabricpulse.mesh.engine_settings import engine_settings
from fabricpulse.mesh.evidence import EvidenceReporter, url_of
from fabricpulse.mesh.exposition import CAUSE_NAMES, Counters, MeshExposition, edge_evidence, recent_delays
from fabricpulse.mesh.fleet_view import FleetView, view_of
from fabricpulse.mesh.front_end import FrontEndWatch, targets_of
from fabricpulse.mesh.lldp_leaves import LldpLeaves
from fabricpulse.mesh.membership_watch import MembershipWatch
from fabricpulse.mesh.nic_stamps import StampLog
from fabricpulse.mesh.path_tracing import PathTracing
from fabricpulse.mesh.rdma_plane.tracing import QueuePairTracing
from fabricpulse.mesh.recent_disconnects import RecentDisconnects
from fabricpulse.mesh.snapshot import Cause, EventKind, HealthState, Snapshot, parse_snapshot
from fabricpulse.mesh.temporary_peers import TemporaryPeers

log = get_logger(__name__)

FRONT_END_EVENTS = {False: "front_end_disconnected", True: "front_end_connected"}
# Above what an answer at the sample cap takes in all its forms.
_KEPT_BYTES = 16 << 20
_EDGES_EXPECTED = 80  # while the membership is not known: eight NICs with ten peers


class MeshService:
    """One daemon."""

    def __init__(self, config: MeshConfig) -> None:
        self.config = config
        self._membership = MembershipWatch(config.membership)
        log_config = config.event_log
        self.events = EventLog(
            Path(log_config.path) if log_config.path else None, log_config.max_bytes, log_config.keep
        )
        self.events.check("event_log.path")
        self.pusher = AlertPusher(config.alerting, config.host_name, time.time)
        self.front_end = FrontEndWatch(
            targets_of(config), config.front_end.interval_s, self._front_end_changed
        )
        self.counters = Counters(
            pushes=self.pusher.pushes,
            events=dict.fromkeys((*(kind.name.lower() for kind in EventKind), *FRONT_END_EVENTS.values()), 0),
            front_end=self.front_end.health,
        )
        self._clock = open_virtual_clock()
        self.view = FleetView(config.host_name, (), (), 0, is_member=False)
        self.paths = PathTracing(config.probe)
        self.queue_pairs = QueuePairTracing(config.probe, lambda: (self.view, self._membership.current))
        self.temporary = TemporaryPeers(
            config, lambda: (self.view, self._membership.current), lambda: self._keys
        )
        self.generation = 0  # of the engine's configuration
        self._delays = recent_delays()
        self._disconnects = RecentDisconnects(time.monotonic())
        self._flap_ends: dict[tuple[str, str], asyncio.TimerHandle] = {}  # by device and network
        self._exposition = self._exposition_of(self.view)
        self._engine: native.ProbeEngine | None = None
        self._engine_host = ""
        self._running = False
        self._lock: RunLock | None = None
        self._keys_path = Path(config.key_file) if config.key_file else None
        self._keys: list[bytes] = []
        self._socket_errors: dict[str, int] = {}
        self._stamp_log = StampLog(config.probe.timestamps)
        self._keys_error = ""  # what was last logged

    @property
    def engine(self) -> native.ProbeEngine:
        """The engine, once `start` has made it."""
        if self._engine is None:
            raise RuntimeError("the engine has not been started")
        return self._engine

    async def start(self) -> None:
        """Reads keys and membership and starts probing. Raises UserError."""
        membership = await self._membership.first()
        view = await self._view_of(membership) if membership is not None else self.view
        self._lock = RunLock(ensure_run_dir(), "mesh")
        self._make_engine(view.host, len(view.peers) if membership else _EDGES_EXPECTED)
        self._load_keys()
        if membership is not None:
            try:
                self._apply(membership, view)
            except ValueError as error:
                raise ConfigError(f"the membership cannot be probed: {error}; lower probe.peers") from error
        await self.pusher.open()
        native.keep_freed_memory(_KEPT_BYTES)
        self._start_engine()
        if self.config.probe.realtime and not self.engine.realtime:
            log.warning(
                "no permission for real-time priority; a busy CPU delays the detection of faults",
                needs="CAP_SYS_NICE",
            )

    def _make_engine(self, host: str, edges: int) -> None:
        """Raises UserError."""
        try:
            self._engine = native.ProbeEngine(engine_settings(self.config, host, edges))
        except OSError as error:
            raise write_refused("the probe ring", probe_ring_path(), error) from error
        except ValueError as error:
            raise ConfigError(f"probe: {error}") from error
        self._engine_host = host

    def _start_engine(self) -> None:
        self.engine.start()
        self._running = True
        self.counters.realtime = self.engine.realtime
        asyncio.get_running_loop().add_reader(self.engine.event_fd, self._take_events)

    async def _stop_engine(self) -> None:
        asyncio.get_running_loop().remove_reader(self.engine.event_fd)
        await asyncio.to_thread(self.engine.stop)
        self._running = False
        self._take_events()

    async def stop(self) -> None:
        """Stops probing and closes everything."""
        await self.temporary.stop()
        if self._running:
            await self._stop_engine()
        for timer in self._flap_ends.values():
            timer.cancel()
        await self.pusher.close()
        self.events.close()
        if self._lock is not None:
            self._lock.release()

    async def _view_of(self, membership: Membership) -> FleetView:
        """In a thread: a scrape must not wait for the peer graph of a large fleet."""
        probe = self.config.probe
        return await asyncio.to_thread(
            view_of, membership, self.config.host_name, probe.peers, probe.cross_peers
        )

    async def _follow_name(self, view: FleetView) -> None:
        """The engine goes by the name that the fleet calls this host by. It changes with the first membership, when the
        system's name was taken until then; nothing is lost, because nothing was probed.
        """
        if view.is_member and view.host != self._engine_host:
            log.info("this host has another name in the fleet", host=view.host, before=self._engine_host)
            await self._stop_engine()
            self._make_engine(view.host, len(view.peers))
            self.engine.set_keys(self._keys)
            self._start_engine()

    def _apply(self, membership: Membership, view: FleetView) -> None:
        self.engine.configure(
            [(nic.device, nic.network, nic.address) for nic in view.nics],
            [(p.nic, p.host, p.device, p.network, p.address) for p in view.peers],
        )
        probed = {(view.nics[peer.nic].device, view.nics[peer.nic].network) for peer in view.peers}
        for device, network in self.pusher.disconnected():
            # Not ours any more, or no peer is left that could show it: unknown.
            if (device, network) not in probed:
                self.pusher.resolve(device, network)
        self._membership.current, self.view = membership, view
        self.temporary.cancel()
        self.generation = self.snapshot().generation
        self.paths.configure(view)
        self._exposition = self._exposition_of(view)
        self.counters.membership_ok = True
        self.counters.membership_changed_s = time.time()
        self.counters.member = view.is_member
        if not view.is_member:
            log.error(
                "this host is not in the membership: it probes nothing and nobody probes it; list it, or set host: to "
                "the name that the membership has for it",
                host=self.config.host_name,
                members=view.members,
            )
        elif not view.nics:
            log.error("the membership lists this host without NICs: it probes nothing", host=view.host)
        log.info("membership loaded", hosts=view.members, nics=len(view.nics), edges=len(view.peers))

    def _exposition_of(self, view: FleetView) -> MeshExposition:
        return MeshExposition(
            view, self.config.probe.port, self.config.per_edge, self._delays, self._disconnects
        )

    def _load_keys(self) -> None:
        if self._keys_path is None:
            if not self._keys:
                log.warning(
                    "no key_file is set: probes are not authentic, anybody who reaches the port can join"
                )
                self._keys = [bytes(16)]
                self.engine.set_keys(self._keys)
            return
        keys = load_keys(self._keys_path)
        if keys != self._keys:
            self._keys = keys
            self.engine.set_keys(keys)
            log.info("keys loaded", count=len(keys))

    async def watch(self) -> None:
        """Follows membership and keys until cancelled."""
        while True:
            await asyncio.sleep(self.config.membership.refresh_s)
            await self.refresh()
            self._check_sockets()

    def _check_sockets(self) -> None:
        """Says once which NICs cannot be probed, and why."""
        states = {n.device: state for n, state in zip(self.view.nics, self.snapshot().nics, strict=True)}
        self._stamp_log.check(states)
        errors = {
            device: state.open_errno
            for device, state in states.items()
            if not state.open and state.open_errno
        }
        for device, error in errors.items():
            if self._socket_errors.get(device) != error:
                log.warning(
                    "cannot open the probe socket of a NIC",
                    device=device,
                    port=self.config.probe.port,
                    error=os.strerror(error),
                )
        self._socket_errors = errors

    async def refresh(self) -> None:
        """Reads keys and membership once. What is bad is logged once, and what was in force stays."""
        try:
            self._load_keys()
            self._keys_error = ""
        except UserError as error:
            if str(error) != self._keys_error:
                log.error("the keys stay as they were", error=str(error))
            self._keys_error = str(error)
        try:
            membership = await self._membership.changed()
            self.counters.membership_held = self._membership.holds
            if membership is not None:
                view = await self._view_of(membership)
                await self._follow_name(view)
                self._apply(membership, view)
            self.counters.membership_ok = self._membership.current is not None
            self._membership.succeeded()
        except (UserError, ValueError) as error:
            self._membership.failed(error)
            self.counters.membership_ok = False

    async def reload(self, path: Path | None) -> None:
        """SIGHUP: keys and membership at once; of the configuration it says which settings need a restart.

        The engine's settings are those of its sockets, ring and health: made anew, all that was learned would be
        lost, which is what a restart does. Raises ConfigError for a file that a restart would refuse.
        """
        self._membership.confirm()
        await self.refresh()
        if path is None:
            return
        warn_of_restart(path, self.config, await asyncio.to_thread(load_config, path, MeshConfig))

    def _leaf(self, device: str) -> str:
        return next((nic.leaf for nic in self.view.nics if nic.device == device), "")

    def _take_events(self) -> None:
        seen: dict[tuple[str, str, str], str | None] | None = None
        for event in self.engine.take_events():
            kind = EventKind(event.kind)
            self.counters.events[kind.name.lower()] += 1
            entry: dict[str, Any] = {"duration_ns": event.duration_ns}
            if event.device:
                entry |= {"device": event.device, "network": event.network}
            if kind is EventKind.NIC_DISCONNECTED:
                entry["cause"] = CAUSE_NAMES[Cause(event.cause)]
                self.pusher.fire(event.device, event.network, self._leaf(event.device))
                self._disconnects.disconnected((event.device, event.network), time.monotonic())
                self._check_flapping(Nic(event.device, event.network, self._leaf(event.device)))
                log.warning(
                    "NIC disconnected", device=event.device, network=event.network, cause=entry["cause"]
                )
            elif kind is EventKind.NIC_CONNECTED:
                self.pusher.resolve(event.device, event.network)
                self._disconnects.connected((event.device, event.network), time.monotonic())
                log.info("NIC connected", device=event.device, outage_s=round(event.duration_ns / 1e9, 3))
            elif kind in (EventKind.EDGE_DOWN, EventKind.EDGE_UP):
                del entry["duration_ns"]
                if seen is None:
                    seen = self._evidence()
                entry |= {
                    "peer": event.peer,
                    "peer_device": event.peer_device,
                    "inbound": HealthState(event.inbound).name.lower(),
                    "outbound": HealthState(event.outbound).name.lower(),
                    "evidence": seen.get((event.device, event.peer, event.peer_device)),
                }
            self.events.append(event.host_ns, kind.name.lower(), **entry)

    def _check_flapping(self, nic: Nic) -> None:
        """A NIC has just been disconnected. Its alert ends as the rule's does, also where the NIC is no longer ours:
        the rule remembers it as long.
        """
        alerting, key, now_s = self.config.alerting, (nic.device, nic.network), time.monotonic()
        if not alerting.flap_threshold:
            return
        window_s = alerting.flap_window_s
        until_s = self._disconnects.flapping_until(key, window_s, alerting.flap_threshold)
        if until_s <= now_s:
            return
        times = sum(age_s < window_s for age_s in self._disconnects.ages(key, now_s))
        self.pusher.fire_flapping(nic, times)
        if (timer := self._flap_ends.get(key)) is not None:
            timer.cancel()
        self._flap_ends[key] = asyncio.get_running_loop().call_later(
            until_s + alerting.flap_keep_firing_s - now_s, self.pusher.resolve_flapping, *key
        )

    def _front_end_changed(self, connected: bool, silent_s: float) -> None:
        kind = FRONT_END_EVENTS[connected]
        self.counters.events[kind] += 1
        self.events.append(host_now_ns(self._clock), kind, duration_ns=round(silent_s * 1e9))

    def _evidence(self) -> dict[tuple[str, str, str], str | None]:
        found = edge_evidence(self.view, self.snapshot())
        return {
            (self.view.nics[peer.nic].device, peer.host, peer.device): evidence
            for peer, evidence in zip(self.view.peers, found, strict=True)
        }

    def not_ready(self) -> str:
        """Why this exporter is of no use although it runs, "" if it is."""
        if self._membership.current is not None and not self.view.is_member:
            return f"this host, {self.config.host_name}, is not in the membership"
        return ""

    def snapshot(self) -> Snapshot:
        """The engine's state now."""
        return parse_snapshot(self.engine.snapshot())

    def state(self) -> tuple[FleetView, Snapshot]:
        """What is probed, and the engine's state now."""
        return self.view, self.snapshot()

    async def metrics(self, text_format: TextFormat) -> bytes:
        """The exposition."""
        self.counters.path_traces, self.counters.path_traces_unanswered = (
            self.paths.traces,
            self.paths.unanswered,
        )
        self.counters.paths_known = len(self.paths.known)
        self.counters.queue_pair_paths = self.queue_pairs.counts()
        self.counters.temporary_peers = self.temporary.probed
        if self._running:
            self._take_events()  # the times of the disconnects that the snapshot has counted
        out = Exposition(self.config.sample_cap)
        self._exposition.write(out, self.engine.snapshot(), self.counters, time.monotonic())
        return out.render(text_format)

    async def serve_edges(self, _: web.Request) -> web.Response:
        """GET /api/v1/edges."""
        return web.json_response(
            edges_document(
                self.view,
                self.snapshot(),
                self.config.probe.port,
                self.front_end,
                self.paths.known,
                self.queue_pairs.document(),
            )
        )

    async def serve_events(self, request: web.Request) -> web.Response:
        """GET /api/v1/events?limit=N."""
        limit = query_int(request, "limit", MOST_EVENTS, 1, MOST_EVENTS)
        return web.json_response({"host": self.view.host, "events": self.events.recent(limit)})


async def run(life: Lifetime, config: MeshConfig, options: DaemonOptions) -> None:
    """Runs the mesh exporter until `life` is stopped."""
    for warning in config.warnings():
        log.warning(warning)
    service = MeshService(config)
    server = WebServer(
        "fabricpulse mesh",
        life,
        service.metrics,
        options.web,
        landing_links=[("/api/v1/edges", "Edges (JSON)"), ("/api/v1/events", "Events (JSON)")],
        not_ready=service.not_ready,
    )
    server.router.add_get("/api/v1/edges", service.serve_edges)
    server.router.add_get("/api/v1/events", service.serve_events)
    try:
        await service.start()
        async with supervised(life) as tasks:
            for url in config.alerting.alertmanagers:
                tasks.start("alert push", service.pusher.serve(url))
            tasks.start("membership", service.watch())
            if evidence_url := url_of(config):
                lldp = LldpLeaves(
                    config.evidence.lldp_file, lambda: {nic.device for nic in service.view.nics}
                )
                if config.evidence.lldp_file:
                    tasks.start("LLDP neighbours", lldp.run())
                reporter = EvidenceReporter(
                    *(evidence_url, config, service.state, lambda: service.paths.known, service.temporary),
                    *(service.queue_pairs.paths, lambda: lldp.leaves),
                )
                tasks.start("evidence", reporter.run())
            if config.probe.trace_s:
                tracing = service.paths.run(lambda: service.engine, lambda: service.generation)
                tasks.start("path tracing", tracing)
                if config.probe.queue_pairs:
                    tasks.start("path tracing of queue pairs", service.queue_pairs.run())
            # Without servers to ask it ends at once.
            tasks.start("front end", service.front_end.run(), may_end=True)
            try:
                await server.start()
                life.on_reload(lambda: service.reload(options.config))
                life.ready()
                await life.stopped()
            finally:
                await server.stop()
                await service.pusher.flush()
    finally:
        await service.stop()
