"""`audit local`: this host alone, without any daemon."""

import socket
from pathlib import Path

import click

from fabricpulse.audit.commands.output import (
    all_option,
    exit_code,
    fail_on_option,
    html_option,
    run_output_option,
    state_option,
    write,
    write_page,
)
from fabricpulse.audit.commands.own_host import own_name, own_reader
from fabricpulse.audit.compare.profile import load_profile
from fabricpulse.audit.compare.runs import run_of
from fabricpulse.audit.local import audit_host
from fabricpulse.audit.model import HostReport
from fabricpulse.audit.storage import encode, keep, stamp_name
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
    if keep_report and root != Path("/"):
        raise click.UsageError("--keep is for the gate of this host, --root is another one: give one of them")
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


def write_textfile(report: HostReport, path: Path) -> None:
    """The metrics of a report. Raises UserError."""
    from fabricpulse.audit.expose import expose
    from fabricpulse.core.metrics.exposition import Exposition

    exposition = Exposition()
    expose(report, exposition)
    write_file(path, exposition.render(count_samples=False))
