"""Reports of this host to the receiver: results, the health of NICs, what jobs and their lanes carry."""

import asyncio
from typing import Protocol

from fabricpulse.core.run_dir import plugin_dir
from fabricpulse.core.waiting import wait_with_timeout
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.node.config import NodeConfig, users_of
from fabricpulse.remediation.node.held import reported
from fabricpulse.remediation.node.intake import Intake
from fabricpulse.remediation.node.lanes import LaneSampler
from fabricpulse.remediation.node.local_host import LocalHost
from fabricpulse.remediation.node.receiver_client import RETRY_S, ReceiverError
from fabricpulse.remediation.node.report_size import fitting
from fabricpulse.remediation.node.results import Results
from fabricpulse.remediation.protocol import MAX_NICS, Health, LaneSample, Report


class ReportSink(Protocol):
    """Where reports go, as of ReceiverClient."""

    async def report(self, report: Report) -> None:
        """Sends a report. Raises ReceiverError."""


class Reporter:
    """Sends a report each interval, and at once when there is a result."""

    def __init__(self, config: NodeConfig, intake: Intake, host: LocalHost, results: Results) -> None:
        self._config = config
        self._intake = intake
        self._host = host
        self._results = results
        self.lanes = LaneSampler(plugin_dir(), users_of("job_users", config.job_users))
        # Observed since the last report that the receiver took.
        self._unhealthy: set[str] = set()

    async def report_forever(self, receiver: ReportSink) -> None:
        """Works until it is cancelled."""
        while True:
            self._results.is_new.clear()
            report = await self._report()
            wait_s = self._config.report_interval_s
            if report.results:
                failpoints.reach("agent.before_report")
            try:
                await receiver.report(fitting(report))
            except ReceiverError:
                wait_s = RETRY_S
            else:
                self._unhealthy.clear()
                if report.results:
                    failpoints.reach("agent.after_report")
                self._results.reported(report.results)
            await wait_with_timeout(self._results.is_new, wait_s)

    async def sample_lanes_forever(self) -> None:
        """While the receiver asks for reports of lanes."""
        while True:
            wait_s = self._config.report_interval_s
            if self._intake.report_lanes:
                wait_s = await asyncio.to_thread(self.lanes.poll)
            await asyncio.sleep(wait_s)

    async def _report(self) -> Report:
        results = self._results.to_report()
        lanes: list[LaneSample] = []
        if self._intake.report_lanes:
            lanes = await asyncio.to_thread(self.lanes.sample)
        survey, carried = self._host.survey, self._host.carried
        return Report(
            processes=len(survey.processes),
            devices=survey.devices(),
            connected=self._host.mesh.connected,
            health=self._health_to_report(),
            held=reported(self._intake.desired, self._host.has_not),
            results=results,
            lanes=lanes,
            workloads=survey.workloads(),
            users=survey.users(),
            carried_bytes=carried.total,
            carried_at_s=carried.at_s,
        )

    def _health_to_report(self) -> dict[str, Health]:
        """Health now, and of a NIC that was unhealthy in a report that did not arrive: a flap must not be lost."""
        health = self._host.health(self._intake.desired)
        self._unhealthy.update(device for device, state in health.items() if state == "unhealthy")
        while len(self._unhealthy) > MAX_NICS:
            self._unhealthy.pop()
        found: dict[str, Health] = dict.fromkeys(sorted(self._unhealthy), "unhealthy")
        found |= {device: state for device, state in health.items() if device not in found}
        return dict(list(found.items())[:MAX_NICS])
