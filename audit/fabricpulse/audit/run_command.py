"""`audit run`: from the command line to a run."""

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fabricpulse.audit.blame import PathTest
from fabricpulse.audit.fleet_run import AgentError, Target, collect, probe, until
from fabricpulse.audit.host_list import expand
from fabricpulse.audit.model import Finding, HostReport, Run, clip
from fabricpulse.audit.node.echo import COUNT, PATIENCE_S, PROBES_AT_A_TIME
from fabricpulse.audit.node.wire import MOST_PROBES
from fabricpulse.audit.path_tests import Way, coverage_note, judge, path_findings, plan_ways
from fabricpulse.audit.profile import load_profile
from fabricpulse.audit.runs import run_of
from fabricpulse.audit.targets import targets
from fabricpulse.core.config import Section, load_config, parse_config
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.membership import Membership, load_membership
from fabricpulse.core.web.client import HttpClient, describe, fetch
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.client_options import ClientOptions
from fabricpulse.core.web.urls import redact

MEMBERSHIP_PATH = "/api/v1/membership"


def run_fleet(
    coordinator: str | None,
    membership: Path | None,
    hosts: str,
    agent_url: str,
    client: ClientOptions,
    coordinator_client: ClientOptions,
    host_timeout_s: float,
    profile: Path | None,
    paths: bool,
    all_pairs: bool,
    leaves: Path | None,
) -> Run:
    """Asks the hosts. Ctrl-C ends the requests and makes a run of what has come. Raises UserError."""
    pinned = load_profile(profile) if profile else None
    fleet = _membership(coordinator, membership, coordinator_client or ClientOptions(ca_file=client.ca_file))
    wanted = targets(fleet, expand(hosts), agent_url)
    config = client.config("--agent-url", *(target.url for target in wanted))
    config = msgspec.structs.replace(config, timeout_s=host_timeout_s)
    started_at, begun = time.time(), time.monotonic()
    more: list[Finding] = []
    notes: list[str] = []
    if paths and fleet is None:
        raise UserError("--paths needs the addresses of NICs: give --coordinator or --membership")
    by_leaf = load_leaves(leaves) if leaves else {}
    reports, silent, cancelled = asyncio.run(_collect(wanted, config, host_timeout_s))
    if paths and fleet is not None and not cancelled:
        most = max(len(fleet.hosts), 1) if all_pairs else None
        more, note, cancelled = asyncio.run(_paths(wanted, config, fleet, reports, by_leaf, most))
        notes += note
    asked = tuple(target.host for target in wanted)
    return run_of(
        reports,
        silent,
        pinned,
        str(profile or ""),
        asked,
        started_at,
        round(time.monotonic() - begun, 3),
        cancelled,
        more,
        tuple(notes),
    )


def load_leaves(path: Path) -> dict[str, str]:
    """host -> leaf of a file `leaves: {leaf-1: "gpu-[001-064]"}`. Raises UserError."""
    found = load_config(path, Leaves)
    return {host: leaf for leaf, hosts in found.leaves.items() for host in expand(hosts)}


class Leaves(Section, frozen=True):
    """Which hosts hang on which leaf.

    leaves : leaf -> list of hosts, as Slurm writes them.
    """

    leaves: dict[str, str]


async def _paths(
    wanted: list[Target],
    config: HttpClientConfig,
    fleet: Membership,
    reports: list[HostReport],
    leaves: dict[str, str],
    most: int | None,
) -> tuple[list[Finding], list[str], bool]:
    """Findings, notes, and whether it was cancelled. An agent that does not answer costs its own tests."""
    by_host, plans = plan_ways(fleet, reports, leaves, most)
    tests: list[tuple[str, PathTest]] = []
    notes = [coverage_note(plans)]
    agents = {target.host: target for target in wanted}
    # Of the worst case, in which no echo of a host is answered.
    longest = max((sum(len(way.probes()) for way in ways) for ways in by_host.values()), default=0)
    patience = 30 + longest * COUNT * PATIENCE_S / PROBES_AT_A_TIME
    cancelled = asyncio.Event()
    with _cancelling(cancelled):
        async with HttpClient(
            msgspec.structs.replace(config, timeout_s=min(patience, 3600)), connections=256
        ) as client:

            async def one(host: str, ways: list[Way]) -> None:
                for start in range(0, len(ways), MOST_PROBES // 2):
                    part = ways[start : start + MOST_PROBES // 2]
                    try:
                        results = await probe(client, agents[host], [p for way in part for p in way.probes()])
                    except AgentError as error:
                        notes.append(clip(f"paths: {host} has not tested: {error}"))
                        return
                    tests.extend(judge(part, results))

            await until(cancelled, (one(host, ways) for host, ways in by_host.items()))
    return path_findings(tests), notes, cancelled.is_set()


@contextmanager
def _cancelling(cancelled: asyncio.Event) -> Iterator[None]:
    """Sets the event on Ctrl-C and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancelled.set)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _collect(
    wanted: list[Target], config: HttpClientConfig, host_timeout_s: float
) -> tuple[list[HostReport], dict[str, str], bool]:
    cancelled = asyncio.Event()
    with (
        _cancelling(cancelled),
        Progress(
            TextColumn("auditing"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[silent]} silent"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        ) as bar,
    ):
        task = bar.add_task("hosts", total=len(wanted), silent=0)
        silent_so_far = 0

        def progress(_: str, ok: bool) -> None:
            nonlocal silent_so_far
            silent_so_far += not ok
            bar.update(task, advance=1, silent=silent_so_far)

        reports, silent = await collect(
            wanted, config, host_timeout_s=host_timeout_s, progress=progress, cancelled=cancelled
        )
    return reports, silent, cancelled.is_set()


def _membership(coordinator: str | None, path: Path | None, client: ClientOptions) -> Membership | None:
    if coordinator and path:
        raise UserError("--coordinator and --membership exclude each other: give one of them")
    if path:
        return load_membership(path)
    if not coordinator:
        return None
    config = msgspec.structs.replace(client.config("--coordinator", coordinator), timeout_s=10)
    url = coordinator.rstrip("/") + MEMBERSHIP_PATH
    try:
        status, body = fetch(url, config)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise UserError(
            f"cannot read the membership from {redact(url)}: {describe(error)}; is it the coordinator's address?"
        ) from error
    if status != 200:
        raise UserError(f"{redact(url)} answers HTTP {status}; is it the coordinator's address?")
    return parse_config(body.decode("utf-8", "replace"), Membership, redact(url))
