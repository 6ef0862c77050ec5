"""The qp exporter as a daemon: telemetry polled, totals, stalls and HTTP put together."""

import asyncio
import time

import msgspec
from aiohttp import web

from fabricpulse.core.alerting import metrics as alerting_metrics
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.metrics.recent_delays import RecentDelays
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.run_dir import ensure_run_dir, plugin_dir
from fabricpulse.core.shm.virtual_clock import host_now_ns, open_virtual_clock
from fabricpulse.core.supervision import supervised
from fabricpulse.core.web.request_guard import query_int
from fabricpulse.core.web.server import WebServer
from fabricpulse.plugin_ipc.telemetry_folder import TelemetryFolder, VerbsFolder, monotonic_s
from fabricpulse.qp import metrics
from fabricpulse.qp.aggregate import Aggregator, Pair
from fabricpulse.qp.config import QpConfig
from fabricpulse.qp.expose import expose
from fabricpulse.qp.process_facts import ProcessTable, Users
from fabricpulse.qp.stall import HostRanks
from fabricpulse.qp.stall_watch import StallWatch
from fabricpulse.qp.timeline import host_timeline
from fabricpulse.qp.unmoved import UnmovedRank
from fabricpulse.qp.verbs_totals import VerbsTotals
from fabricpulse.qp.workload_info import WorkloadInfo, expose_workloads, workload_infos

log = get_logger(__name__)


async def run(life: Lifetime, config: QpConfig, options: DaemonOptions) -> None:
    """Runs the daemon until a stop signal."""
    ensure_run_dir()
    exporter = Exporter(config)
    server = WebServer("fabricpulse qp", life, exporter.scrape, options.web)
    server.router.add_get("/api/v1/ranks", exporter.serve_ranks)
    server.router.add_get("/api/v1/timeline", exporter.serve_timeline)
    await exporter.open()
    await server.start()
    try:
        async with supervised(life) as tasks:
            tasks.start("poll", exporter.keep_polling())
            if exporter.watch is not None:
                tasks.start("stall watch", exporter.keep_watching(exporter.watch))
                for url in config.alerting.alertmanagers:
                    tasks.start("alert push", exporter.watch.pusher.serve(url))
            life.ready()
            await life.stopped()
            if exporter.watch is not None:
                await exporter.watch.pusher.flush()
    finally:
        await server.stop()
        await exporter.close()


class Exporter:
    """Polls the telemetry in the background and on each scrape."""

    def __init__(self, config: QpConfig) -> None:
        self._config = config
        self._folder = TelemetryFolder(plugin_dir(), config.cleanup_after_s)
        self._aggregator = Aggregator(
            config.forget_after_s,
            config.worst.count,
            config.worst.owd_s,
            config.worst.waiting_s,
            config.alerting.stalled_s,
            config.interval_s,
            Users().of,
        )
        self._delays = RecentDelays[Pair](
            metrics.DELAY_BUCKETS_S, metrics.RECENT_QUANTILES, config.delay_window_s
        )
        alerting = config.alerting
        self.watch = (
            StallWatch(alerting, config.host_name, self.ranks, self.unmoved)
            if alerting.alertmanagers
            else None
        )
        self._verbs_folder = VerbsFolder(plugin_dir(), config.cleanup_after_s)
        self._verbs = VerbsTotals(config.forget_after_s)
        self._processes = ProcessTable()
        self._workloads: tuple[list[WorkloadInfo], dict[str, float]] = ([], {})
        # Polls happen on a worker thread, one at a time: a torn read waits, and must not hold up /-/healthy.
        self._lock = asyncio.Lock()

    async def keep_polling(self) -> None:
        """Polls once an interval, for ever."""
        while True:
            started = time.monotonic()
            await self._poll(interval=True)
            await asyncio.sleep(max(0.05, started + self._config.interval_s - time.monotonic()))

    async def scrape(self, text_format: TextFormat) -> bytes:
        """A fresh poll as an exposition."""
        await self._poll(interval=False)
        exposition = Exposition(self._config.sample_cap)
        expose(
            self._aggregator,
            self._folder.errors,
            exposition,
            self._config.sample_cap,
            self._delays,
            monotonic_s(),
        )
        expose_workloads(*self._workloads, exposition)
        if self.watch is not None:
            exposition.declare(alerting_metrics.METRICS)
            alerting_metrics.expose_pushes(self.watch.pusher.pushes, exposition)
            exposition.add(metrics.PEER_ERRORS, (), self.watch.failed)
        self._verbs.expose(exposition, self._verbs_folder.errors)
        return exposition.render(text_format)

    def ranks(self) -> HostRanks:
        """What the ranks of this host wait for, by the last poll."""
        gauges = self._aggregator.gauges
        return HostRanks(tuple(gauges.waiting), tuple(gauges.heartbeats))

    def unmoved(self) -> list[UnmovedRank]:
        """Ranks of this host that have not moved for too long, by the last poll."""
        return self._aggregator.gauges.unmoved

    async def serve_ranks(self, _: web.Request) -> web.Response:
        """`/api/v1/ranks`: a fresh poll, for the exporters of hosts whose ranks wait for ours."""
        await self._poll(interval=False)
        return web.Response(body=msgspec.json.encode(self.ranks()), content_type="application/json")

    async def serve_timeline(self, request: web.Request) -> web.Response:
        """`/api/v1/timeline?workload=NAME&seconds=N`: what its processes here did lately, for `fabricpulse why`."""
        workload = request.query.get("workload", "")
        seconds = query_int(request, "seconds", 300, 1, 86_400)
        since_ns = host_now_ns(open_virtual_clock()) - seconds * 1_000_000_000
        async with self._lock:
            body = await asyncio.to_thread(self._timeline, workload, since_ns)
        return web.Response(body=body, content_type="application/json")

    def _timeline(self, workload: str, since_ns: int) -> bytes:
        self._poll_now(interval=False)
        rings = self._folder.rings(workload)
        return msgspec.json.encode(host_timeline(self._config.host_name, rings, since_ns))

    async def keep_watching(self, watch: StallWatch) -> None:
        """Looks for stalls once an interval, for ever."""
        while True:
            await asyncio.sleep(self._config.interval_s)
            await watch.poll()

    async def open(self) -> None:
        """Must come before `keep_watching`. Raises ConfigError."""
        if self.watch is not None:
            await self.watch.open()

    async def close(self) -> None:
        """Closes the telemetry files and all connections."""
        self._folder.close()
        if self.watch is not None:
            await self.watch.close()
        self._verbs_folder.close()

    async def _poll(self, *, interval: bool) -> None:
        async with self._lock:
            await asyncio.to_thread(self._poll_now, interval)

    def _poll_now(self, interval: bool) -> None:
        now = monotonic_s()
        living, dead = self._folder.poll(now)
        self._aggregator.take(living, dead, now, interval=interval)
        programs, ended = self._verbs_folder.poll(now)
        self._verbs.take(programs, ended, now, time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW))
        facts = self._processes.facts([*living, *programs], now)
        self._workloads = workload_infos(living, programs, facts)
