"""`fabricpulse status`: the daemons of this host, and what each of them lacks.

Queries /-/ready and /metrics of each, as a prober and Prometheus do. `NEEDS` maps samples to messages; a test compares
its names with the metric catalogue.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import aiohttp
import click
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.core.metrics.common import BUILD_INFO
from fabricpulse.core.output import OutputFormat, output_option, print_json, printable
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.client_options import ClientOptions, client_options
from fabricpulse.core.web.urls import check_base_url

FINE, LACKING, NONE = 0, 1, 2
_ENABLED_UNITS = Path("/etc/systemd/system/multi-user.target.wants")
_LONGEST = 200
_MOST_READY = 64 << 10


@dataclass(frozen=True)
class Need:
    """A metric that shows that a daemon lacks something. bad : by its value. text : the message, a format string of its
    labels."""

    metric: str
    bad: Callable[[float], bool]
    text: str


def _is_zero(value: float) -> bool:
    return value == 0


NEEDS = (
    Need("fabricpulse_mesh_member", _is_zero, "this host is not in the membership that it has read"),
    Need("fabricpulse_mesh_membership_success", _is_zero, "the membership cannot be read"),
    Need(
        "fabricpulse_alert_push_success", _is_zero, "Alertmanager {alertmanager} did not take the last push"
    ),
    Need("fabricpulse_nic_connected", _is_zero, "NIC {device} reaches no peer on network {network}"),
    Need("fabricpulse_clock_synchronized", _is_zero, "fleet time is not synchronized"),
    Need("fabricpulse_clocksync_quorum", _is_zero, "the coordinator has no quorum of hosts"),
    Need("fabricpulse_remediation_agent_connected", _is_zero, "the agent has no receiver"),
    Need(
        "fabricpulse_remediation_problem",
        lambda value: value > 0,
        "{code}: `fabricpulse remediation status` says more",
    ),
    Need("fabricpulse_remediation_journal_writable", _is_zero, "the journal cannot be written"),
    Need("fabricpulse_scrape_collector_success", _is_zero, "collector {collector} fails"),
    Need("fabricpulse_config_last_reload_successful", _is_zero, "the changed configuration is not in force"),
    Need(
        "fabricpulse_exporter_dropped_samples",
        lambda value: value > 0,
        "samples of {family} are above the sample cap",
    ),
    Need("fabricpulse_http_accept_failures_total", lambda value: value > 0, "file descriptors have run out"),
)


@dataclass(frozen=True)
class DaemonStatus:
    """The status of one daemon.

    state : ready, lacking (it works, and lacks something), not ready, down (its unit is enabled, or its URL was given,
    and it does not answer), absent. version : "" where it is not known.
    """

    daemon: str
    url: str
    state: str
    version: str = ""
    lacks: tuple[str, ...] = ()


def lacks_of(samples: Iterable[Sample]) -> list[str]:
    """What a daemon lacks, by its samples."""
    by_metric = {need.metric: need for need in NEEDS}
    return [
        need.text.format_map(sample.labels)
        for sample in samples
        if (need := by_metric.get(sample.name)) is not None and need.bad(sample.value)
    ]


def status_of(daemon: str, url: str, ready: tuple[int, str], metrics: str) -> DaemonStatus:
    """The status of a daemon that has answered. ready : status and text of /-/ready. metrics : text of /metrics."""
    samples = [s for family in text_string_to_metric_families(metrics) for s in family.samples]
    build = next((s.labels for s in samples if s.name == BUILD_INFO.name), None)
    if build is None or build.get("daemon") not in (daemon, None):
        # Prometheus and its kin have a /-/ready, too; and who mistypes a port asks the neighbour.
        who = "another program" if build is None else f"fabricpulse {build['daemon']}"
        return DaemonStatus(daemon, url, "down", lacks=(_line(f"{who} answers there"),))
    lacks = lacks_of(samples)
    running, installed = build.get("version", ""), version("fabricpulse")
    if running and running != installed:
        lacks.append(f"version {running} is running, {installed} is installed: restart it")
    code, text = ready
    if code == 503:
        reason = text.strip().partition(" is not ready: ")[2].removesuffix(".") or text.strip()
        return DaemonStatus(daemon, url, "not ready", running, (_line(reason), *map(_line, lacks)))
    if code != 200:
        lacks.insert(0, f"/-/ready is answered with status {code}")
    return DaemonStatus(daemon, url, "lacking" if lacks else "ready", running, tuple(map(_line, lacks)))


def exit_code(statuses: Iterable[DaemonStatus]) -> int:
    """FINE: all that should run do, and lack nothing; LACKING: one does not; NONE: no daemon answers."""
    states = {status.state for status in statuses}
    if not states & {"ready", "lacking", "not ready"}:
        return NONE
    return FINE if states <= {"ready", "absent"} else LACKING


async def query_all(
    urls: dict[str, str], required: frozenset[str], client_config: HttpClientConfig
) -> list[DaemonStatus]:
    """The status of each daemon, targets at the same time. required : those that must answer."""
    async with HttpClient(client_config) as client:
        return await asyncio.gather(
            *(_query(client, name, url, must=name in required) for name, url in urls.items())
        )


async def _query(client: HttpClient, daemon: str, url: str, *, must: bool) -> DaemonStatus:
    try:
        async with client.get(f"{url}/-/ready") as response:
            ready = response.status, (await read_body(response, _MOST_READY)).decode(errors="replace")
        async with client.get(f"{url}/metrics") as response:
            if response.status != 200:
                reason = f"/metrics is answered with status {response.status}"
                if response.status in (401, 403):
                    reason += ": give --token-file, --cert-file or --http.config.file"
                return DaemonStatus(daemon, url, "lacking", lacks=(reason,))
            found = status_of(daemon, url, ready, (await read_body(response)).decode(errors="replace"))
            return found if must or found.state != "down" else replace(found, state="absent")
    except aiohttp.ClientConnectorError as error:
        if must:
            return DaemonStatus(daemon, url, "down", lacks=(_line(describe(error)),))
        return DaemonStatus(daemon, url, "absent")
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return DaemonStatus(daemon, url, "down", lacks=(_line(f"no proper answer: {describe(error)}"),))


def _line(text: str) -> str:
    """Text from a daemon, or from whatever listens on its port, as one line without control characters."""
    return printable(text)[:_LONGEST]


def enabled_daemons(units: Path = _ENABLED_UNITS) -> frozenset[str]:
    """Daemons whose units systemd starts with this host."""
    return frozenset(name for name in DAEMONS if (units / f"fabricpulse-{name}.service").is_symlink())


def _parse_urls(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    urls = {}
    for value in values:
        name, equals, url = value.partition("=")
        if not equals or name not in DAEMONS:
            raise click.BadParameter(f"{value!r} is not DAEMON=URL; daemons: {', '.join(DAEMONS)}")
        try:
            check_base_url(name, url)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        urls[name] = url.rstrip("/")
    return urls


@click.command("status")
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="DAEMON=URL",
    callback=_parse_urls,
    help="Where a daemon is, if not on its port of this host; it must answer then. Repeatable.",
)
@click.option("--only", is_flag=True, help="Ask only the daemons of --url.")
@client_options("the daemons")
@output_option
@click.pass_context
def command(
    ctx: click.Context, urls: dict[str, str], only: bool, client: ClientOptions, output: OutputFormat
) -> None:
    """Show the daemons of this host and what each lacks.

    Exit code 0: all that should run do and lack nothing; 1: one lacks something or is down; 2: none answers.
    """
    if only and not urls:
        raise click.UsageError("--only needs --url")
    targets = (
        urls if only else {name: f"http://localhost:{port}" for name, (_, port) in DAEMONS.items()} | urls
    )
    must = frozenset(urls) | (frozenset() if only else enabled_daemons())
    statuses = asyncio.run(query_all(targets, must, client.config("--url", *targets.values())))
    code = exit_code(statuses)
    if output == "json":
        print_json({"exit_code": code, "daemons": [asdict(status) for status in statuses]})
    else:
        for status in statuses:
            click.echo(f"{status.daemon:<22} {status.state:<10} {status.version:<10} {status.url}")
            for lack in status.lacks:
                click.echo(f"  - {lack}")
        if code == NONE:
            click.echo(
                "no daemon answers; `fabricpulse files list` shows their units, `systemctl start` starts them"
            )
    ctx.exit(code)
