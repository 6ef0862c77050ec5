"""`fabricpulse audit`."""

import re
import socket
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from fabricpulse.audit.findings import fleet_findings
from fabricpulse.audit.host_reader import HostReader
from fabricpulse.audit.local import audit_host
from fabricpulse.audit.model import Finding, HostReport, Run
from fabricpulse.audit.profile import Profile, learn, load_profile
from fabricpulse.audit.storage import encode, read
from fabricpulse.core.errors import UserError
from fabricpulse.core.run_dir import clock_page_path
from fabricpulse.hostinfo.sources import host_sources

# Exit codes: of a health check, so that a script can tell a bad host from an audit that could not be made.
GOOD, FOUND = 0, 10


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


def own_reader(root: Path = Path("/"), rails: dict[str, str] | None = None) -> HostReader:
    """Of this host, or of a copied tree: of that, nothing is asked of the running kernel."""
    if root == Path("/"):
        return HostReader(
            host_sources(), root, rails=rails or {}, clock_page=clock_page_path(), resolve=resolve
        )
    if not (root / "sys").is_dir() and not (root / "proc").is_dir():
        raise UserError(
            f"{root} is no tree of a host: it has neither sys nor proc; set --root to a folder that has"
        )
    return HostReader(host_sources(root / "sys"), root, rails=rails or {}, disk=lambda _: None)


def run_id(now: float) -> str:
    """20261122T193005Z."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")


@command.command("local")
@click.option(
    "--root", type=click.Path(path_type=Path), default=Path("/"), show_default=True, help="Tree to audit."
)
@click.option(
    "--profile", "--sla", "profile", type=click.Path(path_type=Path), help="Values that the host must have."
)
@click.option(
    "--output", type=click.Choice(["text", "json", "junit"]), default="text", show_default=True, help="Form."
)
@click.option("--all", "every", is_flag=True, help="Show what passed, too.")
@click.option(
    "--fail-on", type=click.Choice(["error", "warning"]), default="error", show_default=True, help="Exit 10."
)
@click.pass_context
def local(
    ctx: click.Context, root: Path, profile: Path | None, output: str, every: bool, fail_on: str
) -> None:
    """Audit this host alone, without any daemon."""
    pinned = load_profile(profile) if profile else None
    name = socket.gethostname() if root == Path("/") else (own_name(root) or root.name)
    report = audit_host(name, own_reader(root))
    run = run_of([report], {}, pinned, str(profile or ""), (name,), report.collected_at, report.duration_s)
    write(run, output, every=every)
    ctx.exit(exit_code(run.findings, fail_on))


def own_name(root: Path) -> str:
    """The name that a copied tree gives its host."""
    try:
        name = (root / "proc/sys/kernel/hostname").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return name if re.fullmatch(r"[\w.-]{1,95}", name, re.ASCII) else ""


def run_of(
    reports: list[HostReport],
    silent: dict[str, str],
    profile: Profile | None,
    profile_name: str,
    asked: tuple[str, ...],
    started_at: float,
    duration_s: float,
    cancelled: bool = False,
) -> Run:
    """The run of these reports, compared."""
    findings = fleet_findings(reports, silent, profile)
    return Run(
        run_id(started_at),
        started_at,
        duration_s,
        asked,
        tuple(sorted(reports, key=lambda r: r.host)),
        findings,
        cancelled,
        profile_name,
    )


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
@click.option(
    "--output", type=click.Choice(["text", "json", "junit"]), default="text", show_default=True, help="Form."
)
@click.option("--all", "every", is_flag=True, help="Show what passed, too.")
def show_command(run: Path, output: str, every: bool) -> None:
    """Print a run that was kept."""
    write(read(run, Run), output, every=every)


@command.command("diff")
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.pass_context
def diff_command(ctx: click.Context, before: Path, after: Path) -> None:
    """Print what two runs differ in. Exit code 10: there are new findings."""
    from fabricpulse.audit.diff import diff_runs
    from fabricpulse.core.output import printable

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


@command.command("checks")
def checks_command() -> None:
    """List the checks."""
    from fabricpulse.audit.fleet_checks import all_checks

    for check in all_checks().values():
        click.echo(f"{check.id:24} {check.category:10} {check.severity:8} {check.title}")
