"""`fabricpulse audit`."""

import re
import socket
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fabricpulse.audit.host_reader import HostReader
from fabricpulse.audit.local import audit_host
from fabricpulse.audit.model import Finding, FleetFindings, HostReport, Run
from fabricpulse.audit.nvml import ask as ask_nvml
from fabricpulse.audit.profile import learn, load_profile
from fabricpulse.audit.runs import run_of
from fabricpulse.audit.storage import encode, keep, read, stamp_name
from fabricpulse.core.errors import UserError
from fabricpulse.core.files import atomic_write
from fabricpulse.core.options import DaemonOptions, daemon_options
from fabricpulse.core.output import OutputFormat, output_option, print_json, printable
from fabricpulse.core.run_dir import clock_page_path
from fabricpulse.core.web.client_options import COORDINATOR, client_options
from fabricpulse.hostinfo.gid_rules import NcclRules
from fabricpulse.hostinfo.sources import host_sources

# Exit codes: of a health check, so that a script can tell a bad host from an audit that could not be made.
GOOD, FOUND = 0, 10
# Nothing is known: no audit, or one that is too old.
NOT_KNOWN = 11
STATE = Path("/var/lib/fabricpulse/audit")
DEFAULT_LISTEN = ":9617"
# Reports that `local --keep` leaves.
KEPT = 30


@click.group("audit")
def command() -> None:
    """Audit hosts: is the fleet set up as it should be, and what is odd?

    Exit code 0: no error was found; 10: there is one; 1 or 2: the audit could not be made.
    """


def resolve(name: str) -> list[str]:
    """Addresses of a host's name, [] if it does not resolve."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({str(entry[4][0]) for entry in found})


def own_reader(
    root: Path = Path("/"), rails: dict[str, str] | None = None, nccl: NcclRules | None = None
) -> HostReader:
    """Of this host, or of a copied tree: of that, nothing is asked of the running kernel."""
    if root == Path("/"):
        return HostReader(
            host_sources(),
            root,
            nccl=nccl or NcclRules(),
            rails=rails or {},
            clock_page=clock_page_path(),
            resolve=resolve,
            nvml=ask_nvml,
        )
    if not (root / "sys").is_dir() and not (root / "proc").is_dir():
        raise UserError(
            f"{root} is no tree of a host: it has neither sys nor proc; set --root to a folder that has"
        )
    return HostReader(host_sources(root / "sys"), root, rails=rails or {}, disk=lambda _: None)


@command.command("local")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Audit this tree (sys, proc, etc) in place of /.",
)
@click.option(
    "--profile", "--sla", "profile", type=click.Path(path_type=Path), help="Values that the host must have."
)
@click.option(
    "--output",
    type=click.Choice(["text", "json", "junit"]),
    default="text",
    show_default=True,
    help="Output format.",
)
@click.option("--all", "every", is_flag=True, help="Show what passed, too.")
@click.option("--html", type=click.Path(path_type=Path), help="Write the page here, too.")
@click.option("--keep", "keep_report", is_flag=True, help="Keep the report for `gate`, in --state.")
@click.option(
    "--state", type=click.Path(path_type=Path), default=STATE, show_default=True, help="Folder of reports."
)
@click.option(
    "--textfile", type=click.Path(path_type=Path), help="Write metrics for node_exporter here (*.prom)."
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning"]),
    default="error",
    show_default=True,
    help="Least severity of a finding that makes the exit code 10.",
)
@click.pass_context
def local(
    ctx: click.Context,
    root: Path,
    profile: Path | None,
    output: str,
    every: bool,
    html: Path | None,
    keep_report: bool,
    state: Path,
    textfile: Path | None,
    fail_on: str,
) -> None:
    """Audit this host alone, without any daemon."""
    pinned = load_profile(profile) if profile else None
    name = socket.gethostname() if root == Path("/") else (own_name(root) or root.name)
    report = audit_host(name, own_reader(root))
    run = run_of([report], {}, pinned, str(profile or ""), (name,), report.collected_at, report.duration_s)
    if keep_report:
        keep(state, stamp_name(report.collected_at), encode(report), KEPT)
    if textfile is not None:
        write_textfile(report, textfile)
    write_page(run, html)
    write(run, output, every=every)
    ctx.exit(exit_code(run.findings, fail_on))


def write_page(run: Run, path: Path | None) -> None:
    """The HTML page, if there is a path. Raises UserError."""
    if path is None:
        return
    from fabricpulse.audit.page import page

    write_file(path, page(run).encode("utf-8", "replace"))


def write_file(path: Path, data: bytes) -> None:
    """Raises UserError."""
    try:
        atomic_write(path, data, durable=False)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; choose a folder that exists and is writable"
        ) from error


def write_textfile(report: HostReport, path: Path) -> None:
    """The metrics of a report. Raises UserError."""
    from fabricpulse.audit.expose import expose
    from fabricpulse.core.metrics.exposition import Exposition

    exposition = Exposition()
    expose(report, exposition)
    write_file(path, exposition.render(count_samples=False))


def own_name(root: Path) -> str:
    """The name that a copied tree gives its host."""
    try:
        name = (root / "proc/sys/kernel/hostname").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return name if re.fullmatch(r"[\w.-]{1,95}", name, re.ASCII) else ""


def write(run: Run, output: str, *, every: bool = False) -> None:
    """Prints a run. Late imports: a health check must not pay for tables."""
    if output == "json":
        click.echo(encode(run).decode())
    elif output == "junit":
        from fabricpulse.audit.junit import junit

        click.echo(junit(run.hosts, run.findings), nl=False)
    else:
        from fabricpulse.audit.show import show_run

        show_run(run, Console(), every=every)


def exit_code(findings: tuple[Finding, ...], fail_on: str) -> int:
    """FOUND if a finding is as bad as `fail_on` or worse."""
    bad = ("error",) if fail_on == "error" else ("error", "warning")
    return FOUND if any(finding.severity in bad for finding in findings) else GOOD


@command.command("learn")
@click.argument("run", type=click.Path(path_type=Path))
def learn_command(run: Path) -> None:
    """Print a profile file of what most hosts of RUN have: of a good fleet."""
    click.echo(learn(read(run, Run)), nl=False)


@command.command("show")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="Write the page here instead.")
@click.option(
    "--output",
    type=click.Choice(["text", "json", "junit"]),
    default="text",
    show_default=True,
    help="Output format.",
)
@click.option("--all", "every", is_flag=True, help="Show what passed, too.")
def show_command(run: Path, html: Path | None, output: str, every: bool) -> None:
    """Print a run that was kept, or make its page."""
    found = read(run, Run)
    if html is not None:
        write_page(found, html)
    else:
        write(found, output, every=every)


@command.command("diff")
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.pass_context
def diff_command(ctx: click.Context, before: Path, after: Path) -> None:
    """Print what two runs differ in. Exit code 10: there are new findings."""
    from fabricpulse.audit.diff import diff_runs

    found = diff_runs(read(before, Run), read(after, Run))
    for sign, findings in (("+", found.new), ("-", found.gone)):
        for finding in findings:
            where = " ".join(filter(None, (finding.host or "fleet", finding.subject)))
            click.echo(printable(f"{sign} {finding.severity} {finding.check} {where}: {finding.summary}"))
    for sign, hosts in (("+", found.added), ("-", found.removed)):
        for host in hosts:
            click.echo(f"{sign} host {host}")
    click.echo(f"{len(found.new)} new, {len(found.gone)} gone, {len(found.same)} in both")
    ctx.exit(FOUND if found.new else GOOD)


@command.command("labels")
@click.argument("run", type=click.Path(path_type=Path))
@output_option
def labels_command(run: Path, output: OutputFormat) -> None:
    """Print the commands that label Kubernetes nodes by RUN: passed, failed or unknown. Pipe them into sh."""
    from fabricpulse.audit.labels import kubectl_lines, node_labels

    found = read(run, Run)
    labels = node_labels(found)
    if output == "json":
        print_json([{"node": one.host, "audit": one.state, "reason": one.reason} for one in labels])
    else:
        for line in kubectl_lines(found, labels):
            click.echo(line)


@command.command("checks")
def checks_command() -> None:
    """List the checks."""
    from fabricpulse.audit.fleet_checks import all_checks

    for check in all_checks().values():
        click.echo(f"{check.id:24} {check.category:10} {check.severity:8} {check.title}")


@command.command("gate")
@click.option(
    "--state", type=click.Path(path_type=Path), default=STATE, show_default=True, help="Folder of reports."
)
@click.option(
    "--max-age",
    "max_age_h",
    type=float,
    default=24.0,
    show_default=True,
    help="How old the last audit may be, in hours.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning"]),
    default="error",
    show_default=True,
    help="Least severity of a finding that closes the gate.",
)
@click.option("--ignore", multiple=True, metavar="CHECK", help="A check that does not count; repeatable.")
@click.option("--strict", is_flag=True, help="What is unknown makes the answer not known.")
@output_option
@click.pass_context
def gate_command(
    ctx: click.Context,
    state: Path,
    max_age_h: float,
    fail_on: str,
    ignore: tuple[str, ...],
    strict: bool,
    output: OutputFormat,
) -> None:
    """Tell from the last audit whether this host may take a job.

    Both the host's own audit and what the last run of the fleet said of it count; what is unknown is listed.

    Exit code 0: yes; 10: no, an error was found; 11: not known, there is no audit or it is too old.
    """
    from fabricpulse.audit.gate import gate

    last = state / "last.json"
    report = read(last, HostReport) if last.exists() else None
    told = state / "fleet.json"
    answer = gate(
        report,
        time.time(),
        max_age_h * 3600,
        fail_on=fail_on,
        ignore=ignore,
        fleet=read(told, FleetFindings) if told.exists() else None,
        strict=strict,
    )
    if output == "json":
        print_json({"open": answer.open, "reasons": answer.reasons, "unknown": answer.unknown})
    else:
        click.echo({True: "open", False: "closed", None: "not known"}[answer.open])
        for reason in answer.reasons:
            click.echo(printable(f"  {reason}"))
        for line in answer.unknown:
            click.echo(printable(f"  unknown: {line}"))
    ctx.exit({True: GOOD, False: FOUND, None: NOT_KNOWN}[answer.open])


@command.command("node")
@daemon_options(DEFAULT_LISTEN)
def node_command(options: DaemonOptions) -> None:
    """Serve audits of this host to `run`. Who asks must show the token."""
    # Late: a health check needs neither a server nor its memory.
    from fabricpulse.audit.node.agent import Agent
    from fabricpulse.audit.node.config import NodeConfig
    from fabricpulse.core.config import load_config
    from fabricpulse.core.daemon import Lifetime, run_daemon

    config = load_config(options.config, NodeConfig)
    nccl = NcclRules(gid_index=config.nccl_gid_index)

    async def serve(life: Lifetime) -> None:
        await Agent(config, options, life, lambda rails: own_reader(rails=rails, nccl=nccl)).run()

    run_daemon(serve)


@command.command("run")
@click.option(
    "--coordinator",
    metavar="URL",
    help="Take the hosts from this clocksync coordinator: http://monitor:9614.",
)
@click.option(
    "--membership", type=click.Path(path_type=Path), help="Take the hosts from this membership file."
)
@click.option(
    "--hosts", default="", metavar="LIST", help="Only these, as Slurm writes lists: gpu-[001-016],gpu-020."
)
@click.option("--agent-url", default="http://{host}:9617", show_default=True, help="URL of a host's agent.")
@client_options("the agents")
@client_options("the coordinator", COORDINATOR, prefix="coordinator", parameter="coordinator_client")
@click.option(
    "--paths", is_flag=True, help="Test pairs of NICs too: connectivity and MTU, by some echoes each."
)
@click.option("--all-pairs", is_flag=True, help="With --paths: all pairs, not 2 log2 n rounds of them.")
@click.option(
    "--transfers",
    is_flag=True,
    help="Measure loss, bandwidth and one-way delay of pairs, by real traffic; implies --paths.",
)
@click.option("--yes", is_flag=True, help="With --transfers: do not ask.")
@click.option(
    "--rate",
    "rate_mbps",
    type=click.IntRange(1, 10_000_000),
    default=10_000,
    show_default=True,
    help="With --transfers: most that a NIC sends, Mb/s.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 10),
    default=0.5,
    show_default=True,
    help="With --transfers: of TCP, each way of a pair.",
)
@click.option(
    "--datagrams",
    type=click.IntRange(100, 200_000),
    default=2000,
    show_default=True,
    help="With --transfers: that loss is measured by, each way of a pair.",
)
@click.option(
    "--budget-gb",
    type=float,
    default=1000.0,
    show_default=True,
    help="With --transfers: most that all send together.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    help="Go on with an interrupted run: hosts and ways that it has are not asked again.",
)
@click.option(
    "--leaves", type=click.Path(path_type=Path), help="With --paths: which hosts hang on which leaf (YAML)."
)
@click.option(
    "--wiring", is_flag=True, help="Compare where cables go, by LLDP, with `leaf` of the membership."
)
@click.option(
    "--wiring-file", type=click.Path(path_type=Path), help="Compare with this plan (YAML); implies --wiring."
)
@click.option(
    "--wiring-wait",
    "wiring_wait_s",
    type=click.FloatRange(1, 300),
    default=35.0,
    show_default=True,
    help="With --wiring: how long to listen, seconds.",
)
@click.option(
    "--host-timeout",
    "host_timeout_s",
    type=click.FloatRange(1, 600),
    default=30.0,
    show_default=True,
    help="Seconds that a host has for its audit.",
)
@click.option(
    "--profile", "--sla", "profile", type=click.Path(path_type=Path), help="Values that hosts must have."
)
@click.option(
    "--output",
    type=click.Choice(["text", "json", "junit"]),
    default="text",
    show_default=True,
    help="Output format.",
)
@click.option("--save", type=click.Path(path_type=Path), help="Write the run here, too, as JSON.")
@click.option(
    "--publish/--no-publish",
    default=True,
    show_default=True,
    help="Tell each agent what was found about its host, for `gate`.",
)
@click.option("--html", type=click.Path(path_type=Path), help="Write the page here, too.")
@click.option("--all", "every", is_flag=True, help="Show what passed, too.")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning"]),
    default="error",
    show_default=True,
    help="Least severity of a finding that makes the exit code 10.",
)
@click.pass_context
def run_command(ctx: click.Context, /, **flags: Any) -> None:
    """Audit a fleet through the agents of its hosts, and compare the hosts with one another."""
    from fabricpulse.audit.run_command import run_fleet

    transfers = None
    if flags["transfers"]:
        from fabricpulse.audit.transfer_tests import Transfers

        transfers = Transfers(flags["rate_mbps"] * 1_000_000, flags["seconds"], datagrams=flags["datagrams"])
    run = run_fleet(**{name: flags[name] for name in RUN_FLAGS}, transfers=transfers)
    if flags["save"] is not None:
        write_file(flags["save"], encode(run))
    write_page(run, flags["html"])
    write(run, flags["output"], every=flags["every"])
    if run.cancelled:
        ctx.exit(1)
    ctx.exit(exit_code(run.findings, flags["fail_on"]))


RUN_FLAGS = (
    "coordinator",
    "membership",
    "hosts",
    "agent_url",
    "client",
    "coordinator_client",
    "host_timeout_s",
    "profile",
    "paths",
    "all_pairs",
    "leaves",
    "budget_gb",
    "yes",
    "resume",
    "publish",
    "wiring",
    "wiring_file",
    "wiring_wait_s",
)
