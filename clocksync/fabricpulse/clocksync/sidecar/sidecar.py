"""`fabricpulse clocksync sidecar`: samples in, fleet time out.

Four tasks: `_tick_forever` has `PublishedClock` sample the host clock and keep the page alive, as each correction does;
`_watch_causality` has a thread that sees when delays contradict the page; `_rounds` fits the edges, reports and applies
what comes back; the web server answers scrapes, people and neighbours. All thinking is in pure modules.
"""

import asyncio
import contextlib
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
from aiohttp import web

from fabricpulse.clocksync.clock.fleet_clock import Correction
from fabricpulse.clocksync.sidecar.config import SidecarConfig
from fabricpulse.clocksync.sidecar.coordinator_client import CoordinatorClient
from fabricpulse.clocksync.sidecar.host_edges import HostEdges
from fabricpulse.clocksync.sidecar.neighbour_doubt import NeighbourDoubt
from fabricpulse.clocksync.sidecar.neighbours import NeighbourBook, ask_lines, consensus, own_url
from fabricpulse.clocksync.sidecar.pause import majority_stepped
from fabricpulse.clocksync.sidecar.published_clock import PublishedClock, no_op
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
from fabricpulse.core.config import load_config, warn_of_restart
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.fleet.membership import Membership, load_membership
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.run_dir import ensure_run_dir, probe_ring_path
from fabricpulse.core.run_lock import RunLock
from fabricpulse.core.shm.clock_page import ClockStatus
from fabricpulse.core.supervision import supervised
from fabricpulse.core.web.client import Credentials, HttpClient
from fabricpulse.core.web.options import parse_address
from fabricpulse.core.web.server import WebServer
from fabricpulse.core.web.token_file import TokenFile

log = get_logger(__name__)

_NS = 1_000_000_000
# Seconds without an answer from any coordinator after which neighbours are asked; with long rounds, rounds.
_ALONE_S, _ALONE_ROUNDS = 2.0, 1.5

_line_encoder = msgspec.msgpack.Encoder()

# The settings that a reload applies.
_RELOADED = (
    "coordinators",
    "membership",
    "advertise_url",
    "neighbour_port",
    "round_s",
    "start_round_s",
    "clock",
    "estimator",
    "anchor",
)


class Sidecar:
    """The daemon."""

    def __init__(self, options: DaemonOptions, life: Lifetime) -> None:
        self._options = options
        self._life = life
        self._config = self._started = load_config(options.config, SidecarConfig)
        self._membership = self._load_membership(self._config)
        run_dir = ensure_run_dir()
        # Two sidecars would take turns with the clock page: fleet time would run backward.
        self._lock = RunLock(run_dir, "clocksync sidecar")
        self._edges = HostEdges(probe_ring_path(), self._config.estimator.parameters(), self._config.host)
        self._clock = PublishedClock(self._config.clock_parameters(), self._config.outputs, self._edges.clear)
        self._edges.follow, self._clock.delays_contradict = self._clock.follow, self._edges.contradicted
        self._edges_reported = -1
        self._epoch_reported = False
        self._epoch = time.time_ns() & 0x7FFFFFFFFFFFFFFF
        self._generation = 0
        self._anchor = SystemAnchor(self._clock.host)
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
        self._doubt: NeighbourDoubt | None = None
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
        if self._options.config is not None:
            warn_of_restart(self._options.config, self._started, config, _RELOADED)
        # Its files are read again as they change; one that cannot be used makes this reload fail.
        Credentials(self._http_client)
        self._config, self._membership = config, membership
        self._clock.fleet.parameters = config.clock_parameters()
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

    def _leave(self) -> None:
        self._clock.leave()
        self._lock.release()

    async def _tick_forever(self) -> None:
        """Until a tick fails. A task that is woken up for each would cost as much as the tick itself."""
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[None] = loop.create_future()

        def tick() -> None:
            try:
                # Before the page goes on: this process may have been stopped.
                self._heed_delays()
                self._clock.tick()
            except Exception as error:
                if not failed.done():
                    failed.set_exception(error)

        timer = loop.call_at(self._clock.due_s, tick)

        def plan() -> None:
            nonlocal timer
            timer.cancel()
            timer = loop.call_at(self._clock.due_s, tick)

        # A correction does what a tick does.
        self._clock.planned = plan
        try:
            await failed
        finally:
            self._clock.planned = no_op
            timer.cancel()

    async def _watch_causality(self) -> None:
        loop, noticed, stopped = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def notice() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(noticed.set)

        thread = threading.Thread(
            target=self._edges.watch, args=(notice, stopped), name="causality", daemon=True
        )
        thread.start()
        try:
            while True:
                await noticed.wait()
                noticed.clear()
                self._heed_delays()
        finally:
            # A thread that comes back from C while the interpreter ends would abort the process.
            stopped.set()
            while thread.is_alive():
                self._edges.end_watch()
                thread.join(0.01)

    def _heed_delays(self) -> None:
        if self._edges.contradicted():
            self._clock.contradict("causality")
        self._clock.doubt(self._edges.hidden_jump_ns())

    async def _rounds(self, client: HttpClient) -> None:
        while True:
            await asyncio.sleep(self._until_next_round())
            try:
                await self._round(client)
            except (OSError, ValueError) as error:
                log.exception("round failed", reason=str(error))

    def _until_next_round(self) -> float:
        """Seconds to the next round. All hosts begin it at the same fleet time, so that no solve has to wait."""
        round_s = self._config.round_s if self._settled() else self._config.start_round_s
        clock, host = self._clock.fleet, self._clock.host
        # Before there is fleet time, at the same time by NTP: stamp clocks go apart for as long as hosts are up.
        fleet_ns = (
            clock.page.at(host.raw_now_ns()).fleet_ns if clock.known else host.from_kernel(time.time_ns())
        )
        return round_s - (fleet_ns / _NS) % round_s

    def _settled(self) -> bool:
        """Past the start, when rounds and windows are short."""
        since = self._synced_since_s
        return since is not None and time.monotonic() - since > self._config.estimator.window_s

    # One round

    async def _round(self, client: HttpClient) -> None:
        self._edges.read()
        self._clock.follow_epoch(self._edges.stamp_epoch_ns, reported=self._epoch_reported)
        if self._edges.generation != self._edges_reported:
            self._edges_reported = self._edges.generation
            self._change_info()
        began = time.thread_time()
        # Half of the edges are fitted by their other ends. At the start, after a clock step, and without
        # to report to, everything that can be known at once is worth its cost.
        everything = not self._settled() or self._coordinator.unplaced_s() > self._alone_s()
        self._edges.fit(self._clock.stamp_now_ns(), self._window_ns(), everything=everything)
        self._fit_s = time.thread_time() - began
        stepped = majority_stepped(len(self._edges.step_peers), len(self._edges.fitted_peers))
        # Samples from before a contradiction that is known explain it.
        if stepped and not self._clock.contradicted_within(self._config.estimator.window_s):
            self._clock.contradict("edges")
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
        # One that answers but knows no edge of ours that it could use is as good as none. One that does not believe
        # our edges is right not to: neighbours would say the same as they do.
        trusted = not self._suspect or self._coordinator.silent_s() > self._alone_s()
        if trusted and self._coordinator.unplaced_s() > self._alone_s():
            await self._ask_neighbours(client)
        clock = self._clock.fleet
        if clock.page.status == ClockStatus.HOLDOVER:
            self._history.add(clock, self._clock.shown, self._clock.host.raw_now_ns(), 0)
        if self._clock.shown.status == ClockStatus.SYNCHRONIZED:
            self._clock.feed_outputs()
        if clock.page.status == ClockStatus.SYNCHRONIZED:
            if self._synced_since_s is None:
                self._synced_since_s = time.monotonic()
                log.info("synchronized", after_s=round(time.monotonic() - self._started_s, 2))
        elif not clock.no_quorum:
            self._synced_since_s = None

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
        """Where neighbours reach us; empty when the settings do not say."""
        web = self._options.web
        # Names are kept as they were given: a certificate is for a name.
        addresses = self.server.addresses if web.systemd_socket else [parse_address(a) for a in web.listen]
        return self._config.advertise_url or own_url(addresses, tls=self.server.tls)

    def _report(self, with_info: bool) -> RoundReport:
        self._epoch_reported = True
        return RoundReport(
            protocol=PROTOCOL,
            host=self.host,
            epoch=self._epoch,
            generation=self._generation,
            host_ns=self._clock.stamp_now_ns(),
            edges=pack_edges(self._edges.reports()),
            line=self._clock.requested_line(),
            anchor=self._anchor.read(self._config.anchor, self._clock.fleet.epoch_ns),
            root=self._root,
            clock_steps=self._clock.fleet.page.disruptions,
            info=self._info if with_info else None,
            quorum=self._coordinator.quorum,
            no_quorum=self._clock.fleet.no_quorum,
            unverified=self._clock.fleet.unverified_raw_ns is not None,
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
            if reply.no_quorum and not self._clock.fleet.no_quorum:
                log.warning(
                    "no quorum: too few hosts of the fleet are left, or no anchor where there were some; the error "
                    "bound grows as in holdover"
                )
            self._apply(correction_of(reply, reply.line))

    def _apply(self, correction: Correction) -> None:
        # As before a tick: it keeps the page synchronized.
        self._heed_delays()
        correction_ns = self._clock.correct(correction)
        self._history.add(self._clock.fleet, self._clock.shown, self._clock.host.raw_now_ns(), correction_ns)

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
        if (
            not begin
            and self._clock.requested_line() is None
            and not any(reply.line for reply in lines.values())
        ):
            return
        own, now_ns = self._clock.requested_line(), self._clock.stamp_now_ns()
        verified = self._clock.fleet.unverified_raw_ns is None
        correction, self._doubt = consensus(
            self.host, own, fits, lines, now_ns, drift, self._doubt, verified=verified
        )
        if correction is not None:
            no_quorum = self._coordinator.left_out(self._alone_s())
            # What a coordinator has said of the rate holds on: neighbours know no UTC.
            known_ppb = self._clock.fleet.unsure_ppb if self._coordinator.quorum is not None else 0
            drift_ppb = max(correction.drift_ppb, known_ppb)
            self._apply(replace(correction, free=True, no_quorum=no_quorum, drift_ppb=drift_ppb))

    # What others ask

    async def _serve_line(self, _: web.Request) -> web.Response:
        reply = LineReply(
            self.host,
            self._clock.stamp_now_ns(),
            self._clock.requested_line(),
            self._clock.shown.status == ClockStatus.SYNCHRONIZED,
            unverified=self._clock.fleet.unverified_raw_ns is not None,
        )
        return web.Response(body=_line_encoder.encode(reply), content_type="application/msgpack")

    def _view(self) -> SidecarView:
        return SidecarView(
            self.host,
            self._clock.host.cross_timestamp(),
            self._clock.fleet,
            self._clock.shown,
            self._edges,
            self._coordinator,
            self._clock.outputs,
            self._root,
            self._suspect,
            self._fit_s,
            self._anchor.bound_ns,
            self._anchor.refused,
            self._clock.contradictions,
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
        anchored=anchored,
        no_quorum=reply.no_quorum,
        estimated_error_ns=reply.estimated_error_ns,
        drift_ppb=reply.drift_ppb,
    )
