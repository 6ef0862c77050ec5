"""`fabricpulse why WORKLOAD`."""

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec

from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.core.output import print_json, require_writable
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.client_options import (
    COORDINATOR,
    DAEMONS,
    PROMETHEUS,
    RECEIVER,
    ClientOptions,
    client_options,
)
from fabricpulse.core.web.prometheus import PromQl
from fabricpulse.core.web.urls import check_base_url, strip_credentials
from fabricpulse.plugin_ipc.timeline import HostTimeline
from fabricpulse.why.facts import Facts
from fabricpulse.why.gather import Times, gather
from fabricpulse.why.html import html
from fabricpulse.why.infer import infer
from fabricpulse.why.journal import read_journal
from fabricpulse.why.listing import Listed, list_workloads, listing_document, listing_text
from fabricpulse.why.moment import parse_moment
from fabricpulse.why.queries import Scope
from fabricpulse.why.report import Report
from fabricpulse.why.resolve import Directory, Resolved, workload_of_pod, workload_of_slurm_job
from fabricpulse.why.sources import inspector, ras
from fabricpulse.why.sources.coordinator import read_leaves
from fabricpulse.why.sources.flight_facts import mismatches, ranks, waits
from fabricpulse.why.sources.flight_recorder import Dumps, read_dumps
from fabricpulse.why.sources.timeline import Exporters, read_timelines
from fabricpulse.why.text import text
from fabricpulse.why.trace import write_perfetto, write_trace

_EVENTS_S = 900
_LEAST_TIMELINE_S = 300
# Names that the tools of Perfetto give to files of its own form.
_PERFETTO = (".pftrace", ".perfetto-trace", ".pb")


@dataclass(frozen=True)
class Address:
    """A server beside Prometheus, and what is shown to it."""

    url: str
    config: HttpClientConfig


@dataclass(frozen=True)
class Name:
    """What the person has typed; one of them."""

    workload: str | None = None
    slurm_job: str | None = None
    pod: str | None = None

    @property
    def typed(self) -> str:
        """As it was typed."""
        return self.workload or self.slurm_job or self.pod or ""

    async def resolve(self, directory: Directory) -> Resolved:
        """The workload, and where. Raises UserError."""
        if self.slurm_job is not None:
            return await workload_of_slurm_job(directory, self.slurm_job)
        if self.pod is not None:
            return await workload_of_pod(directory, self.pod)
        return Resolved(self.workload or "")


@dataclass(frozen=True)
class Job:
    """What the job says by itself. dumps : of Flight Recorder. log : of Inspector. ras_s : between answers of RAS."""

    dumps: Dumps
    log: inspector.Log | None
    ras_address: str | None
    ras_s: float
    timeout_s: float

    @property
    def has_files(self) -> bool:
        """Whether there is an answer although nobody else answers."""
        return bool(self.dumps.found) or self.log is not None

    async def ask_ras(self) -> ras.RasFacts | UserError | None:
        """None: not requested. What it raises is returned: what others know is worth saying without it."""
        if self.ras_address is None:
            return None
        try:
            return await ras.ask(self.ras_address, self.ras_s, self.timeout_s)
        except UserError as error:
            return error


@click.command("why")
@click.argument("workload", required=False)
@click.option("--slurm", "slurm_job", metavar="JOBID", help="Instead of WORKLOAD: a Slurm job.")
@click.option(
    "--pod",
    metavar="[NAMESPACE/]NAME",
    help="Instead of WORKLOAD: a pod, best with kube-state-metrics in the same Prometheus.",
)
@click.option("--now", is_flag=True, help="Ask about now; the default.")
@click.option("--at", "at", metavar="TIME", help="Ask about a moment: RFC 3339, seconds since 1970, or -15m.")
@click.option("--between", nargs=2, metavar="FROM TO", help="Ask about all of the time between two moments.")
@click.option(
    "--window",
    "window_s",
    default=120,
    show_default=True,
    type=click.IntRange(30, 86_400),
    help="Seconds over which rates are taken, four scrape intervals or more.",
)
@click.option(
    "--baseline",
    "baseline_s",
    default=3600,
    show_default=True,
    type=click.IntRange(60, 30 * 86_400),
    help="Compare with so many seconds earlier.",
)
@click.option(
    "--prometheus",
    "url",
    default="http://127.0.0.1:9090",
    show_default=True,
    envvar=PROMETHEUS,
    show_envvar=True,
    help="URL of Prometheus, Thanos, Mimir or VictoriaMetrics.",
)
@click.option(
    "--selector", default="", help="Matchers that each series must have, such as 'cluster=\"gpu-a\"'."
)
@click.option(
    "--receiver",
    default="",
    envvar=RECEIVER,
    show_envvar=True,
    help="URL of the remediation receiver, for what was done already.",
)
@client_options("the receiver", RECEIVER, prefix="receiver", parameter="receiver_client")
@click.option(
    "--coordinator",
    default="",
    envvar=COORDINATOR,
    show_envvar=True,
    help="URL of the clocksync coordinator, for the leaves between which flows go.",
)
@client_options("the coordinator", COORDINATOR, prefix="coordinator", parameter="coordinator_client")
@click.option(
    "--flight-recorder",
    "recorded",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Dumps of PyTorch's Flight Recorder, files or folders; repeatable. Prometheus need not answer then.",
)
@click.option(
    "--inspector",
    "inspected",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Files of NCCL's Inspector (JSON), files or folders; repeatable. Prometheus need not answer then.",
)
@click.option(
    "--ras",
    "ras_address",
    metavar="HOST[:PORT]",
    help="Ask NCCL's RAS service at any process of the job, twice. Prometheus need not answer then.",
)
@click.option(
    "--ras-seconds",
    "ras_s",
    default=10.0,
    show_default=True,
    type=click.FloatRange(1, 600),
    help="Seconds between the two answers of RAS, longer than a step of the job.",
)
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a timeline for Perfetto to this file: asks the qp exporters of the job's hosts. Perfetto's own form "
    "where the name ends in .pftrace, .perfetto-trace or .pb, else Chrome's JSON.",
)
@click.option(
    "--qp-url",
    "qp_url",
    default="http://{host}:9612",
    show_default=True,
    envvar="FABRICPULSE_QP_URL",
    show_envvar=True,
    help="For --trace: URL of the qp exporter of a host; {host} is its label instance.",
)
@client_options("the qp exporters", DAEMONS, prefix="qp", parameter="qp_client")
@click.option(
    "--grafana", default="", envvar="FABRICPULSE_GRAFANA", show_envvar=True, help="URL of Grafana, for links."
)
@click.option("--tenant", default="", help="X-Scope-OrgID to send, for Mimir.")
@client_options("Prometheus", PROMETHEUS)
@click.option(
    "--timeout",
    "timeout_s",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0.1, 600),
    help="Seconds for one question.",
)
@click.option(
    "--output",
    "form",
    type=click.Choice(["text", "json", "html"]),
    default="text",
    show_default=True,
    help="Output format.",
)
def command(
    workload: str | None,
    slurm_job: str | None,
    pod: str | None,
    now: bool,
    at: str | None,
    between: tuple[str, str] | None,
    window_s: int,
    baseline_s: int,
    url: str,
    selector: str,
    receiver: str,
    receiver_client: ClientOptions,
    coordinator: str,
    coordinator_client: ClientOptions,
    recorded: tuple[Path, ...],
    inspected: tuple[Path, ...],
    ras_address: str | None,
    ras_s: float,
    trace_file: Path | None,
    qp_url: str,
    qp_client: ClientOptions,
    grafana: str,
    tenant: str,
    client: ClientOptions,
    timeout_s: float,
    form: str,
) -> None:
    """Say why a job is slow, or where it hangs, with the evidence.

    Causes come from what Prometheus has, the most likely one first.
    Without a WORKLOAD: lists the workloads that run.
    Exits with 0 whatever the answer is; with 1 when no source answers.
    """
    named = (workload is not None) + (slurm_job is not None) + (pod is not None)
    asks = recorded or inspected or ras_address is not None or trace_file is not None
    lists = not named and form != "html" and not asks
    if named != 1 and not lists:
        raise OptionError("give one of WORKLOAD, --slurm JOBID, --pod NAME")
    if "" in (workload, slurm_job, pod):
        raise OptionError("the name is empty: is a variable not set?")
    if now + (at is not None) + (between is not None) > 1:
        raise OptionError("--now, --at and --between exclude each other")
    clock_s = time.time()
    at_s = clock_s if at is None else parse_moment("--at", at, clock_s)
    events_s = max(_EVENTS_S, window_s)
    if between:
        start_s, at_s = (parse_moment("--between", moment, clock_s) for moment in between)
        if at_s - start_s < 30:
            raise OptionError("--between: FROM must be at least 30 s before TO")
        window_s = events_s = round(at_s - start_s)
        baseline_s = max(baseline_s, window_s + 60)
    config = msgspec.structs.replace(client.config("--prometheus", url), timeout_s=timeout_s)
    # What authenticates us to Prometheus is nothing that the receiver, another server, may learn.
    asked = None
    if receiver:
        theirs = receiver_client.config("--receiver", receiver)
        asked = Address(receiver, msgspec.structs.replace(theirs, timeout_s=timeout_s))
    placed = None
    if coordinator:
        of_fleet = coordinator_client.config("--coordinator", coordinator)
        placed = Address(coordinator, msgspec.structs.replace(of_fleet, timeout_s=timeout_s))
    if grafana:
        try:
            check_base_url("--grafana", grafana)
        except ValueError as error:
            raise OptionError(str(error)) from error
    scope = Scope("", (), selector.strip().strip("{}"), window_s, events_s)
    if lists:
        found = asyncio.run(_list(url, config, tenant, scope, at_s))
        if form == "json":
            print_json(listing_document(found))
        else:
            click.echo(listing_text(found), nl=False)
        return
    require_writable(trace_file)
    times = Times(at_s, at_s - baseline_s, max(3600.0, 2.0 * window_s))
    if ras_address is not None:
        if at is not None or between:
            raise OptionError("--ras shows the present only; leave out --at and --between")
        ras.host_and_port(ras_address)
    dumps = read_dumps(recorded) if recorded else Dumps()
    job = Job(dumps, inspector.read_logs(inspected) if inspected else None, ras_address, ras_s, timeout_s)
    name = Name(workload, slurm_job, pod)
    exporters = None
    if trace_file is not None:
        seconds = min(round(clock_s - at_s) + max(window_s, _LEAST_TIMELINE_S), 86_400)
        exporters = Exporters(qp_url, _qp_config(qp_url, qp_client, timeout_s), "", seconds)
    report, timelines = asyncio.run(
        _report(url, config, tenant, scope, times, asked, placed, grafana, job, name, exporters)
    )
    if trace_file is not None:
        try:
            if trace_file.suffix in _PERFETTO:
                with trace_file.open("wb") as packed:
                    write_perfetto(report, dumps.found, packed, timelines)
            else:
                with trace_file.open("w", encoding="utf-8") as out:
                    write_trace(report, dumps.found, out, timelines)
        except OSError as error:
            raise UserError(f"--trace: cannot write {trace_file}: {error.strerror}") from error
    if form == "json":
        print_json(report.document())
    else:
        click.echo(html(report) if form == "html" else text(report), nl=False)


async def _report(
    url: str,
    config: HttpClientConfig,
    tenant: str,
    scope: Scope,
    times: Times,
    receiver: Address | None,
    coordinator: Address | None,
    grafana: str,
    job: Job,
    name: Name,
    exporters: Exporters | None,
) -> tuple[Report, list[HostTimeline]]:
    async with PromQl(url, config, tenant) as prom:
        resolved, unresolved = await _resolved(
            name, Directory(prom, times.at_s, scope.window_s, scope.extra), job
        )
        scope = replace(scope, workload=resolved.workload, only=resolved.hosts)
        from_ras, gathered = await asyncio.gather(job.ask_ras(), _gather(prom, scope, times))
    facts, queries = _whole(gathered, from_ras, job, scope, times)
    if unresolved and not isinstance(gathered, UserError):
        facts = replace(facts, limits=(*facts.limits, unresolved))
    if found := job.dumps.found:
        ranked, limits = (*facts.ranks, *ranks(found)), (*facts.limits, *job.dumps.limits)
        facts = replace(facts, ranks=ranked, mismatches=mismatches(found), limits=limits)
        # Those of exporters know hosts.
        facts = replace(facts, undumped=job.dumps.missing, waits=facts.waits or waits(found))
    if job.log is not None:
        facts = inspector.add(facts, job.log, facts.window_s)
    if isinstance(from_ras, ras.RasFacts):
        facts = ras.add(facts, from_ras)
    if coordinator is not None:
        leaves, unplaced = await read_leaves(coordinator.url, coordinator.config, facts)
        facts = replace(facts, leaves=leaves, limits=(*facts.limits, *unplaced))
    journal, problem = None, ""
    if receiver is not None:
        journal, problem = await read_journal(
            receiver.url, receiver.config, facts, times.at_s - times.history_s
        )
    answer = infer(facts)
    timelines: list[HostTimeline] = []
    missing: tuple[str, ...] = (problem,) if problem else ()
    if exporters is not None:
        exporters = replace(exporters, workload=facts.workload)
        timelines, silent = await read_timelines(exporters, (h.name for h in facts.hosts))
        missing = (*missing, *silent)
    if missing:
        answer = replace(answer, unknown=(*answer.unknown, *missing))
    links = (strip_credentials(url), strip_credentials(grafana))
    return Report(answer, queries, facts.bandwidth_history, *links, journal, facts.pace_history), timelines


def _qp_config(url: str, client: ClientOptions, timeout_s: float) -> HttpClientConfig:
    """Raises OptionError."""
    if "{host}" not in url:
        raise OptionError(f"--qp-url {url}: there is no {{host}} in it")
    named = url.replace("{host}", "host")
    config = client.config("--qp-url", named)
    # Names of hosts are what labels say: what proves who we are goes to none that cannot prove who it is.
    if (config.basic_auth or config.token_file or "@" in named) and not named.startswith("https://"):
        raise OptionError("--qp-url must begin with https:// where there is a password or token")
    return msgspec.structs.replace(config, timeout_s=timeout_s)


async def _list(url: str, config: HttpClientConfig, tenant: str, scope: Scope, at_s: float) -> list[Listed]:
    async with PromQl(url, config, tenant) as prom:
        return await list_workloads(Directory(prom, at_s, scope.window_s, scope.extra))


async def _resolved(name: Name, directory: Directory, job: Job) -> tuple[Resolved, str]:
    """The workload, and "" or why it is not known which one is meant, as far as there is another answer. Raises
    UserError."""
    try:
        return await name.resolve(directory), ""
    except UserError as error:
        if not job.has_files and job.ras_address is None:
            raise
        return Resolved(name.typed), str(error)


_Gathered = tuple[Facts, dict[str, str]]


async def _gather(prom: PromQl, scope: Scope, times: Times) -> _Gathered | UserError:
    """The facts of Prometheus with their queries, or why there are none."""
    try:
        return await gather(prom, scope, times)
    except* UserError as errors:
        error = _first(errors)
    return error


def _whole(
    gathered: _Gathered | UserError,
    from_ras: ras.RasFacts | UserError | None,
    job: Job,
    scope: Scope,
    times: Times,
) -> _Gathered:
    """The facts with what did not answer among what is not known. Raises UserError where nobody has."""
    failed = [one for one in (gathered, from_ras) if isinstance(one, UserError)]
    if isinstance(gathered, UserError):
        if not job.has_files and not isinstance(from_ras, ras.RasFacts):
            raise failed[0] if len(failed) == 1 else UserError("; ".join(map(str, failed)))
        facts = Facts(scope.workload, times.at_s, float(scope.window_s), unanswered=(str(gathered),))
        gathered = facts, {}
    facts, queries = gathered
    if isinstance(from_ras, UserError):
        facts = replace(facts, limits=(*facts.limits, str(from_ras)))
    return facts, queries


def _first(errors: BaseExceptionGroup[UserError]) -> UserError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, UserError)  # noqa: S101 - except* has selected them
    return error
