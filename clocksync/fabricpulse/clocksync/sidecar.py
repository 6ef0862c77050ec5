"""`fabricpulse clocksync sidecar`: samples in, fleet time out.

Three tasks: `_tick` (4 a second) watches the host clock and keeps the page alive; `_steps` fits the edges,
reports and applies what comes back; the web server answers scrapes, people and neighbours. All thinking is in
pure modules.
"""

import asyncio
import os
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from fabricpulse.clocksync import metrics
from fabricpulse.clocksync.averaging import NeighbourView, average
from fabricpulse.clocksync.chrony_refclock import ChronySock, NtpShm
from fabricpulse.clocksync.clockbound import ClockBoundWriter
from fabricpulse.clocksync.config import OutputsConfig, SidecarConfig
from fabricpulse.clocksync.edge_estimator import EdgeFit, Quality
from fabricpulse.clocksync.edge_window import EdgeWindow
from fabricpulse.clocksync.fleet_clock import Correction, FleetClock
from fabricpulse.clocksync.host_clock import HostClock
from fabricpulse.clocksync.http_client import open_session
from fabricpulse.clocksync.samples import SampleReader
from fabricpulse.clocksync.system_anchor import system_anchor
from fabricpulse.clocksync.wire import (
    LINE_PATH,
    PROTOCOL,
    STEP_PATH,
    EdgeName,
    EdgeReport,
    EdgeVerdict,
    HostInfo,
    Line,
    LineReply,
    NicInfo,
    StepReply,
    StepReport,
    line_decoder,
    reply_decoder,
    report_encoder,
)
from fabricpulse.core.config import load_config
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.membership import Membership, load_membership
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.run_dir import clock_page_path, ensure_run_dir, probe_ring_path
from fabricpulse.core.shm.clock_page import ClockPage, ClockPageReader, ClockPageWriter, ClockStatus
from fabricpulse.core.shm.mapping import LayoutError
from fabricpulse.core.web.server import WebServer, parse_address

log = get_logger(__name__)

_NS = 1_000_000_000
_TICK_S = 0.25
# Samples that are already in the ring when we start are used: a restart then costs no window.
_BACKLOG = 1 << 14
_WORST_EDGES = 5
# Steps that `clocksync status --plot` can look back: an hour.
_HISTORY = 3600
# Seconds without an answer from any coordinator after which neighbours are asked.
_ALONE_S = 2.0

_line_encoder = msgspec.msgpack.Encoder()


@dataclass
class _Edge:
    name: EdgeName
    generation: int
    window: EdgeWindow
    fit: EdgeFit | None = None
    verdict: EdgeVerdict | None = None


@dataclass
class _Counters:
    samples: int = 0
    lost: int = 0
    steps: int = 0
    route_changes: int = 0
    errors: dict[str, int] = field(
        default_factory=lambda: {"timeout": 0, "connection": 0, "status": 0, "reply": 0}
    )


class Sidecar:
    """The daemon."""

    def __init__(self, options: DaemonOptions, life: Lifetime) -> None:
        self._options = options
        self._life = life
        self._config = load_config(options.config, SidecarConfig)
        self._membership = self._load_membership(self._config)
        self._clock = HostClock()
        ensure_run_dir()
        now = self._clock.instant()
        parameters = self._config.clock.parameters(self._config.estimator.drift_ppb)
        self._fleet_clock = FleetClock.start(parameters, now, _old_page(clock_page_path()))
        self._writer = _open_page(clock_page_path())
        self._writer.write(self._fleet_clock.page)
        self._clockbound, self._refclocks = _open_outputs(self._config.outputs)
        self._ring: SampleReader | None = None
        self._ring_edges_sequence = -1
        self._edges: dict[int, _Edge] = {}
        self._epoch = time.time_ns() & 0x7FFFFFFFFFFFFFFF
        self._generation = 0
        self._resend_info = True
        self._info: HostInfo | None = None
        self._root = ""
        self._suspect = ""
        self._neighbours_path = ensure_run_dir() / "clocksync-neighbours.json"
        self._neighbours = _load_neighbours(self._neighbours_path)
        self._coordinator = 0
        self._answered_s = -1e9
        self._coordinator_up = False
        self._count = _Counters()
        self._fit_s = 0.0
        self._started_s = time.monotonic()
        self._history: deque[tuple[float, int, int, float, str]] = deque(maxlen=_HISTORY)
        self._synced_since_s: float | None = None
        self.server = WebServer(
            "fabricpulse clocksync sidecar",
            life,
            self._metrics,
            web_config=options.web_config,
            landing_links=[("/api/v1/clocksync/status", "Status")],
        )
        self.server.router.add_get(LINE_PATH, self._serve_line)
        self.server.router.add_get("/api/v1/clocksync/status", self._status)
        self.server.router.add_get("/api/v1/clocksync/history", self._serve_history)
        life.on_reload(self._reload)

    # Settings

    @staticmethod
    def _load_membership(config: SidecarConfig) -> Membership:
        return load_membership(Path(config.membership)) if config.membership else Membership()

    async def _reload(self) -> None:
        config = load_config(self._options.config, SidecarConfig)
        membership = self._load_membership(config)
        self._config, self._membership = config, membership
        self._fleet_clock.parameters = config.clock.parameters(config.estimator.drift_ppb)
        for edge in self._edges.values():
            edge.window.parameters = config.estimator.parameters()
        self._change_info()

    @property
    def host(self) -> str:
        """This host's name in the fleet."""
        if self._config.host:
            return self._config.host
        return self._ring.host if self._ring is not None and self._ring.host else self._config.host_name()

    # Life

    async def run(self) -> None:
        """Works until stopped. Raises UserError when the address cannot be bound."""
        await self.server.start(self._options.listen)
        if not self._config.coordinators and not self._config.membership:
            log.warning(
                "neither coordinators nor a membership file are configured: fleet time cannot be known"
            )
        async with open_session(self._config.http_client) as session:
            tasks = [asyncio.create_task(self._tick_forever()), asyncio.create_task(self._steps(session))]
            stopped = asyncio.create_task(self._life.stopped())
            self._life.ready()
            done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            stopped.cancel()
            await self.server.stop()
            for task in done:
                if task is not stopped:
                    task.result()

    async def _tick_forever(self) -> None:
        while True:
            self._tick()
            await asyncio.sleep(_TICK_S)

    def _tick(self) -> None:
        before = self._fleet_clock.page.disruptions
        page = self._fleet_clock.tick(self._clock.instant())
        if page.disruptions != before:
            log.warning("the system clock was stepped; fleet time goes on", disruptions=page.disruptions)
            for edge in self._edges.values():
                edge.window.clear()
                edge.fit = None
        self._writer.write(page)
        if self._clockbound is not None:
            self._clockbound.publish(page, self._clock.now_ns())

    async def _steps(self, session: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(self._until_next_step())
            try:
                await self._step(session)
            except (OSError, TimeoutError, ValueError, LayoutError) as error:
                log.exception("step failed", reason=str(error))

    def _until_next_step(self) -> float:
        """Seconds to the next step. All hosts step at the same fleet time, so that a solve waits for
        nobody.
        """
        step = self._config.step_s if self._settled() else self._config.start_step_s
        now = self._clock.now_ns()
        page = self._fleet_clock.page
        fleet = page.convert(now).fleet_ns if self._fleet_clock.known else now
        return step - (fleet / _NS) % step

    def _settled(self) -> bool:
        """Past the start, when steps and windows are short."""
        since = self._synced_since_s
        return since is not None and time.monotonic() - since > self._config.estimator.window_s

    # One step

    async def _step(self, session: aiohttp.ClientSession) -> None:
        self._read_ring()
        now_ns = self._clock.now_ns()
        began = time.thread_time()
        for edge in self._edges.values():
            edge.window.window_ns = self._window_ns()
            edge.fit = edge.window.advance(now_ns)
        self._fit_s = time.thread_time() - began
        reply = await self._report(session)
        if reply is not None:
            self._take_reply(reply)
        elif time.monotonic() - self._answered_s > _ALONE_S:
            await self._ask_neighbours(session)
        if self._fleet_clock.page.status == ClockStatus.HOLDOVER:
            self._remember(self._clock.now_ns(), 0)
        if self._fleet_clock.page.status == ClockStatus.SYNCHRONIZED:
            self._feed_refclocks()
            if self._synced_since_s is None:
                self._synced_since_s = time.monotonic()
                log.info("synchronized", after_s=round(time.monotonic() - self._started_s, 2))
        else:
            self._synced_since_s = None

    def _feed_refclocks(self) -> None:
        """Gives chronyd a sample; only while synchronised, so that it falls back to its other sources in holdover."""
        if not self._refclocks:
            return
        kernel_ns = time.time_ns()
        host_ns = self._clock.from_kernel(kernel_ns)
        fleet = self._fleet_clock.page.convert(host_ns)
        for refclock in self._refclocks.values():
            refclock.feed(kernel_ns, fleet.fleet_ns - host_ns, fleet.bound_ns)

    def _window_ns(self) -> int:
        """Short at the start, so that there soon is a fleet time; as long as configured once there is."""
        estimator = self._config.estimator
        since = self._synced_since_s
        age = 0.0 if since is None else time.monotonic() - since
        return round(min(estimator.window_s, estimator.start_window_s + age) * _NS)

    def _read_ring(self) -> None:
        if self._ring is not None and self._ring.stale():
            self._ring.close()
            self._ring = None
        if self._ring is None:
            try:
                self._ring = SampleReader(probe_ring_path(), backlog=_BACKLOG)
            except FileNotFoundError:
                return
            self._ring_edges_sequence = -1
            self._edges.clear()
            log.info("reading probe samples", host=self._ring.host, epoch=self._ring.epoch)
        ring = self._ring
        if ring.edges_sequence != self._ring_edges_sequence:
            self._ring_edges_sequence = ring.edges_sequence
            self._take_edges(ring)
        lost = ring.lost
        samples = ring.read()
        self._count.samples += len(samples)
        self._count.lost += ring.lost - lost
        for index, edge in self._edges.items():
            mine = samples[samples["edge"] == index]
            if len(mine):
                edge.window.add(mine)

    def _take_edges(self, ring: SampleReader) -> None:
        table = ring.edges()
        old = self._edges
        self._edges = {}
        for index, entry in table.items():
            known = old.get(index)
            if known is not None and known.generation == entry.generation:
                self._edges[index] = known
                continue
            name = EdgeName(entry.device, entry.peer, entry.peer_device)
            self._edges[index] = _Edge(
                name, entry.generation, EdgeWindow(self._config.estimator.parameters())
            )
        self._change_info()

    def _change_info(self) -> None:
        self._generation += 1
        self._resend_info = True
        host = self._membership.host(self.host)
        nics = tuple(NicInfo(n.device, n.address, n.network) for n in host.nics) if host is not None else ()
        edges = tuple(edge.name for edge in self._edges.values())
        self._info = HostInfo(self._generation, self._url(), nics, edges, self._config.anchor.kind)

    def _url(self) -> str:
        """Where neighbours reach us; empty when that cannot be told from the settings."""
        if self._config.advertise_url:
            return self._config.advertise_url
        scheme = "https" if self._options.web_config is not None else "http"
        for listen in self._options.listen:
            address, port = parse_address(listen)
            if address not in ("", "0.0.0.0", "::"):  # noqa: S104 - a comparison
                return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"
        return ""

    def _own_line(self) -> Line | None:
        """The line that the last correction asked for, with the bound of the page now."""
        clock = self._fleet_clock
        if not clock.known:
            return None
        now = self._clock.now_ns()
        target = clock.target
        return Line(now, target.at(now) - now, target.rate_ppt, clock.page.convert(now).bound_ns)

    def _reports(self) -> tuple[EdgeReport, ...]:
        reports = []
        for number, edge in enumerate(self._edges.values()):
            fit = edge.fit
            if fit is None:
                continue
            reports.append(
                EdgeReport(
                    edge=number,
                    t_ns=fit.t_ns,
                    last_after_ns=fit.t_last_ns - fit.t_ns,
                    offset_ns=fit.offset_ns,
                    rate_ppt=round(fit.rate_ppb * 1000),
                    sigma_ns=round(fit.sigma_ns),
                    rate_sigma_ppt=round(fit.rate_sigma_ppb * 1000),
                    bound_ns=round(fit.bound_ns),
                    quality=int(fit.quality),
                )
            )
        return tuple(reports)

    async def _report(self, session: aiohttp.ClientSession) -> StepReply | None:
        """Reports to the coordinator; tries each in turn. None when none answered."""
        urls = self._config.coordinators
        if not urls:
            return None
        if self._info is None:
            self._change_info()
        for _ in range(len(urls)):
            url = urls[self._coordinator % len(urls)]
            report = StepReport(
                protocol=PROTOCOL,
                host=self.host,
                epoch=self._epoch,
                generation=self._generation,
                host_ns=self._clock.now_ns(),
                edges=self._reports(),
                line=self._own_line(),
                anchor=system_anchor(self._config.anchor),
                root=self._root,
                steps=self._fleet_clock.page.disruptions,
                info=self._info if self._resend_info else None,
            )
            reply = await self._post(session, url, report_encoder.encode(report))
            if reply is not None:
                self._answered_s = time.monotonic()
                self._coordinator_up = True
                return reply
            self._coordinator += 1
            self._resend_info = True
        if self._coordinator_up:
            log.warning("no coordinator answers; holdover, then neighbours", coordinators=list(urls))
        self._coordinator_up = False
        return None

    async def _post(self, session: aiohttp.ClientSession, url: str, body: bytes) -> StepReply | None:
        errors = self._count.errors
        try:
            async with session.post(url.rstrip("/") + STEP_PATH, data=body) as response:
                if response.status != 200:
                    errors["status"] += 1
                    log.warning("coordinator refused the report", url=url, status=response.status)
                    return None
                return reply_decoder.decode(await response.read())
        except TimeoutError:
            errors["timeout"] += 1
        except (aiohttp.ClientError, OSError):
            errors["connection"] += 1
        except msgspec.MsgspecError as error:
            errors["reply"] += 1
            log.warning("coordinator's reply cannot be read", url=url, error=str(error))
        return None

    def _take_reply(self, reply: StepReply) -> None:
        self._resend_info = reply.resend_info
        self._root = reply.root
        if reply.suspect and reply.suspect != self._suspect:
            log.warning("the coordinator finds this host's stamps wrong", reason=reply.suspect)
        self._suspect = reply.suspect
        if reply.neighbours is not None:
            self._neighbours = reply.neighbours
            _save_neighbours(self._neighbours_path, self._neighbours)
        edges = list(self._edges.values())
        for verdict in reply.verdicts:
            if verdict.edge < len(edges):
                edges[verdict.edge].verdict = verdict
        if reply.line is not None:
            line = reply.line
            self._apply(Correction(line.ref_host_ns, line.correction_ns, line.rate_ppt * 1e-3, line.bound_ns))

    def _apply(self, correction: Correction) -> None:
        now = self._clock.instant()
        # A correction that was computed before a step of the host clock belongs to another clock.
        self._tick()
        if self._fleet_clock.page.status == ClockStatus.DISRUPTED and not any(
            e.fit for e in self._edges.values()
        ):
            return
        known = self._fleet_clock.known
        shown = self._fleet_clock.page.convert(now.host_ns).fleet_ns
        page = self._fleet_clock.correct(now, correction)
        self._writer.write(page)
        error_ns = shown - self._fleet_clock.target.at(now.host_ns) if known else 0
        self._remember(now.host_ns, error_ns)

    def _remember(self, host_ns: int, error_ns: int) -> None:
        page = self._fleet_clock.page
        bound_ns = page.convert(host_ns).bound_ns
        point = (time.monotonic(), error_ns, bound_ns, page.current.rate_ppt * 1e-3, page.status.name.lower())
        self._history.append(point)

    # Without a coordinator

    def _neighbour_urls(self) -> dict[str, str]:
        """host -> URL: as the coordinator last said, else by the addresses of the membership file."""
        urls = {}
        for edge in self._edges.values():
            peer = edge.name.peer
            if peer in self._neighbours:
                urls[peer] = self._neighbours[peer]
                continue
            host = self._membership.host(peer)
            nic = next((n for n in host.nics if n.device == edge.name.peer_device), None) if host else None
            if nic is not None and peer not in urls:
                address = f"[{nic.address}]" if ":" in nic.address else nic.address
                scheme = "https" if self._config.http_client.tls_config is not None else "http"
                urls[peer] = f"{scheme}://{address}:{self._config.neighbour_port}"
        return urls

    async def _ask_neighbours(self, session: aiohttp.ClientSession) -> None:
        urls = self._neighbour_urls()
        asked = self._clock.now_ns()
        replies = await asyncio.gather(*(self._fetch_line(session, url) for url in urls.values()))
        now = self._clock.now_ns()
        lines = {peer: reply for peer, reply in zip(urls, replies, strict=True) if reply is not None}
        correction = self._consensus(lines, now, now - asked)
        if correction is not None:
            self._apply(correction)

    async def _fetch_line(self, session: aiohttp.ClientSession, url: str) -> LineReply | None:
        try:
            async with session.get(url + LINE_PATH, timeout=aiohttp.ClientTimeout(total=0.5)) as response:
                if response.status != 200:
                    return None
                return line_decoder.decode(await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError):
            return None

    def _consensus(self, lines: dict[str, LineReply], now_ns: int, took_ns: int) -> Correction | None:
        """One round of averaging with the lines that neighbours have sent."""
        drift = self._config.estimator.drift_ppb
        views = []
        for edge in self._edges.values():
            reply, fit = lines.get(edge.name.peer), edge.fit
            if reply is None or reply.line is None or fit is None:
                continue
            offset = fit.at(now_ns)
            # c_us - c_peer = offset; the peer's line is brought to our moment by the peer's own clock.
            peer_now = now_ns + round(offset)
            elapsed = peer_now - reply.line.ref_host_ns
            peer_correction = reply.line.correction_ns + elapsed * reply.line.rate_ppt // 10**12
            age_s = (now_ns - fit.t_last_ns) * 1e-9
            views.append(
                NeighbourView(
                    peer_correction + offset,
                    reply.line.rate_ppt * 1e-3 + fit.rate_ppb,
                    fit.sigma_ns,
                    reply.line.bound_ns + fit.bound_ns + drift * age_s + drift * abs(elapsed) * 1e-9,
                )
            )
        own = self._own_line()
        if own is None and not any(reply.line is not None for reply in lines.values()):
            return self._found(lines, now_ns)
        return average(
            now_ns,
            own.correction_ns if own is not None else None,
            own.rate_ppt * 1e-3 if own is not None else 0.0,
            own.bound_ns if own is not None else float("inf"),
            views,
        )

    def _found(self, lines: dict[str, LineReply], now_ns: int) -> Correction | None:
        """Nobody has a fleet time: the host with the lowest name makes its own clock the beginning of it."""
        fitted = {edge.name.peer for edge in self._edges.values() if edge.fit is not None}
        if not lines or not fitted or self.host > min(fitted):
            return None
        log.info("no coordinator and no fleet time anywhere: this host's clock begins it")
        return Correction(now_ns, 0, 0.0, 0)

    async def _serve_line(self, _: web.Request) -> web.Response:
        page = self._fleet_clock.page
        reply = LineReply(
            self.host, self._clock.now_ns(), self._own_line(), page.status == ClockStatus.SYNCHRONIZED
        )
        return web.Response(body=_line_encoder.encode(reply), content_type="application/msgpack")

    # For people and Prometheus

    async def _status(self, _: web.Request) -> web.Response:
        now = self._clock.now_ns()
        page = self._fleet_clock.page
        fleet = page.convert(now)
        edges = [
            {
                "device": e.name.device,
                "peer": e.name.peer,
                "peer_device": e.name.peer_device,
                "t_ns": e.fit.t_ns if e.fit else None,
                "offset_ns": e.fit.offset_ns if e.fit else None,
                "raw_offset_ns": e.fit.raw_offset_ns if e.fit else None,
                "rate_ppb": e.fit.rate_ppb if e.fit else None,
                "half_gap_ns": e.fit.half_gap_ns if e.fit else None,
                "bound_ns": e.fit.bound_ns if e.fit else None,
                "sigma_ns": e.fit.sigma_ns if e.fit else None,
                "pure": e.fit.pure if e.fit else 0,
                "trains": e.fit.trains if e.fit else 0,
                "quality": e.fit.quality.name.lower() if e.fit else "none",
                "residual_ns": e.verdict.residual_ns if e.verdict else None,
                "fits": e.verdict.fits if e.verdict else None,
            }
            for e in self._edges.values()
        ]
        return web.json_response(
            {
                "host": self.host,
                "status": page.status.name.lower(),
                "host_ns": now,
                "fleet_ns": fleet.fleet_ns if self._fleet_clock.known else None,
                "bound_ns": fleet.bound_ns if self._fleet_clock.known else None,
                "offset_ns": fleet.fleet_ns - now if self._fleet_clock.known else None,
                "rate_ppb": page.current.rate_ppt * 1e-3,
                "coordinator_up": self._coordinator_up,
                "root": self._root,
                "suspect": self._suspect,
                "disruptions": page.disruptions,
                "edges": edges,
            }
        )

    async def _serve_history(self, _: web.Request) -> web.Response:
        now = time.monotonic()
        return web.json_response(
            [
                {"age_s": now - at, "error_ns": error, "bound_ns": bound, "rate_ppb": rate, "status": status}
                for at, error, bound, rate, status in self._history
            ]
        )

    async def _metrics(self) -> bytes:
        out = Exposition()
        now = self._clock.now_ns()
        page = self._fleet_clock.page
        known = self._fleet_clock.known
        time_now = page.convert(now)
        fleet = ("fleet",)
        out.add(metrics.BOUND, fleet, time_now.bound_ns * 1e-9 if known else float("inf"))
        if known:
            out.add(metrics.OFFSET, fleet, (time_now.fleet_ns - now) * 1e-9)
            out.add(metrics.FREQUENCY, fleet, 1.0 + page.current.rate_ppt * 1e-12)
            slew = self._fleet_clock.target.at(now) - page.current.at(now)
            out.add(metrics.SLEW, fleet, slew * 1e-9)
        out.add(metrics.SYNCHRONIZED, fleet, int(page.status == ClockStatus.SYNCHRONIZED))
        for status in ClockStatus:
            out.add(metrics.STATUS, ("fleet", status.name.lower()), int(page.status == status))
        out.add(metrics.DISRUPTIONS, fleet, page.disruptions)
        fits = [edge.fit for edge in self._edges.values() if edge.fit is not None]
        for quality in Quality:
            out.add(metrics.EDGES, (quality.name.lower(),), sum(fit.quality == quality for fit in fits))
        out.add(metrics.EDGES, ("none",), len(self._edges) - len(fits))
        judged = [edge for edge in self._edges.values() if edge.verdict is not None and edge.fit is not None]
        judged.sort(key=lambda edge: -abs(edge.verdict.residual_ns if edge.verdict else 0))
        for edge in judged[:_WORST_EDGES]:
            if edge.verdict is not None:
                name = (edge.name.device, edge.name.peer, edge.name.peer_device)
                out.add(metrics.EDGE_RESIDUAL, name, edge.verdict.residual_ns * 1e-9)
        windows = [edge.window for edge in self._edges.values()]
        out.add(metrics.EDGE_STEPS, (), self._count.steps + sum(w.steps for w in windows))
        out.add(metrics.ROUTE_CHANGES, (), self._count.route_changes + sum(w.route_changes for w in windows))
        out.add(metrics.SAMPLES, (), self._count.samples)
        out.add(metrics.SAMPLES_LOST, (), self._count.lost)
        out.add(metrics.COORDINATOR_UP, (), int(self._coordinator_up))
        for reason, count in self._count.errors.items():
            out.add(metrics.REPORT_ERRORS, (reason,), count)
        out.add(metrics.SUSPECT, (), int(bool(self._suspect)))
        out.add(metrics.FIT_SECONDS, (), self._fit_s)
        for output, refclock in self._refclocks.items():
            out.add(metrics.OUTPUT_SAMPLES, (output,), refclock.sent)
        return out.render()


def _old_page(path: Path) -> ClockPage | None:
    """The page of the sidecar that was here before, if it left one that can be read."""
    try:
        reader = ClockPageReader(path)
    except (OSError, LayoutError):
        return None
    try:
        return reader.read()
    except (TimeoutError, ValueError):
        return None
    finally:
        reader.close()


def _load_neighbours(path: Path) -> dict[str, str]:
    """Neighbours as the coordinator last named them, so that a restart while it is away finds them."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def _save_neighbours(path: Path, neighbours: dict[str, str]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(msgspec.json.encode(neighbours))
        temporary.replace(path)
    except OSError as error:
        log.warning("cannot remember the neighbours", path=str(path), reason=error.strerror)


def _open_outputs(config: OutputsConfig) -> tuple[ClockBoundWriter | None, dict[str, ChronySock | NtpShm]]:
    """The outputs that are switched on. Raises UserError for one that cannot be had."""
    clockbound = None
    if config.clockbound != "off":
        path = Path(config.clockbound) if config.clockbound else clock_page_path().with_name("clockbound")
        try:
            clockbound = ClockBoundWriter(path)
        except OSError as error:
            raise UserError(
                f"outputs.clockbound: cannot write {path}: {error.strerror}; choose another file, or off"
            ) from error
    refclocks: dict[str, ChronySock | NtpShm] = {}
    if config.chrony_sock:
        refclocks["chrony_sock"] = ChronySock(Path(config.chrony_sock))
    if config.ntp_shm_unit >= 0:
        try:
            refclocks["ntp_shm"] = NtpShm(config.ntp_shm_unit)
        except OSError as error:
            raise UserError(
                f"outputs.ntp_shm_unit: cannot use unit {config.ntp_shm_unit}: {error.strerror}; choose another, "
                "or see who owns it with ipcs -m"
            ) from error
    return clockbound, refclocks


def _open_page(path: Path) -> ClockPageWriter:
    try:
        return ClockPageWriter(path)
    except OSError as error:
        raise UserError(
            f"cannot write the clock page {path}: {error.strerror}; run as root or set FABRICPULSE_RUN_DIR "
            f"(process {os.getpid()})"
        ) from error
