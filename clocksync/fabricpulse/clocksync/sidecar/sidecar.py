"""`fabricpulse clocksync sidecar`: samples in, fleet time out.

Four tasks: `_tick` (4 a second) samples the host clock and keeps the page alive; `_watch_causality` asks the engine
whether delays contradict the page; `_rounds` fits the edges, reports and applies what comes back; the web server
answers scrapes, people and neighbours. All thinking is in pure modules.
"""

import asyncio
import contextlib
import time
from dataclasses import replace
from pathlib import Path

import msgspec
from aiohttp import web

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClock
from fabricpulse.clocksync.outputs.outputs import Outputs
from fabricpulse.clocksync.sidecar.config import SidecarConfig
from fabricpulse.clocksync.sidecar.coordinator_client import CoordinatorClient
from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.clocksync.sidecar.host_edges import HostEdges
from fabricpulse.clocksync.sidecar.neighbours import NeighbourBook, ask_lines, consensus, own_url
from fabricpulse.clocksync.sidecar.page_file import PageFile, previous_page
from fabricpulse.clocksync.sidecar.pause import majority_stepped, pause_watch
from fabricpulse.clocksync.sidecar.system_anchor import SystemAnchor
from fabricpulse.clocksync.sidecar.view import SidecarHistory, SidecarView
from fabricpulse.clocksync.wire.messages import (
    LINE_PATH,
    PROTOCOL,
    HostInfo,
    Line,
    LineReply,
    NicInfo,
    RoundReply,
    RoundReport,
    pack_edges,
    unpack_residuals,
)
from fabricpulse.core.config import load_config
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.fleet.membership import Membership, load_membership
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.run_dir import clock_page_path, ensure_run_dir, probe_ring_path
from fabricpulse.core.run_lock import RunLock
from fabricpulse.core.shm.clock_page import ClockStatus
from fabricpulse.core.supervision import supervised
from fabricpulse.core.web.client import Credentials, HttpClient
from fabricpulse.core.web.listeners import parse_address
from fabricpulse.core.web.server import WebServer
from fabricpulse.core.web.token_file import TokenFile

log = get_logger(__name__)

_NS = 1_000_000_000
_TICK_S = 0.25
# Of a probe interval, at 50 trains a second: a clock page that is wrong must not stay.
_CAUSALITY_S = 0.02
# Stamps of a train are together so long after it was sent, at the lowest rates.
_LATE_TRAINS_S = 0.4
# Seconds without an answer from any coordinator after which neighbours are asked; with long rounds, rounds.
_ALONE_S, _ALONE_ROUNDS = 2.0, 1.5

# Epochs of stamp clocks are multiples of it (exporters/probe_engine/tick_clock.cc).
_EPOCH_NS = 1 << 20

_line_encoder = msgspec.msgpack.Encoder()


class Sidecar:
    """The daemon."""

    def __init__(self, options: DaemonOptions, life: Lifetime) -> None:
        self._options = options
        self._life = life
        self._config = load_config(options.config, SidecarConfig)
        self._membership = self._load_membership(self._config)
        self._clock = HostClock()
        run_dir = ensure_run_dir()
        # Two sidecars would take turns with the clock page: fleet time would run backward.
        self._lock = RunLock(run_dir, "clocksync sidecar")
        now = self._clock.cross_timestamp()
        parameters = self._config.clock_parameters()
        self._fleet_clock = FleetClock.start(parameters, now, previous_page(clock_page_path()))
        # Until the engine says: the same as it would choose.
        self._fleet_clock.epoch_ns &= -_EPOCH_NS
        self._epoch_reported = False
        self._page_file = PageFile(clock_page_path(), self._fleet_clock.page)
        self._outputs = Outputs(self._config.outputs)
        self._edges = HostEdges(probe_ring_path(), self._config.estimator.parameters(), self._config.host)
        self._edges_told = -1
        self._epoch = time.time_ns() & 0x7FFFFFFFFFFFFFFF
        self._generation = 0
        self._anchor = SystemAnchor(self._clock)
        self._contradicted_s: float | None = None
        self._pauses = pause_watch()
        self.contradictions = dict.fromkeys(("causality", "edges", "epoch", "suspend", "vmclock"), 0)
        self._info = HostInfo(0, "", (), (), "none")
        self._coordinator = CoordinatorClient(
            TokenFile(self._config.http_client.token_file),
            datagrams=self._config.datagrams,
            timeout_s=self._config.http_client.timeout_s,
        )
        self._http_client = self._config.http_client
        self._neighbours = NeighbourBook(run_dir / "clocksync-neighbours.json")
        self._root = ""
        self._suspect = ""
        self._fit_s = 0.0
        self._started_s = time.monotonic()
        self._history = SidecarHistory()
        self._synced_since_s: float | None = None
        self.server = WebServer(
            "fabricpulse clocksync sidecar",
            life,
            self._metrics,
            options.web,
            landing_links=[("/api/v1/clocksync/status", "Status")],
        )
        self.server.router.add_get(LINE_PATH, self._serve_line)
        self.server.router.add_get("/api/v1/clocksync/status", self._status)
        self.server.router.add_get("/api/v1/clocksync/history", self._serve_history)
        life.on_reload(self._reload)

    # Settings

    @staticmethod
    def _load_membership(config: SidecarConfig) -> Membership:
        return load_membership(Path(config.membership)) if config.membership else Membership(hosts=())

    async def _reload(self) -> None:
        config = load_config(self._options.config, SidecarConfig)
        membership = self._load_membership(config)
        for name in ("host", "outputs", "http_client", "datagrams"):
            if getattr(config, name) != getattr(self._config, name):
                log.warning("this setting changes with a restart only", setting=name)
        # Its files are read again as they change; one that cannot be used makes this reload fail.
        Credentials(self._http_client)
        self._config, self._membership = config, membership
        self._fleet_clock.parameters = config.clock_parameters()
        self._edges.set_parameters(config.estimator.parameters())
        self._change_info()

    @property
    def host(self) -> str:
        """This host's name in the fleet."""
        return self._edges.host or self._config.host_name()

    # Life

    async def run(self) -> None:
        """Works until stopped. Raises UserError when the address cannot be bound, TaskFailedError when a task has
        ended."""
        await self.server.start()
        if not self._config.coordinators and not self._config.membership:
            log.warning(
                "neither coordinators nor a membership file are configured: fleet time cannot be known"
            )
        async with contextlib.AsyncExitStack() as closing:
            # The token is for coordinators alone, which CoordinatorClient shows it to; neighbours are asked too.
            client = await closing.enter_async_context(
                HttpClient(msgspec.structs.replace(self._http_client, token_file=""))
            )
            try:
                async with supervised(self._life) as tasks:
                    tasks.start("tick", self._tick_forever())
                    tasks.start("causality", self._watch_causality())
                    tasks.start("rounds", self._rounds(client))
                    self._life.ready()
                    await self._life.stopped()
            finally:
                await self._coordinator.close()
                await self.server.stop()
                self._leave()

    async def _tick_forever(self) -> None:
        while True:
            self._tick()
            await asyncio.sleep(_TICK_S)

    async def _watch_causality(self) -> None:
        while True:
            if self._edges.contradicted():
                self._contradict("causality")
            await asyncio.sleep(_CAUSALITY_S)

    def _leave(self) -> None:
        """What the page says when nobody looks after it any more: holdover, for as long as a page holds."""
        self._fleet_clock.hold(now := self._clock.cross_timestamp())
        self._publish(now)
        page = self._fleet_clock.page
        self._outputs.publish(page, self._clock.cross_timestamp(), self._config.clock.holdover_drift_ppb)
        self._lock.release()

    def _tick(self) -> None:
        steps = self._fleet_clock.host.steps
        now = self._clock.cross_timestamp()
        self._fleet_clock.tick(now)
        if source := self._pauses.poll():
            self._contradict(source)
        elif self._fleet_clock.host.steps != steps:
            log.warning(
                "the system clock was stepped; fleet time goes on", steps=self._fleet_clock.host.steps
            )
        # Trains that were on their way come in a little later, with stamps of both clocks.
        if self._contradicted_s is not None and time.monotonic() - self._contradicted_s < _LATE_TRAINS_S:
            self._edges.clear()
        self._publish(now)
        page = self._fleet_clock.page
        self._outputs.publish(page, self._clock.cross_timestamp(), self._config.clock.holdover_drift_ppb)

    def _publish(self, now: CrossTimestamp) -> None:
        while not self._page_file.write(self._fleet_clock.published(now)):
            # This process had no core for longer than the lead of the new line.
            now = self._clock.cross_timestamp()
            self._fleet_clock.postpone(now, self._page_file.shown)

    def _contradict(self, source: str) -> None:
        """The machine was paused, or something else contradicts fleet time as this host has it."""
        self.contradictions[source] += 1
        known = self._fleet_clock.known
        self._fleet_clock.suspect(self._clock.cross_timestamp())
        # What was measured before is of another clock.
        self._contradicted_s = time.monotonic()
        self._edges.clear()
        if known:
            log.warning(
                "fleet time of this host contradicts the fleet's: was the machine paused or migrated? It is set anew",
                source=source,
            )

    async def _rounds(self, client: HttpClient) -> None:
        while True:
            await asyncio.sleep(self._until_next_round())
            try:
                await self._round(client)
            except (OSError, ValueError) as error:
                log.exception("round failed", reason=str(error))

    def _until_next_round(self) -> float:
        """Seconds to the next round. All hosts begin it at the same fleet time, so that a solve waits for nobody."""
        round_s = self._config.round_s if self._settled() else self._config.start_round_s
        now = self._clock.cross_timestamp()
        fleet = self._fleet_clock.page.at(now.raw_ns).fleet_ns if self._fleet_clock.known else now.host_ns
        return round_s - (fleet / _NS) % round_s

    def _settled(self) -> bool:
        """Past the start, when rounds and windows are short."""
        since = self._synced_since_s
        return since is not None and time.monotonic() - since > self._config.estimator.window_s

    # One round

    async def _round(self, client: HttpClient) -> None:
        self._edges.read()
        self._follow_epoch()
        if self._edges.generation != self._edges_told:
            self._edges_told = self._edges.generation
            self._change_info()
        began = time.thread_time()
        # Half of the edges are fitted by their other ends. At the start, after a clock step, and with nobody
        # to report to, everything that can be known at once is worth its cost.
        everything = not self._settled() or self._coordinator.unplaced_s() > self._alone_s()
        self._edges.fit(self._stamp_now_ns(), self._window_ns(), everything=everything)
        self._fit_s = time.thread_time() - began
        stepped = majority_stepped(len(self._edges.step_peers), len(self._edges.fitted_peers))
        # Samples from before a contradiction that is known explain it.
        if stepped and not self._contradicted_lately():
            self._contradict("edges")
        # A coordinator that is cut off may take its time not to answer; neither rounds nor neighbours wait for it.
        try:
            await self._coordinator.report(
                client,
                self._config.coordinators,
                self._report,
                self._take_reply,
                wait_s=0.8 * self._config.round_s,
                follow_s=self._alone_s(),
            )
        except Exception:
            # Neighbours are for the time when coordinators cannot be asked, whyever that is.
            log.exception("reports to the coordinators failed")
        # One that answers but knows no edge of ours that it could use is as good as none.
        if self._coordinator.unplaced_s() > self._alone_s():
            await self._ask_neighbours(client)
        if self._fleet_clock.page.status == ClockStatus.HOLDOVER:
            self._history.add(self._fleet_clock, self._clock.cross_timestamp(), 0)
        if self._fleet_clock.page.status == ClockStatus.SYNCHRONIZED:
            kernel_ns = time.time_ns()
            self._outputs.feed(self._fleet_clock.page, kernel_ns, self._clock.from_kernel(kernel_ns))
            if self._synced_since_s is None:
                self._synced_since_s = time.monotonic()
                log.info("synchronized", after_s=round(time.monotonic() - self._started_s, 2))
        elif not self._fleet_clock.no_quorum:
            self._synced_since_s = None

    def _stamp_now_ns(self) -> int:
        return self._clock.raw_now_ns() + self._fleet_clock.epoch_ns

    def _follow_epoch(self) -> None:
        """Takes up the epoch of the ring. Another one than before belongs to an engine that has forgotten the old one:
        corrections that are on their way are of another stamp clock."""
        epoch_ns = self._edges.stamp_epoch_ns
        if epoch_ns is None or epoch_ns == self._fleet_clock.epoch_ns:
            return
        self._fleet_clock.epoch_ns = epoch_ns
        if self._fleet_clock.known and self._epoch_reported:
            self._contradict("epoch")

    def _contradicted_lately(self) -> bool:
        """Whether a window may hold samples from before the last contradiction."""
        window_s = self._config.estimator.window_s
        return self._contradicted_s is not None and time.monotonic() - self._contradicted_s < window_s

    def _alone_s(self) -> float:
        """Seconds without a coordinator after which there is none."""
        return max(_ALONE_S, _ALONE_ROUNDS * self._config.round_s)

    def _window_ns(self) -> int:
        """Short at the start, so that there soon is a fleet time; as long as configured once there is."""
        estimator = self._config.estimator
        since = self._synced_since_s
        age = 0.0 if since is None else time.monotonic() - since
        return round(min(estimator.window_s, estimator.start_window_s + age) * _NS)

    def _change_info(self) -> None:
        self._generation += 1
        self._coordinator.resend_info()
        host = self._membership.host(self.host)
        nics = tuple(NicInfo(n.device, n.address, n.network) for n in host.nics) if host is not None else ()
        names = self._edges.names()
        self._info = HostInfo(self._generation, self._url(), nics, names, self._config.anchor.kind)

    def _url(self) -> str:
        """Where neighbours reach us; empty when that cannot be told from the settings."""
        web = self._options.web
        # Names are kept as they were given: a certificate is for a name.
        addresses = self.server.addresses if web.systemd_socket else [parse_address(a) for a in web.listen]
        return self._config.advertise_url or own_url(addresses, tls=self.server.tls)

    def _own_line(self) -> Line | None:
        """The line that the last correction asked for, with what it is good for now."""
        clock = self._fleet_clock
        if not clock.known or clock.suspected_raw_ns is not None:
            return None
        now = self._clock.cross_timestamp()
        asked = clock.requested(now)
        return Line(asked.from_ns, asked.to_ns - asked.from_ns, asked.rate_ppt, clock.kept_bound_ns(now))

    def _report(self, with_info: bool) -> RoundReport:
        self._epoch_reported = True
        return RoundReport(
            protocol=PROTOCOL,
            host=self.host,
            epoch=self._epoch,
            generation=self._generation,
            host_ns=self._stamp_now_ns(),
            edges=pack_edges(self._edges.reports()),
            line=self._own_line(),
            anchor=self._anchor.read(self._config.anchor, self._fleet_clock.epoch_ns),
            root=self._root,
            clock_steps=self._fleet_clock.page.disruptions,
            info=self._info if with_info else None,
            quorum=self._coordinator.quorum,
            no_quorum=self._fleet_clock.no_quorum,
        )

    def _take_reply(self, reply: RoundReply, follow: bool) -> None:
        """Raises ValueError when it makes no sense. follow : it is of the coordinator whose timeline is ours."""
        if reply.neighbours is not None:
            # Coordinators may know different neighbours, and each says it only once.
            peers = {edge.peer for edge in self._edges.names()}
            known = {peer: url for peer, url in self._neighbours.urls.items() if peer in peers}
            self._neighbours.learn({**known, **reply.neighbours})
        if not follow:
            return
        self._root = reply.root
        if reply.suspect and reply.suspect != self._suspect:
            log.warning("host flagged as faulty by the coordinator", reason=reply.suspect)
        elif self._suspect and not reply.suspect:
            log.info("host no longer flagged as faulty by the coordinator")
        self._suspect = reply.suspect
        self._edges.take_residuals(unpack_residuals(reply.residuals))
        if reply.line is not None:
            if reply.no_quorum and not self._fleet_clock.no_quorum:
                log.warning(
                    "no quorum: too few hosts of the fleet are left, or no anchor where there were some; the error "
                    "bound grows as in holdover"
                )
            self._apply(correction_of(reply, reply.line))

    def _apply(self, correction: Correction) -> None:
        now = self._clock.cross_timestamp()
        self._tick()
        known = self._fleet_clock.known
        shown = self._fleet_clock.page.at(now.raw_ns).fleet_ns
        self._fleet_clock.correct(now, correction)
        self._publish(now)
        correction_ns = shown - self._fleet_clock.target.at(now.raw_ns) if known else 0
        self._history.add(self._fleet_clock, now, correction_ns)

    async def _ask_neighbours(self, client: HttpClient) -> None:
        urls = self._neighbours.urls_of(
            self._edges.names(),
            self._membership,
            self._config.neighbour_port,
            tls=self._config.http_client.tls_config is not None,
        )
        lines = await ask_lines(client, urls)
        fits = [(edge.name.peer, edge.fit) for edge in self._edges if edge.fit is not None]
        drift = self._config.estimator.drift_ppb
        # While a coordinator may be about to answer, no host begins a timeline of its own: there would be two.
        begin = self._coordinator.silent_s() > self._alone_s() and not self._coordinator.may_answer
        if not begin and self._own_line() is None and not any(reply.line for reply in lines.values()):
            return
        correction = consensus(self.host, self._own_line(), fits, lines, self._stamp_now_ns(), drift)
        if correction is not None:
            self._apply(replace(correction, free=True))

    # What others ask

    async def _serve_line(self, _: web.Request) -> web.Response:
        page = self._fleet_clock.page
        reply = LineReply(
            self.host, self._stamp_now_ns(), self._own_line(), page.status == ClockStatus.SYNCHRONIZED
        )
        return web.Response(body=_line_encoder.encode(reply), content_type="application/msgpack")

    def _view(self) -> SidecarView:
        return SidecarView(
            self.host,
            self._clock.cross_timestamp(),
            self._fleet_clock,
            self._edges,
            self._coordinator,
            self._outputs,
            self._root,
            self._suspect,
            self._fit_s,
            self._anchor.bound_ns,
            self.contradictions,
        )

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(self._view().status())

    async def _serve_history(self, _: web.Request) -> web.Response:
        return web.json_response(self._history.document())

    async def _metrics(self, text_format: TextFormat) -> bytes:
        return self._view().metrics(text_format)


def correction_of(reply: RoundReply, line: Line) -> Correction:
    """What a coordinator's reply with this `line` asks of the clock."""
    # An anchor's clock may be free by now without its saying so, and all follow it: their edges cannot tell.
    anchored = reply.quorum is not None and reply.quorum.anchored
    return Correction(
        line.ref_host_ns,
        line.correction_ns,
        line.rate_ppt * 1e-3,
        line.bound_ns,
        free=anchored,
        no_quorum=reply.no_quorum,
    )
