"""`audit learn`, `show`, `diff`, `labels`: what can be made of a run that was kept."""

from pathlib import Path

import click
import msgspec

from fabricpulse.audit.commands.kept_files import read_run
from fabricpulse.audit.commands.output import (
    FOUND,
    GOOD,
    all_option,
    ignore_option,
    run_output_option,
    write,
    write_page,
)
from fabricpulse.audit.compare.profile import learn
from fabricpulse.core.output import OutputFormat, output_option, print_json, printable


@click.command("learn")
@click.argument("run", type=click.Path(path_type=Path))
def learn_command(run: Path) -> None:
    """Print a profile file of what most hosts of RUN have: of a good fleet."""
    click.echo(learn(read_run(run)), nl=False)


@click.command("show")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="Write the page here instead.")
@run_output_option
@all_option
def show_command(run: Path, html: Path | None, output: str, every: bool) -> None:
    """Print a run that was kept, or make its page. RUN may be a report that an agent or `local --keep` has kept."""
    found = read_run(run)
    if html is not None:
        write_page(found, html)
    else:
        write(found, output, every=every)


@click.command("diff")
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@output_option
@click.pass_context
def diff_command(ctx: click.Context, before: Path, after: Path, output: OutputFormat) -> None:
    """Print what two runs differ in. Exit code 10: there are new findings.

    +: new; -: gone; ?: found before, and the later run has not looked.
    """
    from fabricpulse.audit.compare.diff import diff_runs

    found = diff_runs(read_run(before), read_run(after))
    if output == "json":
        print_json(msgspec.to_builtins(found))
        ctx.exit(FOUND if found.new else GOOD)
    for sign, findings in (("+", found.new), ("-", found.gone), ("?", found.unseen)):
        for finding in findings:
            where = " ".join(filter(None, (finding.host or "fleet", finding.subject)))
            click.echo(printable(f"{sign} {finding.severity} {finding.check} {where}: {finding.summary}"))
    for sign, hosts in (("+", found.added), ("-", found.removed)):
        for host in hosts:
            click.echo(printable(f"{sign} host {host}"))
    click.echo(
        f"{len(found.new)} new, {len(found.gone)} gone, {len(found.same)} in both, {len(found.unseen)} not looked for"
    )
    ctx.exit(FOUND if found.new else GOOD)


@click.command("labels")
@click.argument("run", type=click.Path(path_type=Path))
@ignore_option
@output_option
def labels_command(run: Path, ignore: tuple[str, ...], output: OutputFormat) -> None:
    """Print the commands that label Kubernetes nodes by RUN: passed, failed or unknown. Pipe them into sh."""
    from fabricpulse.audit.report.labels import kubectl_lines, node_labels

    found = read_run(run)
    counted = tuple(finding for finding in found.findings if finding.check not in ignore)
    labels = node_labels(msgspec.structs.replace(found, findings=counted))
    if output == "json":
        print_json([{"node": one.host, "audit": one.state, "reason": one.reason} for one in labels])
    else:
        for line in kubectl_lines(found, labels):
            click.echo(line)
