"""Audits of the shared lab: each host has an agent, and the command runs on the management node."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.fixtures.audit.gpu_agent import write_rank

from fabricpulse.audit.model import Run
from fabricpulse.lab import Lab
from fabricpulse.lab.node import Host
from fabricpulse.lab.process import LabProcess

CLI = (sys.executable, "-Im", "fabricpulse.core.cli", "audit")
GPU_CLI = (sys.executable, "-m", "tests.fixtures.audit.gpu_agent", "audit")
_ROOT = Path(__file__).parents[3]
FULL_MESH = ("--paths", "--all-pairs")


class LabAudits:
    """Starts agents on all hosts of a lab, and audits of them."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab = lab
        self._folder = folder
        (folder / "token").write_text("0123456789abcdef")
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.torch = write_rank(folder)
        self.wiring = folder / "wiring.yaml"
        ports = ", ".join(f"{nic.device}: {{switch: leaf, port: p}}" for nic in lab.hosts[0].nics)
        self.wiring.write_text("wiring:\n" + "".join(f"  {host.name}: {{{ports}}}\n" for host in lab.hosts))
        for host in lab.hosts:
            settings = folder / f"{host.name}.yaml"
            text = f"token_file: {folder}/token\nstate: {folder}/{host.name}\ntorch_python: {self.torch}\n"
            settings.write_text(text)
            # As systemd sets it.
            host.run(["sysctl", "-qw", "net.ipv4.ping_group_range=0 2147483647"])
        self.agents = {host.name: self.start_agent(host) for host in lab.hosts}
        for agent in self.agents.values():
            agent.wait_for_output("listening")
        self._membership = lab.write_membership()
        self.saved = folder / "run.json"

    def start_agent(self, host: Host, name: str = "audit", cli: Sequence[str] = CLI) -> LabProcess:
        """The agent of a host, which is yet to listen. name : of its log. cli : GPU_CLI for one that finds a GPU."""
        arguments = [*cli, "node", "--config", str(self._folder / f"{host.name}.yaml")]
        return host.popen(arguments, name=name, env={"TMPDIR": str(self.temporary)}, cwd=_ROOT)

    def restart_agent(self, host: Host, cli: Sequence[str] = CLI) -> None:
        """Another agent of a host, once it listens."""
        old = self.agents[host.name]
        old.kill()
        old.wait(10)
        self.agents[host.name] = self.start_agent(host, f"audit-after-{old.pid}", cli)
        self.agents[host.name].wait_for_output("listening")

    def published(self, host: str) -> bytes:
        """What the agent of a host holds as the findings of the last whole run, b"" for nothing."""
        kept = self._folder / host / "fleet.json"
        return kept.read_bytes() if kept.exists() else b""

    def start(self, host_timeout_s: int = 30, *more: str) -> LabProcess:
        """`audit run`, which writes `saved`."""
        self.saved.unlink(missing_ok=True)
        fleet = [] if "--coordinator" in more else ["--membership", str(self._membership)]
        arguments = [*fleet, "--token-file", str(self._folder / "token")]
        arguments += [*FULL_MESH, "--host-timeout", str(host_timeout_s), *more, "--save", str(self.saved)]
        return self._lab.mgmt.popen([*CLI, "run", *arguments], name="run")

    def __call__(self, host_timeout_s: int = 30, *more: str) -> Run:
        """An audit, to its end."""
        process = self.start(host_timeout_s, *more)
        process.wait(180)
        assert self.saved.exists(), process.tail()
        return self.read()

    def read(self) -> Run:
        """What was saved last."""
        return msgspec.json.decode(self.saved.read_bytes(), type=Run)


@pytest.fixture(scope="module")
def run(shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> LabAudits:
    """Runs an audit from the management node; each host has an agent."""
    return LabAudits(shared_lab, tmp_path_factory.mktemp("audit"))
