"""`fabricpulse clocksync coordinator`: rounds around `fleet.Fleet`.

A report waits for the solve that uses it and takes its result home in the reply. A solve starts when all members that
were in the last one have reported, or half of `round_s` after the last that did (a tenth if few are missing), or
`round_s` after the first that waits. Reports come by HTTP, or as datagrams on a channel that a reply by HTTP has
opened.
"""

import asyncio
import os
import time
from pathlib import Path

import msgspec
from aiohttp import web

from fabricpulse.clocksync import metrics
from fabricpulse.clocksync.coordinator.config import CoordinatorConfig
from fabricpulse.clocksync.coordinator.duplicate_hosts import NameHeldError, NameTakenError
from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.coordinator.fleet_api import FleetApi
from fabricpulse.clocksync.coordinator.fleet_log import FleetLog
from fabricpulse.clocksync.coordinator.members import Member
from fabricpulse.clocksync.coordinator.report_channels import ReportChannels
from fabricpulse.clocksync.solve.graph_solve import SolveParameters
from fabricpulse.clocksync.wire.messages import PROTOCOL, ROUND_PATH, RoundReply, report_decoder
from fabricpulse.core.config import load_config, warn_of_restart
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.fleet.membership import Membership, load_membership
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.supervision import supervised
from fabricpulse.core.waiting import wait_with_timeout
from fabricpulse.core.web.body_limit import body_limit
from fabricpulse.core.web.server import WebServer
from fabricpulse.core.web.token_file import TokenFile
from fabricpulse.diagnosis.daemon.service import PAGE_PATH, TOPOLOGY_PATH, DiagnosisService
from fabricpulse.diagnosis.daemon.worker_messages import Declared
from fabricpulse.diagnosis.flows.topology import Topology, load_topology

log = get_logger(__name__)

_reply_encoder = msgspec.msgpack.Encoder()
# How long reports are gathered at least.
_GATHER_S = 0.02
# Of a round: how long a solve waits for the next report of many that are missing, and of few. In a large fleet some
# host is always late or lost, and must not cost the others half of their round each time.
_PATIENCE, _PATIENCE_WITH_FEW, _FEW = 0.5, 0.1, 0.02

# The settings that a reload applies.
_RELOADED = (
    "membership",
    "token_file",
    "lease_s",
    "round_s",
    "anchor_wait_s",
    "drift_ppb",
    "holdover_drift_ppb",
)


class Coordinator:
    """The daemon."""

    def __init__(self, options: DaemonOptions, life: Lifetime) -> None:
        self._path = options.config
        self._config = self._started = load_config(options.config, CoordinatorConfig)
        self._life = life
        self.fleet = Fleet(
            lease_s=self._config.lease_s,
            anchor_wait_s=self._config.anchor_wait_s,
            holdover_drift_ppb=self._config.holdover_drift_ppb,
            parameters=SolveParameters(drift_ppb=self._config.drift_ppb),
        )
        self._log = FleetLog(self.fleet)
        self._token = TokenFile(self._config.token_file)
        self._token_shown = self._token.token
        topology = _topology_of(self._config)
        self._declared_hosts = {nic.partition("/")[0] for nic in topology.leaf_of()}
        self._api = FleetApi(self.fleet, _membership_of(self._config), topology.leaf_of())
        self.diagnosis = DiagnosisService(
            Declared(
                topology.leaf_of(),
                topology.switch_of(),
                self._config.delays_keep_s,
                self._config.hosts_share_machines,
            ),
            self._accepts,
            self._config.alerting,
            self._api.network_of,
            self._config.switch_names,
            self._is_member,
            fault_times=self._config.fault_times,
        )
        self._arrived = asyncio.Event()
        # One event a solve: a thousand waiters wake at once, without a lock that they queue for.
        self._solved = asyncio.Event()
        self._solve_s = 0.0
        self._failures = 0
        self._edges = 0
        self._channels: ReportChannels | None = None
        self.server = WebServer(
            "fabricpulse clocksync coordinator",
            life,
            self._metrics,
            options.web,
            landing_links=[
                ("/api/v1/membership", "Membership"),
                ("/api/v1/clocksync/status", "Status"),
                (PAGE_PATH, "Suspects"),
                (TOPOLOGY_PATH, "Topology"),
            ],
            own_authentication=lambda request: (
                bool(self._token.token)
                and request.match_info.handler in (self._serve_round, self.diagnosis.serve_evidence)
            ),
        )
        router = self.server.router
        router.add_post(ROUND_PATH, self._serve_round)
        self._api.add_routes(router)
        self.diagnosis.add_routes(router)
        life.on_reload(self._reload)

    def _accepts(self, authorization: str) -> bool:
        """Whether who sends this header may report; with the token as it is now."""
        return self._token.accepts(authorization)

    def _is_member(self, host: str) -> bool:
        """Whether a host belongs to the fleet: everybody who may report where a token says who may."""
        return (
            host in self.fleet.roster.members
            or host in self._declared_hosts
            or self._api.lists(host)
            or bool(self._token.token)
        )

    async def _reload(self) -> None:
        config = load_config(self._path, CoordinatorConfig)
        # All that can fail comes first: a reload that fails changes nothing.
        token, static = TokenFile(config.token_file), _membership_of(config)
        if self._path is not None:
            warn_of_restart(self._path, self._started, config, _RELOADED)
        self._config, self._token, self._api.static = config, token, static
        self.fleet.lease_s, self.fleet.anchor_wait_s = config.lease_s, config.anchor_wait_s
        self.fleet.holdover_drift_ppb = config.holdover_drift_ppb
        self.fleet.parameters = SolveParameters(drift_ppb=config.drift_ppb)

    async def run(self) -> None:
        """Serves until stopped. Raises UserError when the address cannot be bound or a file of the alerting cannot
        be used, TaskFailedError when a task has ended.
        """
        await self.server.start()
        if self._config.datagrams:
            self._open_channels()
        try:
            async with supervised(self._life) as tasks:
                tasks.start("solver", self._solve_forever())
                await self.diagnosis.start(tasks)
                try:
                    self._life.ready()
                    await self._life.stopped()
                finally:
                    await self.diagnosis.flush()
        finally:
            await self.diagnosis.close()
            self._solved.set()
            await self.server.stop()
            if self._channels is not None:
                asyncio.get_running_loop().remove_reader(self._channels.intake.event_fd)
                self._channels.stop()

    def _open_channels(self) -> None:
        try:
            self._channels = ReportChannels(self.fleet, self.server.addresses)
        except OSError as error:
            # The fleet can do without; a large one costs much more then.
            log.warning(
                "no reports as datagrams, HTTP only; free the UDP port, or choose another --web.listen-address",
                reason=str(error),
            )
            return
        asyncio.get_running_loop().add_reader(self._channels.intake.event_fd, self._receive_reports)

    def _receive_reports(self) -> None:
        if self._channels is not None:
            os.eventfd_read(self._channels.intake.event_fd)
        self._arrived.set()

    async def _solve_forever(self) -> None:
        while True:
            await self._gather()
            began = time.monotonic()
            try:
                arrived = self._channels.take() if self._channels is not None else None
                solution = self.fleet.solve_round(began, arrived)
                self._edges = 0 if solution is None else len(solution.residual_ns)
                self._log.round_solved(began)
            except Exception:
                # One malformed report must not stop the fleet's clock.
                self._failures += 1
                log.exception("solve failed")
            self._solve_s = time.monotonic() - began
            solved, self._solved = self._solved, asyncio.Event()
            solved.set()
            if self._channels is not None:
                try:
                    self._channels.answer()
                except (OSError, ValueError):
                    log.exception("replies to datagrams failed")
                self._watch_token()

    def _watch_token(self) -> None:
        """A changed token closes every channel; each sidecar must authenticate again over HTTP."""
        if self._channels is not None and (token := self._token.token) != self._token_shown:
            self._token_shown = token
            self._channels.close_all()
            log.info("the token has changed: all hosts have to show the new one")

    async def _gather(self) -> None:
        """Returns when it is time to solve."""
        while not self._outstanding()[0]:
            self._arrived.clear()
            await self._arrived.wait()
        first = time.monotonic()
        deadline = first + self._config.round_s
        # Newcomers come one by one, and no other host is expected yet: solves for each of them may take half of our
        # time.
        await asyncio.sleep(max(_GATHER_S, self._solve_s))
        while True:
            waiting, missing = self._outstanding()
            left = deadline - time.monotonic()
            if not missing or left <= 0:
                return
            # One that has died would hold up all; half the round is enough for those that live.
            share = _PATIENCE if missing > _FEW * waiting else _PATIENCE_WITH_FEW
            self._arrived.clear()
            if not await wait_with_timeout(self._arrived, min(left, share * self._config.round_s)):
                return

    def _outstanding(self) -> tuple[int, int]:
        """Hosts whose reports wait for a solve, and hosts whose reports it waits for."""
        waiting, missing = self._channels.intake.waiting() if self._channels is not None else (0, 0)
        return self.fleet.waiting + waiting, self.fleet.missing + missing

    @body_limit(1 << 20)
    async def _serve_round(self, request: web.Request) -> web.Response:
        if not self._token.accepts(request.headers.get("Authorization", "")):
            text = "this coordinator asks for a bearer token: http_client.token_file of the sidecar\n"
            return web.Response(status=401, text=text, headers={"WWW-Authenticate": "Bearer"})
        try:
            report = report_decoder.decode(await request.read())
        except msgspec.MsgspecError as error:
            return web.Response(status=400, text=f"not a report of a round: {error}\n")
        if report.protocol != PROTOCOL:
            return web.Response(
                status=400, text=f"protocol {report.protocol}, this coordinator speaks {PROTOCOL}\n"
            )
        try:
            by_datagram = report.datagrams and self._channels is not None
            member = self.fleet.report(report, time.monotonic(), again=not by_datagram)
        except ValueError as error:
            return web.Response(status=400, text=f"not a report of a round: {error}\n")
        except NameTakenError as error:
            return web.Response(status=409, text=f"{error}\n")
        except NameHeldError:
            # As one that no edge ties to the fleet: it was started a moment ago, and soon is a member.
            return _packed(self._unplaced())
        if self._channels is not None:
            # Who reports by HTTP does not use its channel, if it has one.
            self._channels.close(member)
        solved = self._solved
        self._arrived.set()
        await solved.wait()
        if self.fleet.roster.members.get(member.name) is not member:
            # Of two hosts with one name: the columns of its slot are of the other, or of none.
            return _packed(self._unplaced())
        return _packed(self._reply(member, by_datagram))

    def _unplaced(self) -> RoundReply:
        """To a host that is no member."""
        fleet = self.fleet
        rest = fleet.roster.generation, fleet.quorum, fleet.no_quorum
        return RoundReply(fleet.solves, None, fleet.root, True, b"", "", None, *rest)

    def _reply(self, member: Member, by_datagram: bool) -> RoundReply:
        neighbours = None
        info = member.info
        # New hosts learn quickly where the others are; an unchanged list is not sent again.
        if info is not None and member.neighbours_sent != self.fleet.roster.generation:
            member.neighbours_sent = self.fleet.roster.generation
            neighbours = {
                name: other.info.url
                for name in {edge.peer for edge in self.fleet.roster.edges(member)}
                if (other := self.fleet.roster.members.get(name)) is not None
                and other.info is not None
                and other.info.url
            }
        return RoundReply(
            self.fleet.solves,
            member.line,
            self.fleet.root,
            self.fleet.needs_info(member),
            member.residuals,
            member.suspect,
            neighbours,
            self.fleet.roster.generation,
            self.fleet.quorum,
            self.fleet.no_quorum,
            self._channels.open(member) if by_datagram and self._channels is not None else None,
            member.estimated_error_ns,
            member.drift_ppb,
        )

    async def _metrics(self, text_format: TextFormat) -> bytes:
        fleet = self.fleet
        out = Exposition()
        out.add(metrics.MEMBERS, (), len(fleet.roster.members))
        out.add(metrics.QUORUM, (), int(not fleet.no_quorum))
        out.add(metrics.UNREACHED, (), fleet.unreached)
        out.add(metrics.SOLVES, (), fleet.solves)
        out.add(metrics.SOLVE_SECONDS, (), self._solve_s)
        out.add(metrics.SOLVE_FAILURES, (), self._failures)
        out.add(metrics.SOLVE_EDGES, (), self._edges)
        out.add(metrics.RESIDUAL, (), fleet.residual_p50_ns * 1e-9)
        for share, held_out_ns in fleet.held_out_ns.items():
            out.add(metrics.HELD_OUT, (f"{share:g}",), held_out_ns * 1e-9)
        out.add(metrics.OUTLIERS, (), fleet.outliers)
        if self._channels is not None:
            for outcome, count in self._channels.intake.counts().items():
                out.add(metrics.DATAGRAMS, (outcome,), count)
        for peer, device, bias_ns in fleet.worst_nics():
            out.add(metrics.NIC_BIAS, (peer, device), bias_ns * 1e-9)
        for name in fleet.suspects():
            out.add(metrics.SUSPECTS, (name,), 1)
        self.diagnosis.write(out)
        return out.render(text_format)


def _packed(reply: RoundReply) -> web.Response:
    return web.Response(body=_reply_encoder.encode(reply), content_type="application/msgpack")


def _topology_of(config: CoordinatorConfig) -> Topology:
    return load_topology(Path(config.topology)) if config.topology else Topology()


def _membership_of(config: CoordinatorConfig) -> Membership:
    return load_membership(Path(config.membership)) if config.membership else Membership(hosts=())
