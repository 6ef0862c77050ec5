"""This host as the agent knows it: its processes by their control sockets, its NICs by the mesh or their links."""

import asyncio
import time
from collections.abc import Mapping

from fabricpulse.core.log import get_logger
from fabricpulse.core.run_dir import plugin_dir
from fabricpulse.core.web.client import HttpClient
from fabricpulse.remediation.node.carried import CarriedBytes
from fabricpulse.remediation.node.config import NodeConfig, users_of
from fabricpulse.remediation.node.kernel_nics import kernel_has
from fabricpulse.remediation.node.mesh import MeshNics, SquattedError, scrape_mesh
from fabricpulse.remediation.node.observation import LinkObserver, ProbeObserver
from fabricpulse.remediation.node.plugins import Plugins
from fabricpulse.remediation.node.survey import Survey
from fabricpulse.remediation.protocol import DesiredNic, Health

log = get_logger(__name__)


class LocalHost:
    """survey : what the processes said last. seen : sockets that were there then. mesh : what the mesh exporter said
    last. mesh_problem : why what answers in its place is ignored, "" otherwise. in_plugins : held while the processes
    are asked, so that nobody reads what another one is changing."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self.plugins = Plugins(
            plugin_dir(),
            config.call_timeout_s,
            config.verify_timeout_s,
            users_of("job_users", config.job_users),
        )
        self.in_plugins = asyncio.Lock()
        self.survey = Survey()
        self.surveyed_at = 0.0
        self.seen: dict[str, tuple[int, int]] = {}
        self.carried = CarriedBytes()
        self.mesh = MeshNics()
        self.mesh_problem = ""
        users = users_of("mesh_users", config.mesh_users)
        self._mesh_users = users | {0} if users else users
        self._links = LinkObserver()
        self._probes = ProbeObserver()

    async def take_survey(self) -> None:
        """Asks the processes. With in_plugins held."""
        self.survey = await asyncio.to_thread(self.plugins.survey)

    def count(self, present: dict[str, tuple[int, int]]) -> None:
        """Counts what the jobs have carried by the last survey. present : the sockets that it asked."""
        self.seen, self.surveyed_at = present, time.monotonic()
        self.carried.count(self.survey, self.surveyed_at)

    async def scrape_mesh_forever(self, client: HttpClient) -> None:
        """Keeps `mesh` current."""
        while True:
            try:
                self.mesh = await scrape_mesh(client, self._config.mesh_url, self._mesh_users)
                self.mesh_problem = ""
            except SquattedError as error:
                self.mesh = MeshNics()
                if self.mesh_problem != str(error):
                    log.warning("what answers for the mesh exporter is ignored", reason=str(error))
                self.mesh_problem = str(error)
            await asyncio.sleep(self._config.report_interval_s)

    def health(self, desired: Mapping[str, DesiredNic]) -> dict[str, Health]:
        """Of this host's NICs now. With a mesh to ask, what it does not measure is not known."""
        if self._config.mesh_url:
            return self._probes.observe(self.mesh.connected, self.mesh.disconnects)
        return self._links.observe(self.survey, desired)

    def nics(self) -> set[str]:
        """Those that a job or the mesh knows. Without jobs it is the mesh that says how many there are."""
        return self.survey.devices().keys() | self.mesh.connected.keys()

    def has_not(self, device: str) -> bool:
        """Whether the host is known not to have this NIC: neither the kernel, nor a job, nor the mesh knows it.

        Not while the mesh does not answer: where the agent has a network namespace of its own only the mesh tells.
        """
        if device in self.nics() or device in self._config.devices:
            return False
        if self._config.mesh_url and not self.mesh.connected:
            return False
        return not kernel_has(device)
