"""The audit agent: `fabricpulse audit node`. Off unless it is started: opening a port is the operator's decision.

It answers no request without the token. An audit sends no packet. An echo test sends few echoes at a time.
A transfer is bounded in time and rate, is the only one of its NIC, and is refused where a job runs; it ends when a job
starts, and with the connection of who asked for it.
"""

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from fabricpulse.audit.boot import own_boot, own_hostname, own_machine
from fabricpulse.audit.expose import expose
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.local import audit_host
from fabricpulse.audit.metrics import METRICS, REFUSED, RUNS, TRANSFERS
from fabricpulse.audit.model import FleetFindings, HostReport
from fabricpulse.audit.node.config import NodeConfig
from fabricpulse.audit.node.echo import ECHO_TESTS_AT_A_TIME, echo
from fabricpulse.audit.node.front_end import front_end_of
from fabricpulse.audit.node.jobs import JobWatch, PluginJobWatch, QueuePairWatch, in_use
from fabricpulse.audit.node.listener import TransferListener
from fabricpulse.audit.node.neighbours import receive_lldp
from fabricpulse.audit.node.rdma_service import RdmaService
from fabricpulse.audit.node.ring import remove_left_behind, run_ring
from fabricpulse.audit.node.sender import send
from fabricpulse.audit.node.torch_ring import run_torch, why_not
from fabricpulse.audit.node.transfer import PATIENCE_S, Moved, TransferError
from fabricpulse.audit.node.wire import (
    AUDIT_PATH,
    ECHO_TESTS_PATH,
    FINDINGS_PATH,
    FRESH_S,
    NEIGHBOURS_PATH,
    RECEIVE_PATH,
    RING_PATH,
    SEND_PATH,
    AuditRequest,
    EchoResult,
    EchoTest,
    EchoTestsAnswer,
    EchoTestsRequest,
    NeighboursAnswer,
    NeighboursRequest,
    ReceiveRequest,
    RingAnswer,
    RingRequest,
    SendRequest,
)
from fabricpulse.audit.still_open import awaited
from fabricpulse.audit.storage import FLEET, LAST, encode, keep_fleet, keep_report, read
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.run_dir import clock_page_path, plugin_dir
from fabricpulse.core.shm.clock_page import ClockPageReader, FleetTime
from fabricpulse.core.web.server import WebServer
from fabricpulse.core.web.token_file import TokenFile

log = get_logger(__name__)
T = TypeVar("T", bound=msgspec.Struct)
K = TypeVar("K", HostReport, FleetFindings)

# How often a transfer under way looks for a job.
WATCH_S = 0.2
# How long a request waits for the transfer before it: a receiver whose sender does not come has PATIENCE_S.
RELEASE_S = PATIENCE_S + 1.0


class Agent:
    """The daemon. make_reader : of this host with these rails. receiving : transfers that wait for their sender, or
    have it. made : transfers so far, by direction."""

    def __init__(
        self,
        config: NodeConfig,
        options: DaemonOptions,
        life: Lifetime,
        make_reader: Callable[[dict[str, str]], HostReader],
    ) -> None:
        self._config = config
        self._life = life
        self._make_reader = make_reader
        self._token = TokenFile(config.token_file)
        self._state = Path(config.state)
        self._audit = asyncio.Lock()
        self._echoing = asyncio.Lock()
        self._listening = asyncio.Lock()
        # (NIC, direction) that has a transfer, and what stops it; one that is not duplex has both directions.
        self._transfers: dict[tuple[str, str], threading.Event] = {}
        # NICs that receive a duplex transfer, beside which they may send one, and when that begins.
        self._duplex: dict[str, threading.Event] = {}
        # Bytes of all transfers of a NIC and direction so far.
        self._moved: dict[tuple[str, str], Moved] = defaultdict(Moved)
        self.receiving: set[asyncio.Task[None]] = set()
        self._report = self._last(LAST, HostReport)
        self._fleet = self._last(FLEET, FleetFindings)
        self._reported_at = float("-inf")
        self._rails: dict[str, str] | None = None
        self._runs = 0
        self._refused: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self.server = WebServer(
            "fabricpulse audit node",
            life,
            self._metrics,
            options.web,
            max_body=1 << 20,
            own_authentication=lambda request: request.path.startswith(AUDIT_PATH),
        )
        self.server.router.add_post(AUDIT_PATH, self._serve_audit)
        self.server.router.add_post(ECHO_TESTS_PATH, self._serve_echo_tests)
        self.server.router.add_post(FINDINGS_PATH, self._serve_findings)
        self.server.router.add_post(NEIGHBOURS_PATH, self._serve_neighbours)
        self.server.router.add_post(RECEIVE_PATH, self._serve_receive)
        self.server.router.add_post(RING_PATH, self._serve_ring)
        self.server.router.add_post(SEND_PATH, self._serve_send)
        RdmaService(self).add_to(self.server.router)

    def _last(self, name: str, kind: type[K]) -> K | None:
        try:
            return read(self._state / name, kind)
        except UserError:
            return None

    async def run(self) -> None:
        """Serves until stopped. Raises UserError when the address cannot be bound."""
        await self.server.start()
        try:
            self._life.ready()
            # Who starts the agent does not wait for it: the folder is one that all users may fill.
            removed = asyncio.create_task(asyncio.to_thread(remove_left_behind))
            await self._life.stopped()
            await removed
        finally:
            for stop in self._transfers.values():
                stop.set()
            await asyncio.gather(*self.receiving, return_exceptions=True)
            await self.server.stop()

    async def _serve_audit(self, request: web.Request) -> web.Response:
        wanted = await self.decoded(request, AuditRequest)
        async with self._audit:
            # One audit at a time; who has waited for another takes its report.
            if time.monotonic() - self._reported_at > FRESH_S or self._rails != wanted.rails:
                # A thread of its own each time: one that hangs in a dead NIC is left behind by the runner.
                reader = self._make_reader(dict(wanted.rails))
                self._report = await asyncio.to_thread(audit_host, self._config.host_name, reader)
                self._reported_at, self._rails = time.monotonic(), dict(wanted.rails)
                self._runs += 1
                self._report = await asyncio.to_thread(self._keep, self._report)
            assert self._report is not None  # noqa: S101 - set above
            local = request.transport.get_extra_info("sockname") if request.transport else None
            reached_at = await asyncio.to_thread(front_end_of, local[0]) if local else None
            awaits = awaited(self._fleet) if self._fleet else ()
            report = msgspec.structs.replace(self._report, front_end=reached_at, awaits=awaits)
            return web.Response(body=encode(report), content_type="application/json")

    def _keep(self, report: HostReport) -> HostReport:
        try:
            return keep_report(self._state, report, self._config.keep_runs)
        except UserError as error:
            # The answer does not depend on it.
            log.error("the report cannot be kept", error=str(error))
            return report

    async def _serve_echo_tests(self, request: web.Request) -> web.Response:
        wanted = await self.decoded(request, EchoTestsRequest)
        if self._echoing.locked():
            self.refuse("busy")
            raise web.HTTPConflict(text="echo tests of another request are under way; try again later\n")
        async with self._echoing:
            slots = asyncio.Semaphore(ECHO_TESTS_AT_A_TIME)

            async def one(test: EchoTest) -> EchoResult:
                async with slots:
                    # A cancelled run leaves nothing behind: the rest is not sent once the connection is closed.
                    if request.transport is None or request.transport.is_closing():
                        return EchoResult(0, 0, "ECANCELED")
                    return await echo(test)

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(test)) for test in wanted.echo_tests]
        answer = EchoTestsAnswer(tuple(task.result() for task in tasks))
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def _serve_findings(self, request: web.Request) -> web.Response:
        sent = await self.decoded(request, FleetFindings)
        findings = msgspec.structs.replace(
            sent,
            # As the fleet calls it: findings name it so.
            host=sent.host or self._config.host_name,
            boot=own_boot(),
            machine=own_machine(),
            hostname=own_hostname(),
            earlier=(),
        )
        try:
            self._fleet = await asyncio.to_thread(keep_fleet, self._state, findings)
        except UserError as error:
            log.error("the findings of the fleet cannot be kept", error=str(error))
            raise web.HTTPInsufficientStorage(text="the findings cannot be kept\n") from error
        return web.Response(text="kept\n")

    async def _serve_neighbours(self, request: web.Request) -> web.Response:
        wanted = await self.decoded(request, NeighboursRequest)
        if self._listening.locked():
            self.refuse("busy")
            raise web.HTTPConflict(text="another request listens already; try again later\n")
        async with self._listening:
            stop = threading.Event()
            work = asyncio.to_thread(receive_lldp, wanted.devices, wanted.seconds, stop)
            (neighbours, unreadable), _ = await self.watched(work, stop, request)
        return web.Response(
            body=msgspec.json.encode(NeighboursAnswer(neighbours, unreadable)),
            content_type="application/json",
        )

    async def _serve_receive(self, request: web.Request) -> web.Response:
        wanted = await self.decoded(request, ReceiveRequest)
        stop = await self.claim(wanted.device, "received", duplex=wanted.duplex)
        try:
            receiver = TransferListener(wanted, fleet_clock(), self._moved[wanted.device, "received"])
        except (OSError, ValueError) as error:
            self.release(wanted.device, stop)
            self.refuse("invalid")
            raise web.HTTPBadRequest(text=f"{wanted.device} {wanted.address}: {error}\n") from error

        async def take() -> None:
            try:
                watch = self._job_watch(wanted.device)
                await self.watched(asyncio.to_thread(receiver.run, stop), stop, watch=watch)
            except (TransferError, OSError) as error:
                log.info("a transfer was not received to its end", device=wanted.device, error=str(error))
            finally:
                receiver.close()
                self.release(wanted.device, stop)

        self.made["received"] += 1
        if wanted.duplex:
            self._duplex[wanted.device] = receiver.began
        task = asyncio.create_task(take())
        self.receiving.add(task)
        task.add_done_callback(self.receiving.discard)
        return web.Response(body=msgspec.json.encode(receiver.answer), content_type="application/json")

    async def _serve_send(self, request: web.Request) -> web.Response:
        wanted = await self.decoded(request, SendRequest)
        stop = await self.claim(wanted.device, "sent", duplex=wanted.duplex)
        try:
            limit_bps = self.bounded(wanted.rate_bps)
            wanted = msgspec.structs.replace(wanted, rate_bps=limit_bps)
            self.made["sent"] += 1
            after = self._duplex.get(wanted.device) if wanted.duplex else None
            moved = self._moved[wanted.device, "sent"]
            work = asyncio.to_thread(send, wanted, fleet_clock(), stop, after, moved)
            result, why = await self.watched(work, stop, request, self._job_watch(wanted.device))
            # What is above it is no fault of the NIC.
            result = msgspec.structs.replace(result, limit_bps=float(limit_bps))
            if why:
                result = msgspec.structs.replace(result, error=why)
        finally:
            self.release(wanted.device, stop)
        return web.Response(body=msgspec.json.encode(result), content_type="application/json")

    async def _serve_ring(self, request: web.Request) -> web.Response:
        wanted = await self.decoded(request, RingRequest)
        self._refuse_unbounded(wanted.devices)
        if wanted.torch:
            reader = self.reader()
            why = await asyncio.to_thread(
                lambda: why_not([g.vendor for g in reader.gpus], reader.nvml_answer)
            )
            if why:
                return web.Response(
                    body=msgspec.json.encode(RingAnswer(error=why)), content_type="application/json"
                )
        claims: list[tuple[str, threading.Event]] = []
        stop = threading.Event()
        try:
            for device in dict.fromkeys(wanted.devices):
                # Each by itself: what was claimed before one that is refused is given back.
                claims.append((device, await self.claim(device, "sent", duplex=False)))  # noqa: PERF401
            self.made["sent"] += 1
            if wanted.torch:
                work = asyncio.to_thread(run_torch, wanted, stop, self._config.torch_python)
            else:
                work = asyncio.to_thread(run_ring, wanted, stop, None, self._config.mesh_url)
            # Its own queue pairs and traffic are on the NICs: only a process with the plugin is distinguished from it.
            answer, why = await self.watched(work, stop, request, PluginJobWatch(plugin_dir()))
            if why:
                answer = msgspec.structs.replace(answer, error=why)
        finally:
            for device, claim in claims:
                self.release(device, claim)
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    def _refuse_unbounded(self, devices: tuple[str, ...]) -> None:
        """A ring sends as fast as it can. Raises HTTPForbidden where that is more than this host may be asked for."""
        reader = self.reader()
        for device in devices:
            speed = reader.number(f"/sys/class/net/{device}/speed") or 0
            if speed > self._config.transfer_mbit_s:
                self.refuse("off")
                raise web.HTTPForbidden(
                    text=f"{device} could send {speed} Mb/s, transfer_mbit_s is {self._config.transfer_mbit_s}\n"
                )

    def reader(self) -> HostReader:
        """Of this host, with the rails that were sent last."""
        return self._make_reader(dict(self._rails or {}))

    def bounded(self, rate_bps: int) -> int:
        """What a NIC of this host may be asked to send, bits per second."""
        return min(rate_bps, self._config.transfer_mbit_s * 1_000_000)

    async def claim(self, device: str, direction: str, *, duplex: bool) -> threading.Event:
        """The right to the only transfer of a NIC that carries no job, or to the only one in this direction. Raises
        HTTPConflict."""
        if not self._config.transfers:
            self.refuse("off")
            raise web.HTTPForbidden(text="this host takes no part in transfers (transfers: false)\n")
        # One end has its result a moment before the other has let go of the NIC.
        patience = time.monotonic() + RELEASE_S
        wanted = [(device, way) for way in ([direction] if duplex else ["sent", "received"])]
        while self._transfers.keys() & wanted and time.monotonic() < patience:  # noqa: ASYNC110 - rare and short
            await asyncio.sleep(0.02)
        if self._transfers.keys() & wanted:
            self.refuse("busy")
            raise web.HTTPConflict(text=f"{device} has a transfer already\n")
        # What it receives may be under way when it is asked to send: it was looked for a job's traffic before.
        beside = duplex and direction == "sent" and device in self._duplex
        stop = threading.Event()
        self._transfers.update(dict.fromkeys(wanted, stop))
        try:
            why = await asyncio.to_thread(in_use, self.reader(), device, plugin_dir(), own_traffic=beside)
        except BaseException:
            self.release(device, stop)
            raise
        if why:
            self.release(device, stop)
            self.refuse("job")
            raise web.HTTPConflict(text=f"in use: {why}\n")
        return stop

    def release(self, device: str, stop: threading.Event) -> None:
        """Gives back what was claimed with this event."""
        for way in [way for way, owner in self._transfers.items() if owner is stop]:
            del self._transfers[way]
        if (device, "received") not in self._transfers:
            self._duplex.pop(device, None)

    def _job_watch(self, device: str) -> JobWatch:
        """Of a NIC that a transfer of ours begins to use."""

        def own() -> int:
            return sum(self._moved[device, way].bytes for way in ("sent", "received"))

        return JobWatch(self.reader(), device, plugin_dir(), own)

    async def watched(
        self,
        work: Any,
        stop: threading.Event,
        request: web.Request | None = None,
        watch: JobWatch | PluginJobWatch | QueuePairWatch | None = None,
    ) -> tuple[Any, str]:
        """What `work` gives, and why it was stopped: a job has begun, or the client has gone."""
        task = asyncio.ensure_future(work)
        why = ""
        while not (await asyncio.wait({task}, timeout=WATCH_S))[0]:
            if watch is not None and not why:
                why = await asyncio.to_thread(watch.found)
                if why:
                    log.info("a transfer is stopped: the NIC begins to carry a job", reason=why)
            gone = request is not None and (request.transport is None or request.transport.is_closing())
            if why or gone:
                stop.set()
        return await task, why

    async def decoded(self, request: web.Request, kind: type[T]) -> T:
        """The request, if it carries the token. Raises HTTPUnauthorized, HTTPBadRequest."""
        if not self._token.accepts(request.headers.get("Authorization", "")):
            self.refuse("token")
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": "Bearer"}, text="show the token\n")
        try:
            return msgspec.json.decode(await request.read(), type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            self.refuse("invalid")
            raise web.HTTPBadRequest(text=f"{error}\n") from error

    def refuse(self, reason: str) -> None:
        """Counts a request that is refused."""
        self._refused[reason] += 1

    async def _metrics(self, text_format: TextFormat) -> bytes:
        exposition = Exposition()
        exposition.declare(METRICS)
        expose(self._report, exposition, self._fleet)
        exposition.add(RUNS, (), self._runs)
        for reason in ("token", "busy", "invalid", "job", "off"):
            exposition.add(REFUSED, (reason,), self._refused[reason])
        for direction in ("sent", "received"):
            exposition.add(TRANSFERS, (direction,), self.made[direction])
        return exposition.render(text_format)


def fleet_clock() -> Callable[[], FleetTime | None]:
    """Fleet time of this host as it is asked for; None where no sidecar writes a page."""
    try:
        reader = ClockPageReader(clock_page_path())
    except (OSError, ValueError):
        return lambda: None

    def now() -> FleetTime | None:
        try:
            return reader.now()
        except (OSError, ValueError):
            return None

    return now
