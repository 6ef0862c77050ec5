"""The daemon as a whole, on the loopback device."""

import asyncio
import time
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import until

from fabricpulse.core.config import parse_config
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.supervision import TaskFailedError
from fabricpulse.core.web.options import WebOptions
from fabricpulse.mesh.alerts import DISCONNECTED, FLAPPING, AlertPusher, Nic
from fabricpulse.mesh.config import MeshConfig
from fabricpulse.mesh.front_end import FrontEndWatch
from fabricpulse.mesh.service import MeshService, run
from fabricpulse.mesh.snapshot import Cause, EventKind

OPTIONS = DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt")


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A fleet of two hosts; gives the configuration of the first, with other settings on top."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path / "run"))
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "hosts:\n"
        "  - {name: h0, nics: [{device: lo, address: 127.0.0.1, network: a}]}\n"
        "  - {name: h1, nics: [{device: lo, address: 127.0.0.2, network: a}]}\n"
    )

    def make(more=""):
        membership = f"{{file: '{fleet}', refresh_s: 0.02}}"
        text = f"host: h0\nmembership: {membership}\nprobe: {{port: {reserved_port()}}}\n{more}"
        return parse_config(text, MeshConfig, "mesh.yaml"), fleet

    return make


@pytest.mark.parametrize(("kind", "method"), [(FrontEndWatch, "run"), (AlertPusher, "serve")])
async def test_a_task_that_dies_ends_the_daemon(config, monkeypatch, kind, method):
    """Not one that goes on without it and looks well."""

    async def die(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr(kind, method, die)
    made, _ = config("alerting: {alertmanagers: ['http://127.0.0.1:1']}\n")
    async with asyncio.timeout(60):
        with pytest.raises(TaskFailedError, match="a defect"):
            await run(Lifetime(), made, OPTIONS)


class _Lost:
    """An engine of which one NIC is disconnected once."""

    def take_events(self):
        return [
            SimpleNamespace(
                kind=EventKind.NIC_DISCONNECTED,
                host_ns=1,
                duration_ns=0,
                device="lo",
                network="a",
                cause=Cause.SILENT,
            )
        ]


async def test_a_nic_that_flaps_is_pushed_until_it_has_not_for_a_while(config):
    """At the disconnect that makes it one, and once; the end is that of the rule. Not where it is switched off."""
    flapping = (FLAPPING, "lo", "a")
    urls = "alertmanagers: ['http://127.0.0.1:1']"
    made, _ = config(f"alerting: {{{urls}, flap_window_s: 300, flap_keep_firing_s: 0}}\n")
    service = MeshService(made)
    service._engine = _Lost()
    service._disconnects.disconnected(("lo", "a"), time.monotonic() - 298)
    service._take_events()
    assert flapping not in service.pusher.firing()
    service._take_events()
    alert = service.pusher.firing()[flapping]
    assert " disconnected 3 times within 300 s" in alert.content.annotations["description"]
    (end,) = service._flap_ends.values()
    service._take_events()  # which moves the end to 300 s from the first of those that were seen here
    assert end.cancelled()
    assert service.pusher.firing()[flapping] is alert
    (end,) = service._flap_ends.values()
    assert 290 < end.when() - asyncio.get_running_loop().time() <= 300
    service._disconnects.disconnected(("lo", "b"), time.monotonic() - 300 + 0.5)
    for _ in range(2):
        service._disconnects.disconnected(("lo", "b"), time.monotonic())
    service._check_flapping(Nic("lo", "b"))
    await until(lambda: (FLAPPING, "lo", "b") not in service.pusher.firing())
    assert flapping in service.pusher.firing()

    made, _ = config("alerting: {flap_threshold: 0}\n")
    service = MeshService(made)
    service._engine = _Lost()
    for _ in range(5):
        service._take_events()
    assert [name for name, *_ in service.pusher.firing()] == [DISCONNECTED]


async def test_a_stop_is_no_failure(config):
    made, _ = config("alerting: {alertmanagers: ['http://127.0.0.1:1']}\n")

    class Brief(Lifetime):
        def ready(self):
            super().ready()
            self.stop()

    async with asyncio.timeout(60):
        await run(Brief(), made, OPTIONS)


@pytest.mark.thorough
async def test_more_edges_than_the_engine_has_room_for(config):
    """At the start a sentence; later the membership stays as it was."""
    made, fleet = config()
    good = fleet.read_text()
    nics = [
        ", ".join(f"{{device: d{n}, address: 10.{n}.0.{host + 1}, network: r{n}}}" for n in range(120))
        for host in range(12)
    ]
    crowd = "hosts:\n" + "".join(f"  - {{name: h{host}, nics: [{text}]}}\n" for host, text in enumerate(nics))
    fleet.write_text(crowd)
    service = MeshService(made)
    with pytest.raises(ConfigError, match=r"the membership cannot be probed: more than 1024 edges"):
        await service.start()
    await service.stop()
    fleet.write_text(good)
    service = MeshService(made)
    await service.start()
    fleet.write_text(crowd)
    await service.refresh()
    assert not service.counters.membership_ok
    assert service.view.members == 2
    await service.stop()


async def test_a_host_that_is_no_member_says_so(config):
    """Not in its own membership: shown by the log's level, metric and readiness, and corrected by the next file."""
    made, fleet = config()
    good = fleet.read_text()
    fleet.write_text(good.replace("h0", "somebody"))
    service = MeshService(made)
    await service.start()
    assert service.counters.member is False
    assert service.not_ready() == "this host, h0, is not in the membership"
    assert b"fabricpulse_mesh_member 0\n" in await service.metrics(TextFormat.PLAIN)
    fleet.write_text(good)
    await service.refresh()
    assert service.not_ready() == ""
    assert b"fabricpulse_mesh_member 1\n" in await service.metrics(TextFormat.PLAIN)
    fleet.write_text("hosts: []")
    await service.refresh()
    assert service.view.members == 2
    assert not service.counters.membership_ok
    await service.stop()


async def test_a_membership_that_loses_most_hosts_is_held_back(config):
    """Two of three hosts are gone at once: probing goes on, the metric says so, SIGHUP confirms."""
    made, fleet = config()
    small = fleet.read_text()
    more = [
        f"  - {{name: m{n}, nics: [{{device: lo, address: 127.0.1.{n}, network: a}}]}}\n" for n in (1, 2, 3)
    ]
    fleet.write_text(small + "".join(more))
    service = MeshService(made)
    await service.start()
    fleet.write_text(small)
    for _ in range(3):
        await service.refresh()
        assert service.view.members == 5
    assert b"fabricpulse_mesh_membership_held 1\n" in await service.metrics(TextFormat.PLAIN)
    await service.reload(None)
    assert service.view.members == 2
    assert b"fabricpulse_mesh_membership_held 0\n" in await service.metrics(TextFormat.PLAIN)
    await service.stop()


async def test_a_membership_that_is_whole_again_ends_what_was_held(config):
    """A file was cut short for a moment: the short one is forgotten, and neither time nor SIGHUP brings it back."""
    made, fleet = config()
    small = fleet.read_text()
    whole = small + "".join(
        f"  - {{name: m{n}, nics: [{{device: lo, address: 127.0.1.{n}, network: a}}]}}\n" for n in (1, 2, 3)
    )
    fleet.write_text(whole)
    service = MeshService(made)
    await service.start()
    fleet.write_text(small)
    await service.refresh()
    assert service.counters.membership_held
    fleet.write_text(whole)
    await service.refresh()
    assert not service.counters.membership_held
    await service.refresh()
    await service.reload(None)
    assert service.view.members == 5
    await service.stop()


async def test_the_fleet_may_know_this_host_by_its_full_name(config):
    """Listed as h0.example.com, called h0 by the system: probed under the fleet's name, whenever that is learned."""
    made, fleet = config()
    good = fleet.read_text()
    fleet.write_text(good.replace("h0", "H0.example.com"))
    service = MeshService(made)
    await service.start()
    assert (service.view.host, len(service.view.peers)) == ("H0.example.com", 1)
    first = service.engine
    fleet.write_text(good)
    await service.refresh()
    assert (service.view.host, len(service.view.peers)) == ("h0", 1)
    assert service.engine is not first
    await service.stop()


@pytest.mark.parametrize("limit", ["\u00b2", "0", "-1", "x", "1000000", ""])
async def test_a_limit_that_is_none_is_a_bad_request(config, limit):
    made, _ = config()
    request = make_mocked_request("GET", f"/api/v1/events?limit={quote(limit)}")
    with pytest.raises(web.HTTPBadRequest, match="Bad Request"):
        await MeshService(made).serve_events(request)
