"""An agent on a host where a user has opened as many files as the kernel allows: it neither ends nor tells untruths."""

import os
from pathlib import Path

import pytest
from tests.fixtures.descriptors import none_left
from tests.fixtures.plugin.control_server import ControlServer
from tests.fixtures.plugin.telemetry_file import TelemetryFile

from fabricpulse.core.errors import UserError
from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.plugin.jobs import find_jobs
from fabricpulse.remediation.node.control_calls import Failure, call_all
from fabricpulse.remediation.node.kernel_nics import kernel_has
from fabricpulse.remediation.node.lanes import LaneSampler
from fabricpulse.remediation.node.mesh import MeshNics, scrape_mesh
from fabricpulse.remediation.node.plugins import Plugins
from fabricpulse.remediation.protocol import DesiredNic


def test_jobs_have_not_ended_because_their_sockets_cannot_be_listed(
    plugins: Plugins, server: ControlServer
) -> None:
    """What is there is what was there; none of them answers."""
    before = plugins.present()
    assert list(before) == [server.path.stem]
    with none_left():
        assert plugins.present() == before
        assert plugins.survey().processes == {}
    assert plugins.present() == before


def test_a_socket_that_cannot_be_asked_is_silent(server: ControlServer) -> None:
    """Not gone: an action that no process has followed must not count as one that needed none."""

    def ask() -> object:
        name = server.path.stem
        return call_all(server.path.parent, [name], {"op": "status"}, lambda _: 1.0)[name]

    with none_left():
        assert ask() == Failure("silent", "Too many open files")
    assert isinstance(ask(), dict)


def test_a_nic_is_not_absent_because_the_kernel_cannot_be_asked() -> None:
    """It was refused with "this host has no NIC"."""
    assert not kernel_has("no-such-nic")
    with none_left():
        assert kernel_has("no-such-nic")


async def test_who_listens_for_the_mesh_is_not_known() -> None:
    """So what answers there does not count."""
    async with HttpClient(HttpClientConfig()) as client:
        with none_left():
            found = await scrape_mesh(client, "http://127.0.0.1:9/metrics", {os.getuid()})
        assert found == MeshNics()


def test_the_folder_of_no_job_is_empty(tmp_path: Path) -> None:
    """There is none before the first job."""
    assert Plugins(tmp_path / "none", 1.0, 1.0).present() == {}


@pytest.mark.parametrize("surveyed", [False, True])
def test_a_failover_that_nobody_followed_is_not_applied(
    plugins: Plugins, server: ControlServer, surveyed: bool
) -> None:
    """Whether the agent knew of the job before or not."""
    if surveyed:
        plugins.survey()
    with none_left():
        assert plugins.apply(DesiredNic("rail0", "avoid", 10, "op-10")).outcome == "failed"
    assert server.effects == []


def test_lanes_are_not_forgotten_because_their_files_cannot_be_listed(tmp_path: Path) -> None:
    """Their next sample would have no rates."""
    TelemetryFile(tmp_path)
    sampler = LaneSampler(tmp_path)
    try:
        sampler.sample()
        assert len(sampler._readers) == 1
        with none_left():
            sampler.sample()
            assert len(sampler._readers) == 1
    finally:
        sampler.close()


def test_commands_do_not_deny_jobs_that_they_cannot_list(server: ControlServer) -> None:
    """No job is another answer than no answer."""
    with none_left(), pytest.raises(UserError, match="cannot read the folder"):
        find_jobs(server.path.parent)
    assert len(find_jobs(server.path.parent)) == 1
