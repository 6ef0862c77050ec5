"""The node agent: fetches the desired state from the receiver and keeps the processes of its host in it.

Three tasks: one fetches, one reports, the third reconciles every process that has the plugin with the journal, also one
that has just started, also while the receiver is unreachable.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.run_dir import plugin_dir
from fabricpulse.core.supervision import SupervisedTasks, supervised
from fabricpulse.core.waiting import wait_with_timeout
from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.server import WebServer
from fabricpulse.remediation import failpoints, metrics
from fabricpulse.remediation.node.carried import CarriedBytes
from fabricpulse.remediation.node.config import NodeConfig, users_of
from fabricpulse.remediation.node.epoch_fence import EpochFence
from fabricpulse.remediation.node.held import newer_of, reported
from fabricpulse.remediation.node.journal import JournalError, NodeJournal
from fabricpulse.remediation.node.kernel_nics import kernel_has
from fabricpulse.remediation.node.lanes import LaneSampler
from fabricpulse.remediation.node.limits import LocalLimits
from fabricpulse.remediation.node.mesh import MeshNics, SquattedError, scrape_mesh
from fabricpulse.remediation.node.observation import LinkObserver, ProbeObserver
from fabricpulse.remediation.node.plugins import CALL_RESULTS, Plugins
from fabricpulse.remediation.node.receiver_client import ReceiverClient, ReceiverError
from fabricpulse.remediation.node.report_size import fitting
from fabricpulse.remediation.node.survey import Survey, traffic_outcome
from fabricpulse.remediation.protocol import (
    MAX_NICS,
    DesiredNic,
    DesiredState,
    Health,
    LaneOrder,
    LaneSample,
    Report,
    Result,
    Traffic,
    end_of,
)

log = get_logger(__name__)

_RETRY_S = 1.0
_TRAFFIC_POLL_S = 0.25


class NodeAgent:
    """One agent; `run` works until the daemon stops."""

    def __init__(self, config: NodeConfig, life: Lifetime) -> None:
        """Raises UserError when the journal cannot be used."""
        self._config = config
        self._life = life
        signed = bool(config.receiver_keys)
        self._journal = NodeJournal(Path(config.journal), signed=signed)
        self._plugins = Plugins(
            plugin_dir(),
            config.call_timeout_s,
            config.verify_timeout_s,
            users_of("job_users", config.job_users),
        )
        self._desired = self._journal.desired()
        self._waiting = self._journal.waiting()
        # Carried out before this start: a receiver that has them as done undoes them no more when they are refused.
        self._done_before = {nic.op_id for nic in self._desired.values()} - self._waiting.keys()
        # Those of them that this host refuses to keep up now: they are tried again.
        self._held_up: set[str] = set()
        self._journal_problem = ""
        self._ignored = ""
        # Operations that are carried out, which the journal does not say yet.
        self._done: list[str] = []
        self._fence = EpochFence(self._journal.epoch(), time.time, time.monotonic, signed=signed)
        self._epoch = self._fence.epoch
        self._version = ""
        self._survey = Survey()
        self._surveyed_at = 0.0
        self._carried = CarriedBytes()
        self._seen: dict[str, tuple[int, int]] = {}
        # The latest result of each operation; reported until the receiver has confirmed it.
        self._results: dict[str, Result] = {}
        self._unreported: dict[str, Result] = {}
        self._dry_runs: dict[str, DesiredNic] = {}
        self._lanes = LaneSampler(plugin_dir(), users_of("job_users", config.job_users))
        self._report_lanes = False
        # Operations on lanes that were ordered, and the time by which they must have been begun (seconds since 1970).
        self._orders: dict[str, LaneOrder] = {}
        self._orders_end = 0.0
        self._mesh = MeshNics()
        users = users_of("mesh_users", config.mesh_users)
        self._mesh_users = users | {0} if users else users
        self._mesh_problem = ""
        self._links = LinkObserver()
        self._limits = LocalLimits(config)
        self._probes = ProbeObserver()
        # Observed since the last report that the receiver took.
        self._unhealthy: set[str] = set()
        self._warned: set[str] = set()
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._receiver: ReceiverClient
        self._tasks: SupervisedTasks
        self._in_plugins = asyncio.Lock()
        self._report_now = asyncio.Event()
        self._reconcile_now = asyncio.Event()

    async def run(self, options: DaemonOptions) -> None:
        """Works until the daemon stops. What it has applied stays applied."""
        try:
            await self._work(options)
        finally:
            self._journal.close()
            self._lanes.close()

    async def _work(self, options: DaemonOptions) -> None:
        async with AsyncExitStack() as resources:
            self._receiver = ReceiverClient(self._config)
            resources.push_async_callback(self._receiver.close)
            mesh = HttpClient(self._config.mesh_client)
            resources.push_async_callback(mesh.close)
            server = WebServer(
                "fabricpulse remediation node",
                self._life,
                self._metrics,
                options.web,
                not_ready=lambda: self._journal_problem or self._receiver.problem or self._mesh_problem,
            )
            await server.start()
            resources.push_async_callback(server.stop)
            async with supervised(self._life) as tasks:
                self._tasks = tasks
                tasks.start("fetch", self._fetch_forever())
                tasks.start("report", self._report_forever())
                tasks.start("reconcile", self._reconcile_forever())
                tasks.start("lanes", self._sample_lanes())
                if self._config.mesh_url:
                    tasks.start("mesh", self._scrape_mesh_forever(mesh))
                self._life.ready()
                await self._life.stopped()

    # --- fetching and reporting ----------------------------------------------------------------------------------

    async def _fetch_forever(self) -> None:
        while True:
            try:
                desired = await self._receiver.fetch_desired(self._version)
            except ReceiverError:
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                accepted = self._accept(desired)
            except JournalError as error:
                self._journal_failed(error)
                accepted = False
            if accepted:
                self._reconcile_now.set()
            else:
                await asyncio.sleep(_RETRY_S)

    def _journal_failed(self, error: JournalError) -> None:
        """Nothing new is taken over before it is in the journal; what was goes on."""
        if not self._journal_problem:
            log.error("journal cannot be written, jobs are kept as they are", error=str(error))
        self._journal_problem = str(error)

    def _journal_works(self) -> None:
        if self._journal_problem:
            log.info("journal takes writes again")
        self._journal_problem = ""

    def _note_done(self) -> None:
        """In the journal, now or as soon as that can be written."""
        try:
            for op_id in list(self._done):
                self._journal.carried_out(op_id)
                self._done.remove(op_id)
                self._journal_works()
        except JournalError as error:
            self._journal_failed(error)

    def _accept(self, desired: DesiredState) -> bool:
        """Takes over the desired state, journal first. False for a receiver with an older epoch."""
        if not self._fence.admits(desired.epoch):
            return False
        another = self._fence.epoch != self._epoch
        new, ignored = newer_of(desired.nics, self._desired, self._has_not, time.time())
        if ignored and ignored != self._ignored:
            log.error("a part of what the receiver says is ignored", reason=ignored)
        self._ignored = ignored
        failpoints.reach("agent.before_journal")
        if new or another or self._journal_problem:
            self._journal.accept(self._fence.epoch, new, desired.not_after)
            self._journal_works()
        failpoints.reach("agent.after_journal")
        if another:
            # A receiver that has restarted may have missed the last results.
            self._unreported |= self._results
            self._report_now.set()
        self._epoch, self._version = self._fence.epoch, desired.version
        for nic in new:
            log.info("desired state received", **msgspec.structs.asdict(nic))
            self._desired[nic.device] = nic
            self._waiting[nic.op_id] = end_of(nic, desired.not_after)
        self._dry_runs = {nic.op_id: nic for nic in desired.nics if nic.dry_run}
        self._report_lanes = desired.report_lanes
        self._orders = {order.op_id: order for order in desired.lanes}
        self._orders_end = desired.not_after
        current = {nic.op_id for nic in self._desired.values()} | self._dry_runs.keys() | self._orders.keys()
        self._waiting = {op_id: end for op_id, end in self._waiting.items() if op_id in current}
        self._results = {op_id: result for op_id, result in self._results.items() if op_id in current}
        return True

    def _has_not(self, device: str) -> bool:
        known = self._survey.devices().keys() | self._mesh.connected.keys()
        return device not in known and self._is_absent(device)

    async def _report_forever(self) -> None:
        while True:
            self._report_now.clear()
            results = dict(self._unreported)
            lanes: list[LaneSample] = []
            if self._report_lanes:
                lanes = await asyncio.to_thread(self._lanes.sample)
            report = Report(
                processes=len(self._survey.processes),
                devices=self._survey.devices(),
                connected=self._mesh.connected,
                health=self._health_to_report(),
                held=reported(self._desired, self._has_not),
                results=list(results.values())[:MAX_NICS],
                lanes=lanes,
                workloads=self._survey.workloads(),
                users=self._survey.users(),
                carried_bytes=self._carried.total,
                carried_at_s=self._carried.at_s,
            )
            wait_s = self._config.report_interval_s
            if report.results:
                failpoints.reach("agent.before_report")
            try:
                await self._receiver.report(fitting(report))
            except ReceiverError:
                wait_s = _RETRY_S
            else:
                self._unhealthy.clear()
                if report.results:
                    failpoints.reach("agent.after_report")
                for op_id, result in list(results.items())[:MAX_NICS]:
                    if self._unreported.get(op_id) == result:
                        del self._unreported[op_id]
            await wait_with_timeout(self._report_now, wait_s)

    async def _sample_lanes(self) -> None:
        """While the receiver asks for reports of lanes."""
        while True:
            wait_s = self._config.report_interval_s
            if self._report_lanes:
                wait_s = await asyncio.to_thread(self._lanes.poll)
            await asyncio.sleep(wait_s)

    def _observe(self) -> dict[str, Health]:
        """Health of this host's NICs now. With a mesh to ask, what it does not measure is not known."""
        if self._config.mesh_url:
            return self._probes.observe(self._mesh.connected, self._mesh.disconnects)
        return self._links.observe(self._survey, self._desired)

    def _health_to_report(self) -> dict[str, Health]:
        """Health now, and of a NIC that was unhealthy in a report that did not arrive: a flap must not be lost."""
        health = self._observe()
        self._unhealthy.update(device for device, state in health.items() if state == "unhealthy")
        while len(self._unhealthy) > MAX_NICS:
            self._unhealthy.pop()
        found: dict[str, Health] = dict.fromkeys(sorted(self._unhealthy), "unhealthy")
        found |= {device: state for device, state in health.items() if device not in found}
        return dict(list(found.items())[:MAX_NICS])

    async def _scrape_mesh_forever(self, client: HttpClient) -> None:
        while True:
            try:
                self._mesh = await scrape_mesh(client, self._config.mesh_url, self._mesh_users)
                self._mesh_problem = ""
            except SquattedError as error:
                self._mesh = MeshNics()
                if self._mesh_problem != str(error):
                    log.warning("what answers for the mesh exporter is ignored", reason=str(error))
                self._mesh_problem = str(error)
            await asyncio.sleep(self._config.report_interval_s)

    # --- the jobs ------------------------------------------------------------------------------------------------

    async def _reconcile_forever(self) -> None:
        while True:
            self._reconcile_now.clear()
            self._note_done()
            await self._reconcile()
            await wait_with_timeout(self._reconcile_now, self._config.scan_interval_s)

    async def _reconcile(self) -> None:
        settled = self._results.keys() - self._held_up
        waiting = [nic for nic in self._desired.values() if nic.op_id not in settled]
        dry_runs = [nic for nic in self._dry_runs.values() if nic.op_id not in self._results]
        orders = [order for order in self._orders.values() if order.op_id not in self._results]
        present = await asyncio.to_thread(self._plugins.present)
        idle = time.monotonic() - self._surveyed_at < self._config.report_interval_s
        for order in orders:
            async with self._in_plugins:
                self._record(await self._change_lane(order))
        if present == self._seen and idle and not waiting and not dry_runs:
            return
        async with self._in_plugins:
            self._survey = await asyncio.to_thread(self._plugins.survey)
            self._seen, self._surveyed_at = present, time.monotonic()
            self._carried.count(self._survey, self._surveyed_at)
            for nic in dry_runs:
                self._record(self._check(nic))
            for nic in waiting:
                self._record(await self._carry_out(nic))
            if waiting:
                self._survey = await asyncio.to_thread(self._plugins.survey)
            # Only what has been carried out once: what was accepted meanwhile has its guard and watch to come.
            divergent = [
                nic
                for nic in self._desired.values()
                if nic.op_id in self._results.keys() - self._held_up and self._survey.divergent_processes(nic)
            ]
            for nic in divergent:
                self._record(await self._correct(nic))
            if divergent:
                self._survey = await asyncio.to_thread(self._plugins.survey)
            for nic in self._desired.values():
                if self._has_returned_late(nic):
                    message = "shown late, or by a process that had not answered"
                    count = len(self._survey.following_processes(nic))
                    self._record(Result(nic.op_id, "applied", count, message))

    def _has_returned_late(self, nic: DesiredNic) -> bool:
        """Whether a return that came to nothing is done by now: until this is reported the NIC counts as out."""
        known = self._results.get(nic.op_id)
        if nic.desired != "in_service" or known is None or known.outcome == "applied":
            return False
        if self._survey.divergent_processes(nic):
            return False
        return bool(self._survey.following_processes(nic)) or not self._seen

    def _refusal(self, nic: DesiredNic) -> str:
        """Why this host does not take the NIC out, or "". The receiver has checked as well, with older data."""
        if nic.desired != "avoid":
            return ""
        if paused := self._paused_here():
            return paused
        if time.time() > self._waiting.get(nic.op_id, float("inf")):
            return "it has expired before it was carried out"
        # Without jobs it is the mesh that says how many NICs there are.
        nics = self._survey.devices().keys() | self._mesh.connected.keys()
        if nic.device not in nics and self._is_absent(nic.device):
            return f"this host has no NIC {nic.device}: neither the kernel, nor a job, nor the mesh knows it"
        if reason := self._limits.refusal(nic, self._desired, nics, time.monotonic()):
            return reason
        return self._survey.refusal(nic.device, self._config.min_fraction_in_service)

    def _is_absent(self, device: str) -> bool:
        """Of a NIC that neither a job nor the mesh knows. Not while the mesh does not answer: where the agent has a
        network namespace of its own only the mesh tells."""
        if device in self._config.devices or (self._config.mesh_url and not self._mesh.connected):
            return False
        return not kernel_has(device)

    def _check(self, nic: DesiredNic) -> Result:
        """The dry run: what carrying out would come to, with nothing changed."""
        count = len(self._survey.processes)
        if refusal := self._refusal(nic):
            return Result(nic.op_id, "refused", count, refusal)
        return Result(nic.op_id, "applied", count, "dry run: nothing was changed")

    async def _carry_out(self, nic: DesiredNic) -> Result:
        # Also without jobs: it holds for those that come. What was done before is kept up.
        new = nic.op_id in self._waiting and not self._survey.following_processes(nic)
        divergent = self._survey.divergent_processes(nic)
        if (refusal := self._refusal(nic)) and (new or divergent):
            # Reported also when it was done before: a receiver that never got that result waits for one.
            self._held_up |= {nic.op_id} & self._done_before
            return Result(nic.op_id, "refused", 0, refusal)
        self._held_up.discard(nic.op_id)
        if nic.desired == "avoid":
            self._limits.took(time.monotonic())
        result = await asyncio.to_thread(self._plugins.apply, nic)
        failpoints.reach("agent.before_done")
        if self._waiting.pop(nic.op_id, None) is not None:
            self._done.append(nic.op_id)
            self._note_done()
        failpoints.reach("agent.after_done")
        if result.outcome == "applied" and nic.desired == "avoid" and result.processes:
            if (watching := self._watching.pop(nic.device, None)) is not None:
                watching.cancel()
            self._watching[nic.device] = self._tasks.start(
                f"traffic of {nic.device}", self._watch_traffic(nic, result), may_end=True
            )
        return result

    async def _change_lane(self, order: LaneOrder) -> Result:
        if refusal := self._lane_refusal(order):
            return Result(order.op_id, "refused", 0, refusal)
        return await asyncio.to_thread(self._plugins.change_lane, order)

    def _paused_here(self) -> str:
        """Why nothing is done on this host, or "". A file of which it is not known whether it is there counts."""
        if not self._config.pause_file:
            return ""
        try:
            Path(self._config.pause_file).stat()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as error:
            return (
                f"paused on this host: cannot tell whether {self._config.pause_file} exists: {error.strerror}"
            )
        return f"paused on this host by {self._config.pause_file}"

    def _lane_refusal(self, order: LaneOrder) -> str:
        if paused := self._paused_here():
            return paused
        if time.time() > self._orders_end:
            return "it has expired before it was carried out"
        return self._limits.lane_refusal(order, time.monotonic())

    async def _correct(self, nic: DesiredNic) -> Result:
        """A process that started after the decision, did not answer then, or was changed by another program."""
        known = self._results.get(nic.op_id)
        taken_back = nic.desired == "avoid" and nic.op_id not in self._done_before
        if taken_back and known is not None and known.outcome == "refused":
            return known  # the receiver undoes it
        result = await asyncio.to_thread(self._plugins.apply, nic, self._survey.divergent_processes(nic))
        if result.outcome == "applied":
            log.info("process corrected", device=nic.device, desired=nic.desired, op_id=nic.op_id)
            return known if known is not None and known.outcome == "applied" else result
        self._warn(result)
        # A straggler does not undo what the others have done; it is asked again and again.
        return known if known is not None else result

    def _warn(self, result: Result) -> None:
        if result.op_id not in self._warned:
            self._warned = {result.op_id}
            log.warning("a process does not follow", **msgspec.structs.asdict(result))

    async def _watch_traffic(self, nic: DesiredNic, result: Result) -> None:
        """After a NIC went: do the jobs still move? Tells the receiver, which undoes what made things worse."""
        deadline = time.monotonic() + self._config.traffic_timeout_s
        found: Traffic = "idle"
        async with self._in_plugins:
            before = await asyncio.to_thread(self._plugins.survey)
        while time.monotonic() < deadline:
            await asyncio.sleep(_TRAFFIC_POLL_S)
            async with self._in_plugins:
                after = await asyncio.to_thread(self._plugins.survey)
            if self._desired.get(nic.device) != nic:
                return
            found = traffic_outcome(before, after, nic.device)
            if found == "moved":
                break
        message = {
            "moved": "jobs go on over the other NICs",
            "idle": "jobs had nothing to send",
            "stalled": f"no byte moved within {self._config.traffic_timeout_s:g} s",
            "partly_stalled": f"no byte of one user's moved within {self._config.traffic_timeout_s:g} s",
        }[found]
        self._record(msgspec.structs.replace(result, traffic=found, message=message))

    def _record(self, result: Result) -> None:
        if self._results.get(result.op_id) == result:
            return
        self._results[result.op_id] = result
        self._unreported[result.op_id] = result
        self._report_now.set()
        log.info("action ended", **msgspec.structs.asdict(result))

    async def _metrics(self, text_format: TextFormat) -> bytes:
        out = Exposition()
        out.add(metrics.AGENT_CONNECTED, (), int(not self._receiver.problem))
        out.add(metrics.AGENT_PROCESSES, (), len(self._survey.processes))
        out.add(
            metrics.AGENT_DIVERGENT,
            (),
            sum(len(self._survey.divergent_processes(n)) for n in self._desired.values()),
        )
        for device, nic in sorted(self._desired.items()):
            out.add(metrics.AGENT_AVOIDED, (device,), int(nic.desired == "avoid"))
        for result in CALL_RESULTS:
            out.add(metrics.AGENT_CALLS, (result,), self._plugins.calls[result])
        return out.render(text_format)
