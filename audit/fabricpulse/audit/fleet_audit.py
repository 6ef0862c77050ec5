"""The audit of a fleet: whom to ask, asking them, having paths tested, and what is told to whom."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp
import click
import msgspec

from fabricpulse.audit.findings import of_host
from fabricpulse.audit.fleet_measure import Plan, measure
from fabricpulse.audit.fleet_progress import few, showing
from fabricpulse.audit.fleet_run import AT_A_TIME, AgentError, Target, cancelling, collect, tell, until
from fabricpulse.audit.host_list import chosen
from fabricpulse.audit.model import Finding, HostReport, Measurement, Ring, Run, clip
from fabricpulse.audit.node.wire import FINDINGS_PATH
from fabricpulse.audit.path_tests import Rail, plan_rails
from fabricpulse.audit.profile import load_profile
from fabricpulse.audit.runs import run_id, run_of
from fabricpulse.audit.sla import enough_datagrams, limit_findings
from fabricpulse.audit.storage import read
from fabricpulse.audit.targets import targets
from fabricpulse.audit.transfer_tests import Transfers
from fabricpulse.audit.wiring import Wiring, planned_places
from fabricpulse.core.config import Section, load_config, parse_config
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.host_list import expand
from fabricpulse.core.fleet.membership import Membership, load_membership
from fabricpulse.core.web.client import HttpClient, describe, fetch
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.client_options import ClientOptions
from fabricpulse.core.web.urls import redact

MEMBERSHIP_PATH = "/api/v1/membership"
# Of a run that is gone on with: what hosts have said since is what they are like.
MOST_RESUME_S = 6 * 3600.0


def run_fleet(
    coordinator: str | None,
    membership: Path | None,
    hosts: str | None,
    agent_url: str,
    client: ClientOptions,
    coordinator_client: ClientOptions,
    host_timeout_s: float,
    profile: Path | None,
    paths: bool,
    all_pairs: bool,
    leaves: Path | None,
    transfers: Transfers | None = None,
    budget_gb: float = 1000.0,
    yes: bool = False,
    resume: Path | None = None,
    publish: bool = True,
    wiring: bool = False,
    wiring_file: Path | None = None,
    wiring_wait_s: float = 35.0,
    ring_s: float = 0.0,
    checkpoint: Callable[[Run], None] = lambda _run: None,
) -> Run:
    """Asks the hosts. Ctrl-C ends the requests and makes a run of what has come. checkpoint : is given what there is so
    far, now and then, as a run that was cancelled and has no findings. Raises UserError."""
    pinned = load_profile(profile) if profile else None
    fleet = _membership(coordinator, membership, coordinator_client or ClientOptions(ca_file=client.ca_file))
    wanted = targets(fleet, chosen(hosts), agent_url)
    config = client.config("--agent-url", *(target.url for target in wanted))
    config = msgspec.structs.replace(config, timeout_s=host_timeout_s)
    started_at, begun = time.time(), time.monotonic()
    if (paths or transfers or ring_s) and fleet is None:
        raise UserError("tests of paths need the addresses of NICs: give --coordinator or --membership")
    if (wiring or wiring_file) and fleet is None:
        raise UserError("--wiring needs the NICs of the fleet: give --coordinator or --membership")
    least_gbps = pinned.paths.least_gbps if pinned else None
    if transfers and least_gbps and transfers.rate_bps < least_gbps * 1e9:
        raise UserError(
            f"--rate {transfers.rate_bps // 1_000_000} cannot show the {least_gbps:g} Gb/s of {profile}: raise it"
        )
    most_loss = pinned.paths.most_loss if pinned else None
    if transfers and most_loss and transfers.datagrams < enough_datagrams(most_loss):
        raise UserError(
            f"--datagrams {transfers.datagrams} cannot show the loss of {most_loss:g} of {profile}: give "
            f"{enough_datagrams(most_loss)} at least"
        )
    by_leaf = load_leaves(leaves) if leaves else {}
    earlier = _earlier(resume, started_at)
    heard = {report.host for report in earlier.hosts} if earlier else set()
    reports, silent, cancelled = asyncio.run(
        _collect([target for target in wanted if target.host not in heard], config, host_timeout_s)
    )
    asked = tuple(target.host for target in wanted)
    reports += [report for report in (earlier.hosts if earlier else ()) if report.host in asked]
    more: list[Finding] = []
    notes: list[str] = []
    rings_made: tuple[Ring, ...] = ()
    measured: list[Measurement] = list(earlier.measurements) if earlier else []

    def keep(measured: Sequence[Measurement]) -> None:
        duration_s = round(time.monotonic() - begun, 3)
        checkpoint(
            Run(
                run_id(started_at),
                started_at,
                duration_s,
                asked,
                tuple(reports),
                (),
                True,
                "",
                (),
                tuple(measured),
            )
        )

    if not cancelled:
        keep(measured)
    if (paths or transfers or ring_s or wiring or wiring_file) and fleet is not None and not cancelled:
        hosts_heard = {report.host for report in reports}
        plan = Plan(listen_s=wiring_wait_s, before=measured)
        if paths or transfers or ring_s:
            most = max(len(fleet.hosts), 1) if all_pairs else None
            rails = plan_rails(fleet, hosts_heard, by_leaf, most)
            if transfers is not None:
                _consent(transfers, rails, budget_gb, yes=yes)
            if ring_s:
                rings = f"rings of all hosts, {ring_s:g} s each, as fast as their NICs are"
                _ask("--nccl", f"{rings}; none if a NIC carries a job", yes=yes)
            known = {
                (host.name, nic.device): by_leaf.get(host.name, nic.leaf)
                for host in fleet.hosts
                for nic in host.nics
            }
            plan = replace(
                plan,
                rails=rails,
                leaves=known,
                transfers=transfers,
                ring_s=ring_s,
                order=[target.host for target in wanted],
            )
        if wiring or wiring_file:
            places = planned_places(load_config(wiring_file, Wiring) if wiring_file else None, fleet)
            places = {nic: place for nic, place in places.items() if nic[0] in hosts_heard}
            if not places:
                raise UserError(
                    "--wiring: no NIC has a plan: give --wiring-file, or `leaf` in the membership"
                )
            plan = replace(plan, places=places)
        result = asyncio.run(measure(plan, wanted, config, reports, keep))
        measured, cancelled = result.measurements, result.cancelled
        more += result.findings
        notes += result.notes
        rings_made = tuple(result.rings)
    if not cancelled:
        if pinned is not None:
            datagrams = transfers.datagrams if transfers else 0
            more += limit_findings(pinned.paths, [report.host for report in reports], measured, datagrams)
        if (paths or transfers or ring_s) and fleet is not None:
            more += _without_nics(fleet, reports)
    if earlier is not None:
        notes.append(f"resumed from {earlier.id}: {len(heard & set(asked))} hosts were not asked again")
    run = run_of(
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
        measured,
    )
    run = msgspec.structs.replace(run, rings=rings_made)
    if publish and not cancelled:
        not_published = asyncio.run(_publish(wanted, config, run))
        if not_published:
            note = clip(
                f"{len(not_published)} agents did not take the findings for their gate: {'; '.join(not_published[:5])}"
            )
            run = msgspec.structs.replace(run, notes=(*run.notes, note))
    return run


async def _publish(wanted: list[Target], config: HttpClientConfig, run: Run) -> list[str]:
    """Tells each host that has answered what was found about it; those that did not take it, with why."""
    heard = {report.host for report in run.hosts}
    not_published: list[str] = []
    slots = asyncio.Semaphore(AT_A_TIME)
    cancelled = asyncio.Event()
    with cancelling(cancelled):
        async with HttpClient(config, connections=AT_A_TIME) as client:

            async def one(target: Target) -> None:
                async with slots:
                    try:
                        await tell(client, target.url + FINDINGS_PATH, of_host(run, target.host))
                    except AgentError as error:
                        not_published.append(f"{target.host}: {error}")

            await until(cancelled, (one(target) for target in wanted if target.host in heard))
    return sorted(not_published)


def _earlier(path: Path | None, now: float) -> Run | None:
    """The run to go on with. Raises UserError for one that is too old to say what hosts are like."""
    if path is None:
        return None
    run = read(path, Run)
    if not -60 <= now - run.started_at <= MOST_RESUME_S:
        raise UserError(
            f"{path} is {(now - run.started_at) / 3600:.1f} h old, hosts may have changed: run without --resume"
        )
    return run


def _consent(transfers: Transfers, rails: Mapping[str, Rail], budget_gb: float, *, yes: bool) -> None:
    """Says what will be sent and asks. Raises UserError beyond the budget, and without a yes."""
    ways = sum(2 * len(pairs) for rail in rails.values() for pairs in rail.plan.rounds)
    rounds = sum(2 * len(rail.plan.rounds) for rail in rails.values())
    cost_gb = transfers.cost(ways) / 1e9
    if cost_gb > budget_gb:
        raise UserError(
            f"transfers would send up to {cost_gb:.4g} GB, the budget is {budget_gb:g} GB: lower --rate or --seconds, "
            "or raise --budget-gb"
        )
    what = (
        f"{ways} transfers in {rounds} rounds, up to {transfers.rate_bps / 1e9:g} Gb/s a NIC and {cost_gb:.3g} GB "
        "altogether; NICs that carry a job are left alone"
    )
    _ask("--transfers", what, yes=yes)


def _without_nics(fleet: Membership, reports: Sequence[HostReport]) -> list[Finding]:
    """Hosts that have answered and that no test of paths was planned for: a host that is yet to join, say."""
    why = "the membership lists no NIC of it, so no path was tested"
    unknown = [r.host for r in reports if (member := fleet.host(r.host)) is None or not member.nics]
    return [
        Finding("path-untested", "back-end", "warning", host, "", f"not tested: {why}", {"reason": why})
        for host in sorted(unknown)
    ]


def _ask(flag: str, what: str, *, yes: bool) -> None:
    """Raises UserError where nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"{flag} puts traffic on the fabric ({what}): say --yes")
    click.confirm(f"Start {what}?", abort=True, err=True)


def load_leaves(path: Path) -> dict[str, str]:
    """host -> leaf of a file `leaves: {leaf-1: "gpu-[001-064]"}`. Raises UserError."""
    found = load_config(path, Leaves)
    return {host: leaf for leaf, hosts in found.leaves.items() for host in expand(hosts)}


class Leaves(Section, frozen=True):
    """Which hosts hang on which leaf.

    leaves : leaf -> list of hosts, as Slurm writes them.
    """

    leaves: dict[str, str]


async def _collect(
    wanted: list[Target], config: HttpClientConfig, host_timeout_s: float
) -> tuple[list[HostReport], dict[str, str], bool]:
    cancelled = asyncio.Event()
    with cancelling(cancelled), showing("auditing") as shown:
        waits = dict.fromkeys(target.host for target in wanted)
        unheard = 0

        def progress(host: str, ok: bool) -> None:
            nonlocal unheard
            waits.pop(host, None)
            unheard += not ok
            shown.silent = unheard
            shown.update("hosts", len(wanted) - len(waits), len(wanted), few(waits))

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
