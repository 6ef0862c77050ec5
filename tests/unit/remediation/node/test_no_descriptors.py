"""An agent on a host where a user has opened as many files as the kernel allows: it neither ends nor tells untruths."""

import os
from pathlib import Path

from tests.fixtures.descriptors import none_left
from tests.fixtures.plugin.control_server import ControlServer

from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.remediation.node.control_calls import Failure, call_all
from fabricpulse.remediation.node.kernel_nics import kernel_has
from fabricpulse.remediation.node.mesh import MeshNics, scrape_mesh
from fabricpulse.remediation.node.plugins import Plugins


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
