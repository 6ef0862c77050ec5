"""`audit local`: this host alone, without any daemon."""

import socket
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from fabricpulse.audit import storage
from fabricpulse.audit.checks.fleet import profile as profile_check
from fabricpulse.audit.checks.fleet import profile_unproven
from fabricpulse.audit.commands.output import (
    all_option,
    exit_code,
    fail_on_option,
    html_option,
    ignore_option,
    printed,
    run_output_option,
    state_option,
    write_page,
)
from fabricpulse.audit.commands.own_host import own_name, own_reader
from fabricpulse.audit.compare.profile import load_profile
from fabricpulse.audit.compare.runs import run_of
from fabricpulse.audit.local import audit_host
from fabricpulse.audit.model import Finding, HostReport, Result, failed, passed
from fabricpulse.core.output import write_file

# Reports that `local --keep` leaves.
KEPT = 30


@click.command("local")
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
@run_output_option
@all_option
@html_option
@click.option("--keep", "keep_report", is_flag=True, help="Keep the report for `gate`, in --state.")
@state_option
@click.option(
    "--textfile", type=click.Path(path_type=Path), help="Write metrics for node_exporter here (*.prom)."
)
@fail_on_option("makes the exit code 10")
@ignore_option
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
    ignore: tuple[str, ...],
) -> None:
    """Audit this host alone, without any daemon."""
    if keep_report and root != Path("/"):
        raise click.UsageError("--keep is for the gate of this host, --root is another one: give one of them")
    pinned = load_profile(profile) if profile else None
    name = socket.gethostname() if root == Path("/") else (own_name(root) or root.name)
    report = audit_host(name, own_reader(root))
    run = run_of([report], {}, pinned, str(profile or ""), (name,), report.collected_at, report.duration_s)
    kept = with_profile(report, run.findings, str(profile)) if profile else report
    with printed(run, output, every=every) as saving:
        if keep_report:
            saving(lambda: storage.keep_report(state, kept, KEPT))
        if textfile is not None:
            saving(lambda: write_textfile(kept, textfile))
        saving(lambda: write_page(run, html))
    ctx.exit(exit_code(run.findings, fail_on, ignore))


def with_profile(report: HostReport, findings: Sequence[Finding], profile: str) -> HostReport:
    """The report with what the profile wants as outcomes of it: the gate knows the report alone."""
    found = list(report.results)
    for check in (profile_check.CHECK, profile_unproven.CHECK):
        own = [finding for finding in findings if finding.check == check.id]
        evidence = {"profile": profile}
        found += [
            Result(
                f.check, f.category, f.severity, failed(f.summary, f.subject, **{**f.evidence, **evidence})
            )
            for f in own
        ]
        if not own:
            found.append(
                Result(check.id, check.category, check.severity, passed("as the profile wants", **evidence))
            )
    return msgspec.structs.replace(report, results=tuple(found))


def write_textfile(report: HostReport, path: Path) -> None:
    """The metrics of a report. Raises UserError."""
    from fabricpulse.audit.expose import expose
    from fabricpulse.core.metrics.exposition import Exposition

    exposition = Exposition()
    expose(report, exposition)
    write_file(path, exposition.render(count_samples=False))
