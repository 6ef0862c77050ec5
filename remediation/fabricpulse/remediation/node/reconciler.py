"""Keeps the processes of this host in the desired state: those that run, those that start meanwhile, also while the
receiver is unreachable."""

import asyncio
import time

import msgspec

from fabricpulse.core.log import get_logger
from fabricpulse.core.supervision import SupervisedTasks
from fabricpulse.core.waiting import wait_with_timeout
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.intake import Intake
from fabricpulse.remediation.node.local_host import LocalHost
from fabricpulse.remediation.node.refusals import Refusals
from fabricpulse.remediation.node.results import Results
from fabricpulse.remediation.node.survey import traffic_outcome
from fabricpulse.remediation.protocol import DesiredNic, LaneOrder, Result, Traffic

log = get_logger(__name__)

_TRAFFIC_POLL_S = 0.25


class HostReconciler:
    """Carries out what the intake has, and corrects what does not follow. `tasks` is set before the first work."""

    tasks: SupervisedTasks

    def __init__(self, config: NodeConfig, intake: Intake, host: LocalHost, results: Results) -> None:
        self._config = config
        self._intake = intake
        self._host = host
        self._results = results
        self._refusals = Refusals(config, intake, host)
        # Carried out before this start, and refused by this host now: they are tried again.
        self._held_up: set[str] = set()
        self._warned: set[str] = set()
        self._watching: dict[str, asyncio.Task[None]] = {}

    async def reconcile_forever(self) -> None:
        """Works until it is cancelled."""
        while True:
            self._intake.is_new.clear()
            self._intake.note_done()
            await self.reconcile()
            await wait_with_timeout(self._intake.is_new, self._config.scan_interval_s)

    async def reconcile(self) -> None:
        """One round over all processes."""
        intake, host, known = self._intake, self._host, self._results.latest
        settled = known.keys() - self._held_up
        waiting = [nic for nic in intake.desired.values() if nic.op_id not in settled]
        dry_runs = [nic for nic in intake.dry_runs.values() if nic.op_id not in known]
        orders = [order for order in intake.orders.values() if order.op_id not in known]
        present = await asyncio.to_thread(host.plugins.present)
        idle = time.monotonic() - host.surveyed_at < self._config.report_interval_s
        for order in orders:
            async with host.in_plugins:
                self._results.record(await self._change_lane(order))
        if present == host.seen and idle and not waiting and not dry_runs:
            return
        async with host.in_plugins:
            await host.take_survey()
            host.count(present)
            for nic in dry_runs:
                self._results.record(self._check(nic))
            for nic in waiting:
                self._results.record(await self._carry_out(nic))
            if waiting:
                await host.take_survey()
            # Only what has been carried out once: what was accepted meanwhile has its guard and watch to come.
            divergent = [
                nic
                for nic in intake.desired.values()
                if nic.op_id in self._results.latest.keys() - self._held_up
                and host.survey.divergent_processes(nic)
            ]
            for nic in divergent:
                self._results.record(await self._correct(nic))
            if divergent:
                await host.take_survey()
            for nic in intake.desired.values():
                if self._has_returned_late(nic):
                    message = "shown late, or by a process that had not answered"
                    count = len(host.survey.following_processes(nic))
                    self._results.record(Result(nic.op_id, "applied", count, message))

    def _has_returned_late(self, nic: DesiredNic) -> bool:
        """Whether a return that came to nothing is done by now: until this is reported the NIC counts as out."""
        known = self._results.latest.get(nic.op_id)
        if nic.desired != "in_service" or known is None or known.outcome == "applied":
            return False
        if self._host.survey.divergent_processes(nic):
            return False
        return bool(self._host.survey.following_processes(nic)) or not self._host.seen

    def _check(self, nic: DesiredNic) -> Result:
        """The dry run: what carrying out would come to, with nothing changed."""
        count = len(self._host.survey.processes)
        if refusal := self._refusals.of_nic(nic):
            return Result(nic.op_id, "refused", count, refusal)
        return Result(nic.op_id, "applied", count, "dry run: nothing was changed")

    async def _carry_out(self, nic: DesiredNic) -> Result:
        # Also without jobs: it holds for those that come. What was done before is kept up.
        survey = self._host.survey
        new = nic.op_id in self._intake.waiting and not survey.following_processes(nic)
        divergent = survey.divergent_processes(nic)
        if (refusal := self._refusals.of_nic(nic)) and (new or divergent):
            # Reported also when it was done before: a receiver that never got that result waits for one.
            self._held_up |= {nic.op_id} & self._intake.done_before
            return Result(nic.op_id, "refused", 0, refusal)
        self._held_up.discard(nic.op_id)
        if nic.desired == "avoid":
            self._refusals.took()
        result = await asyncio.to_thread(self._host.plugins.apply, nic)
        failpoints.reach("agent.before_done")
        self._intake.carried_out(nic.op_id)
        failpoints.reach("agent.after_done")
        if result.outcome == "applied" and nic.desired == "avoid" and result.processes:
            if (watching := self._watching.pop(nic.device, None)) is not None:
                watching.cancel()
            self._watching[nic.device] = self.tasks.start(
                f"traffic of {nic.device}", self._watch_traffic(nic, result), may_end=True
            )
        return result

    async def _change_lane(self, order: LaneOrder) -> Result:
        if refusal := self._refusals.of_lane(order):
            return Result(order.op_id, "refused", 0, refusal)
        return await asyncio.to_thread(self._host.plugins.change_lane, order)

    async def _correct(self, nic: DesiredNic) -> Result:
        """A process that started after the decision, did not answer then, or was changed by another program."""
        known = self._results.latest.get(nic.op_id)
        taken_back = nic.desired == "avoid" and nic.op_id not in self._intake.done_before
        if taken_back and known is not None and known.outcome == "refused":
            return known  # the receiver undoes it
        divergent = self._host.survey.divergent_processes(nic)
        result = await asyncio.to_thread(self._host.plugins.apply, nic, divergent)
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
        async with self._host.in_plugins:
            before = await asyncio.to_thread(self._host.plugins.survey)
        while time.monotonic() < deadline:
            await asyncio.sleep(_TRAFFIC_POLL_S)
            async with self._host.in_plugins:
                after = await asyncio.to_thread(self._host.plugins.survey)
            if self._intake.desired.get(nic.device) != nic:
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
        self._results.record(msgspec.structs.replace(result, traffic=found, message=message))
