"""The node agent: fetches the desired state from the receiver and keeps the processes of its host in it.

Three main tasks: `intake` fetches, `reporter` reports, `reconciler` keeps every process that has the plugin in line
with the journal, also one that has just started, also while the receiver is unreachable.
"""

from contextlib import AsyncExitStack

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.supervision import supervised
from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.server import WebServer
from fabricpulse.remediation import metrics
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.intake import Intake
from fabricpulse.remediation.node.local_host import LocalHost
from fabricpulse.remediation.node.plugins import CALL_RESULTS
from fabricpulse.remediation.node.receiver_client import ReceiverClient
from fabricpulse.remediation.node.reconciler import HostReconciler
from fabricpulse.remediation.node.reporter import Reporter
from fabricpulse.remediation.node.results import Results


class NodeAgent:
    """One agent; `run` works until the daemon stops."""

    def __init__(self, config: NodeConfig, life: Lifetime) -> None:
        """Raises UserError when the journal cannot be used."""
        self._config = config
        self._life = life
        self.results = Results()
        self.host = LocalHost(config)
        self.intake = Intake(config, self.results, self.host.has_not)
        self.reconciler = HostReconciler(config, self.intake, self.host, self.results)
        self.reporter = Reporter(config, self.intake, self.host, self.results)

    async def run(self, options: DaemonOptions) -> None:
        """Works until the daemon stops. What it has applied stays applied."""
        try:
            await self._work(options)
        finally:
            self.close()

    def close(self) -> None:
        """Closes journal and telemetry."""
        self.intake.close()
        self.reporter.lanes.close()

    async def _work(self, options: DaemonOptions) -> None:
        async with AsyncExitStack() as resources:
            receiver = ReceiverClient(self._config)
            resources.push_async_callback(receiver.close)
            mesh = HttpClient(self._config.mesh_client)
            resources.push_async_callback(mesh.close)

            async def exposition(text_format: TextFormat) -> bytes:
                return self._metrics(text_format, is_connected=not receiver.problem)

            server = WebServer(
                "fabricpulse remediation node",
                self._life,
                exposition,
                options.web,
                not_ready=lambda: self.intake.problem or receiver.problem or self.host.mesh_problem,
            )
            await server.start()
            resources.push_async_callback(server.stop)
            async with supervised(self._life) as tasks:
                self.reconciler.tasks = tasks
                tasks.start("fetch", self.intake.fetch_forever(receiver))
                tasks.start("report", self.reporter.report_forever(receiver))
                tasks.start("reconcile", self.reconciler.reconcile_forever())
                tasks.start("lanes", self.reporter.sample_lanes_forever())
                if self._config.mesh_url:
                    tasks.start("mesh", self.host.scrape_mesh_forever(mesh))
                self._life.ready()
                await self._life.stopped()

    def _metrics(self, text_format: TextFormat, *, is_connected: bool) -> bytes:
        out = Exposition()
        survey, desired = self.host.survey, self.intake.desired
        out.add(metrics.AGENT_CONNECTED, (), int(is_connected))
        out.add(metrics.AGENT_PROCESSES, (), len(survey.processes))
        divergent = sum(len(survey.divergent_processes(nic)) for nic in desired.values())
        out.add(metrics.AGENT_DIVERGENT, (), divergent)
        for device, nic in sorted(desired.items()):
            out.add(metrics.AGENT_AVOIDED, (device,), int(nic.desired == "avoid"))
        for result in CALL_RESULTS:
            out.add(metrics.AGENT_CALLS, (result,), self.host.plugins.calls[result])
        return out.render(text_format)
