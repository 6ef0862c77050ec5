"""The audit of a fleet, phase by phase: asking the hosts, having paths tested, judging, telling the agents."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import aiohttp
import msgspec

from fabricpulse.audit.boot import own_boot
from fabricpulse.audit.checks.fleet import host_silent, path_untested
from fabricpulse.audit.compare.clocks import ClockOffset, clock_findings
from fabricpulse.audit.compare.findings import of_host
from fabricpulse.audit.compare.profile import PathLimits, Profile, load_profile
from fabricpulse.audit.compare.runs import run_id, run_of
from fabricpulse.audit.compare.sla import limit_findings
from fabricpulse.audit.compare.tested import tests_of
from fabricpulse.audit.fleet.agent_client import BACK_S, AgentClient
from fabricpulse.audit.fleet.host_list import chosen
from fabricpulse.audit.fleet.measure import Measured, measure
from fabricpulse.audit.fleet.plan import FleetOptions, load_leaves, plan_of, refuse
from fabricpulse.audit.fleet.progress import few, showing
from fabricpulse.audit.fleet.run import (
    AT_A_TIME,
    AgentError,
    Target,
    cancelling,
    collect,
    post_document,
    until,
)
from fabricpulse.audit.fleet.targets import targets
from fabricpulse.audit.model import Finding, HostReport, Measurement, Run, clip
from fabricpulse.audit.node.wire import FINDINGS_PATH
from fabricpulse.audit.storage import read
from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.membership import Membership, load_membership
from fabricpulse.core.web.client import describe, fetch
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.client_options import ClientOptions
from fabricpulse.core.web.urls import redact

MEMBERSHIP_PATH = "/api/v1/membership"
# Of a run that is gone on with: what hosts have said since is what they are like.
MOST_RESUME_S = 6 * 3600.0


def run_fleet(options: FleetOptions, checkpoint: Callable[[Run], None] = lambda _run: None) -> Run:
    """Asks the hosts, has paths tested, evaluates, and posts the result to the agents. Ctrl-C ends the requests and
    makes a run of what has come. checkpoint : is given what there is so far, now and then, as a run that was cancelled
    and has no findings. Raises UserError.
    """
    pinned = load_profile(options.profile) if options.profile else None
    of_coordinator = options.coordinator_client or ClientOptions(ca_file=options.client.ca_file)
    fleet = _membership(options.coordinator, options.membership, of_coordinator)
    wanted = targets(fleet, chosen(options.hosts), options.agent_url)
    config = options.client.config("--agent-url", *(target.url for target in wanted))
    config = msgspec.structs.replace(config, timeout_s=options.host_timeout_s)
    refuse(options, fleet, pinned)
    leaves = load_leaves(options.leaves) if options.leaves else {}
    run = _Run(options, pinned, tuple(target.host for target in wanted), checkpoint)
    run.collect(wanted, config)
    if fleet is not None and options.measures and not run.cancelled:
        run.measure(fleet, leaves, wanted, config)
    found = run.judged(fleet)
    if options.publish and not found.cancelled:
        members = {host.name for host in fleet.hosts} if fleet else set[str]()
        limits = pinned.paths if pinned else None
        found = _published(wanted, config, found, members, limits)
    return found


class _Run:
    """A run under way: what hosts have said, and what was measured between them."""

    def __init__(
        self,
        options: FleetOptions,
        pinned: Profile | None,
        asked: tuple[str, ...],
        checkpoint: Callable[[Run], None],
    ) -> None:
        self._options = options
        self._pinned = pinned
        self._asked = asked
        self._checkpoint = checkpoint
        self._started_at, self._begun = time.time(), time.monotonic()
        self._earlier = _earlier(options.resume, self._started_at)
        self._oldest_at = _begun_at(self._earlier) if self._earlier else 0.0
        self._reports: list[HostReport] = []
        self._silent: dict[str, str] = {}
        of_earlier = self._earlier.measurements if self._earlier else ()
        own = [m for m in of_earlier if {m.source_host, m.target_host} <= set(asked)]
        self._measured = Measured(own)
        self._clocks: dict[str, ClockOffset] = {}
        self.cancelled = False

    def collect(self, wanted: Sequence[Target], config: HttpClientConfig) -> None:
        """Asks all hosts that an interrupted run had no answer of."""
        before = self._earlier.hosts if self._earlier else ()
        answered = {report.host for report in before}
        to_ask = [target for target in wanted if target.host not in answered]
        self._reports, self._silent, self.cancelled = asyncio.run(
            _collect(to_ask, config, self._options.host_timeout_s, self._clocks)
        )
        self._reports += [report for report in before if report.host in self._asked]
        if not self.cancelled:
            self._keep(self._measured.measurements)

    def measure(
        self,
        fleet: Membership,
        leaves: Mapping[str, str],
        wanted: Sequence[Target],
        config: HttpClientConfig,
    ) -> None:
        """Has the agents test what was asked for, once people agree. leaves : of hosts. Raises UserError."""
        answered = {report.host for report in self._reports}
        order = [target.host for target in wanted]
        plan = plan_of(self._options, fleet, leaves, answered, order, self._measured.measurements)
        self._measured = asyncio.run(measure(plan, wanted, config, self._reports, self._keep))
        self.cancelled = self._measured.cancelled

    def judged(self, fleet: Membership | None) -> Run:
        """The run with its findings."""
        found = self._measured
        more, notes = clock_findings(self._clocks, _asker(self._reports))
        more += found.findings
        notes += found.notes
        if not self.cancelled:
            if self._pinned is not None:
                hosts = [report.host for report in self._reports]
                more += limit_findings(self._pinned.paths, hosts, found.measurements, self._datagrams())
            if self._options.tests_paths and fleet is not None:
                more += _without_nics(fleet, self._reports)
        again: set[str] = set()
        if self._earlier is not None:
            again = {report.host for report in self._earlier.hosts} & set(self._asked)
            notes.append(f"resumed from {self._earlier.id}: {len(again)} hosts were not asked again")
            if again:
                notes.append(f"clocks: not compared of hosts that were not asked again ({len(again)})")
        run = run_of(
            self._reports,
            self._silent,
            self._pinned,
            str(self._options.profile or ""),
            self._asked,
            self._started_at,
            self._duration_s(),
            self.cancelled,
            more,
            tuple(notes),
            found.measurements,
        )
        return msgspec.structs.replace(
            run,
            rings=tuple(found.rings),
            not_asked=tuple(sorted(again)),
            located=tuple(found.located),
            rate_bps=float(self._options.transfers.rate_bps) if self._options.transfers else 0.0,
            oldest_at=self._oldest_at,
            datagrams=self._datagrams(),
        )

    def _keep(self, measured: Sequence[Measurement]) -> None:
        self._checkpoint(
            Run(
                run_id(self._started_at),
                self._started_at,
                self._duration_s(),
                self._asked,
                tuple(self._reports),
                (),
                True,
                "",
                (),
                tuple(measured),
                oldest_at=self._oldest_at,
                datagrams=self._datagrams(),
            )
        )

    def _datagrams(self) -> int:
        """Of one transfer; of what an earlier run has measured, as many as it has sent."""
        own = self._options.transfers.datagrams if self._options.transfers else 0
        if self._earlier is None or all(m.kind != "loss" for m in self._earlier.measurements):
            return own
        return min(own or self._earlier.datagrams, self._earlier.datagrams)

    def _duration_s(self) -> float:
        return round(time.monotonic() - self._begun, 3)


def _asker(reports: Sequence[HostReport]) -> str:
    """The host among them that this process runs on, "" if none: theirs is the same kernel, and so the same clock."""
    boot = own_boot()
    return next((report.host for report in reports if boot and report.boot == boot), "")


def _published(
    wanted: Sequence[Target],
    config: HttpClientConfig,
    run: Run,
    members: Collection[str],
    limits: PathLimits | None,
) -> Run:
    """The run, posted to its agents, with a note of those that did not take it."""
    not_published = asyncio.run(_publish(wanted, config, run, members, limits))
    if not not_published:
        return run
    note = clip(
        f"{len(not_published)} agents did not take the findings for their gate: {'; '.join(not_published[:5])}"
    )
    return msgspec.structs.replace(run, notes=(*run.notes, note))


async def _publish(
    wanted: Sequence[Target],
    config: HttpClientConfig,
    run: Run,
    members: Collection[str],
    limits: PathLimits | None,
) -> list[str]:
    """Tells each host that has answered what was found about it; those that did not take it, with why."""
    answered = {report.host for report in run.hosts}
    silent = {finding.host for finding in run.findings if finding.check == host_silent.CHECK.id}
    tested = tests_of(run, limits)
    not_published: list[str] = []
    slots = asyncio.Semaphore(AT_A_TIME)
    cancelled = asyncio.Event()
    with cancelling(cancelled):
        async with AgentClient(config, connections=AT_A_TIME) as client:

            async def one(target: Target) -> None:
                async with slots:
                    # Who had fallen silent may be back, and is to know of it; who is not costs one wait more.
                    if target.host in silent and not await client.is_alive(target.url, BACK_S):
                        not_published.append(f"{target.host}: its agent has fallen silent")
                        return
                    try:
                        await post_document(
                            client, target.url + FINDINGS_PATH, of_host(run, target.host, tested, members)
                        )
                    except AgentError as error:
                        not_published.append(f"{target.host}: {error}")

            await until(cancelled, (one(target) for target in wanted if target.host in answered))
    return sorted(not_published)


def _earlier(path: Path | None, now: float) -> Run | None:
    """The run to go on with. Raises UserError for one that is too old to say what hosts are like."""
    if path is None:
        return None
    run = read(path, Run)
    age_s = now - _begun_at(run)
    if not -60 <= age_s <= MOST_RESUME_S:
        raise UserError(
            f"{path} has results that are {age_s / 3600:.1f} h old, hosts may have changed: run without --resume"
        )
    return run


def _begun_at(run: Run) -> float:
    """When the oldest of its results may be from."""
    return run.oldest_at or run.started_at


def _without_nics(fleet: Membership, reports: Sequence[HostReport]) -> list[Finding]:
    """Hosts that have answered and that no test of paths was planned for: a host that is yet to join, say."""
    why = "the membership lists no NIC of it, so no path was tested"
    unknown = [r.host for r in reports if (member := fleet.host(r.host)) is None or not member.nics]
    return [
        path_untested.CHECK.finding(host, "", f"not tested: {why}", {"reason": why})
        for host in sorted(unknown)
    ]


async def _collect(
    wanted: Sequence[Target],
    config: HttpClientConfig,
    host_timeout_s: float,
    clocks: dict[str, ClockOffset],
) -> tuple[list[HostReport], dict[str, str], bool]:
    cancelled = asyncio.Event()
    with cancelling(cancelled), showing("auditing") as shown:
        waits = dict.fromkeys(target.host for target in wanted)
        unanswered = 0

        def progress(host: str, ok: bool) -> None:
            nonlocal unanswered
            waits.pop(host, None)
            unanswered += not ok
            shown.silent = unanswered
            shown.update("hosts", len(wanted) - len(waits), len(wanted), few(waits))

        reports, silent = await collect(
            wanted,
            config,
            host_timeout_s=host_timeout_s,
            progress=progress,
            cancelled=cancelled,
            clocks=clocks,
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
