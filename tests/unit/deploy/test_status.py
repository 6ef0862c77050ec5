"""`fabricpulse status`: what the daemons of a host lack, in words and as an exit code."""

import asyncio
import json
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.fixtures.ports import reserved_port
from tests.unit.core.web_serving import LOCAL

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.core.metrics.catalogue import load_catalogue
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.server import WebServer
from fabricpulse.deploy.status import (
    NEEDS,
    DaemonStatus,
    command,
    enabled_daemons,
    exit_code,
    query_all,
    status_of,
)

BUILD = f'fabricpulse_build_info{{version="{version("fabricpulse")}",daemon="mesh"}} 1\n'
OLD = '# TYPE fabricpulse_build_info gauge\nfabricpulse_build_info{version="0.0.1",daemon="mesh"} 1\n'


def test_metrics_and_labels_are_those_of_the_catalogue() -> None:
    """A renamed metric would make this command say that all is well."""
    catalogue = load_catalogue()
    for need in NEEDS:
        need.text.format_map(dict.fromkeys(catalogue[need.metric].labels, "x"))


@pytest.mark.parametrize(
    ("metrics", "lacks"),
    [
        ("fabricpulse_mesh_member 1\nfabricpulse_nic_connected{device='eth1'} 1\n".replace("'", '"'), ()),
        ("fabricpulse_mesh_member 0\n", ("this host is not in the membership that it has read",)),
        (
            'fabricpulse_nic_connected{device="eth1",network="a"} 0\n',
            ("NIC eth1 reaches no peer on network a",),
        ),
        ("fabricpulse_clock_synchronized 0\n", ("fleet time is not synchronized",)),
        ("fabricpulse_remediation_agent_connected 0\n", ("the agent has no receiver",)),
        ('fabricpulse_remediation_problem{code="paused"} 0\n', ()),
        (
            'fabricpulse_remediation_problem{code="breaker_tripped"} 1\n',
            ("breaker_tripped: `fabricpulse remediation status` says more",),
        ),
        ("fabricpulse_remediation_journal_writable 0\n", ("the journal cannot be written",)),
        ('fabricpulse_exporter_dropped_samples{family=""} 0\n', ()),
        (OLD, (f"version 0.0.1 is running, {version('fabricpulse')} is installed: restart it",)),
    ],
)
def test_what_a_daemon_lacks(metrics: str, lacks: tuple[str, ...]) -> None:
    """One sentence for each sample that says so."""
    build = "" if metrics == OLD else BUILD
    status = status_of("mesh", "http://x", (200, "ready"), build + metrics)
    assert status.lacks == lacks
    assert status.state == ("lacking" if lacks else "ready")


def test_why_it_is_not_ready_comes_first() -> None:
    """In the daemon's own words, without what would drive a terminal."""
    text = "fabricpulse mesh is not ready: no membership \x1b[2Jyet.\n"
    status = status_of("mesh", "http://x", (503, text), BUILD + "fabricpulse_mesh_member 0\n")
    assert status.state == "not ready"
    assert status.lacks[0] == "no membership \\x1b[2Jyet"
    assert len(status.lacks) == 2


@pytest.mark.parametrize(
    ("metrics", "who"),
    [
        ("", "another program"),
        ('prometheus_build_info{version="3.0.0"} 1\n', "another program"),
        (BUILD.replace("mesh", "nic"), "fabricpulse nic"),
    ],
)
def test_what_answers_in_its_place_is_not_the_daemon(metrics: str, who: str) -> None:
    """Prometheus and Alertmanager have a /-/ready as well: on this port they were a daemon that lacks nothing."""
    status = status_of("mesh", "http://x", (200, "Prometheus Server is Ready.\n"), metrics)
    assert (status.state, status.lacks) == ("down", (f"{who} answers there",))


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["ready", "absent"], 0),
        (["ready", "lacking"], 1),
        (["ready", "not ready"], 1),
        (["ready", "down"], 1),
        (["absent", "absent"], 2),
        (["down", "absent"], 2),
    ],
)
def test_exit_code(states: list[str], code: int) -> None:
    """0: fine, 1: something is lacking, 2: nobody answers."""
    assert exit_code([DaemonStatus("mesh", "", state) for state in states]) == code


def test_enabled_units(tmp_path: Path) -> None:
    """A daemon whose unit is enabled must answer; the units are called as the components."""
    (tmp_path / "fabricpulse-nic.service").symlink_to("/nonexistent")
    assert enabled_daemons(tmp_path) == {"nic"}
    units = Path(__file__).parents[3] / "deploy" / "systemd"
    assert {f"fabricpulse-{name}.service" for name in DAEMONS} <= {unit.name for unit in units.iterdir()}


async def test_asking() -> None:
    """A daemon that runs, one that is not ready, one that is down, one that need not be there."""

    async def metrics(_: TextFormat) -> bytes:
        return b""

    ready, starting = Lifetime(), Lifetime()
    ready.ready()
    servers = [
        WebServer(f"fabricpulse {n}", life, metrics, LOCAL)
        for n, life in (("mesh", ready), ("nic", starting))
    ]
    for server in servers:
        await server.start()
    try:
        urls = [f"http://127.0.0.1:{server.addresses[0][1]}" for server in servers]
        asked = {
            "mesh": urls[0],
            "nic": urls[1],
            "qp": "http://127.0.0.1:1",
            "remediation-node": "http://127.0.0.1:1",
            "audit-node": urls[0],
        }
        statuses = await query_all(asked, frozenset({"mesh", "qp"}), HttpClientConfig())
        # The command has a loop of its own.
        options = ["--only", "--url", f"mesh={urls[0]}", "--url", f"nic={urls[1]}", "--output", "json"]
        result = await asyncio.to_thread(CliRunner().invoke, command, options)
    finally:
        for server in servers:
            await server.stop()
    assert [status.state for status in statuses] == ["ready", "not ready", "down", "absent", "absent"]
    assert statuses[4].lacks == ("fabricpulse mesh answers there",)
    assert statuses[0].version == version("fabricpulse")
    assert statuses[1].lacks == ("it is starting",)
    assert result.exit_code == 1
    assert [d["state"] for d in json.loads(result.output)["daemons"]] == ["ready", "not ready"]


def test_without_daemons_the_message_says_what_to_do() -> None:
    """Exit code 2, and where the daemons' units are."""
    result = CliRunner().invoke(command, ["--only", "--url", f"mesh=http://127.0.0.1:{reserved_port()}"])
    assert result.exit_code == 2
    assert "connection refused" in result.output
    assert "systemctl start" in result.output


@pytest.mark.parametrize("option", ["mash=http://x", "mesh=ftp://x", "mesh"])
def test_bad_url(option: str) -> None:
    """Usage errors name what is wrong."""
    result = CliRunner().invoke(command, ["--url", option])
    assert result.exit_code == 2
