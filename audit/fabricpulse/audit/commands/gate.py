"""`audit gate`: may this host take a job, by the last audit."""

import math
import socket
import time
from pathlib import Path

import click

from fabricpulse.audit.boot import own_boot, own_machine
from fabricpulse.audit.commands.output import FOUND, GOOD, NOT_KNOWN, fail_on_option, state_option
from fabricpulse.audit.model import FleetFindings, HostReport
from fabricpulse.audit.storage import FLEET, LAST, is_read_only, is_there, lost, read
from fabricpulse.core.output import OutputFormat, output_option, print_json, printable


def _finite(_ctx: click.Context, _parameter: click.Parameter, hours: float) -> float:
    if not 0 < hours < math.inf:
        raise click.BadParameter("a number of hours above 0 is needed")
    return hours


@click.command("gate")
@state_option
@click.option(
    "--max-age",
    "max_age_h",
    type=float,
    default=24.0,
    callback=_finite,
    show_default=True,
    help="How old the last audit may be, in hours.",
)
@fail_on_option("closes the gate")
@click.option("--ignore", multiple=True, metavar="CHECK", help="A check that does not count; repeatable.")
@click.option("--strict", is_flag=True, help="Unknown outcomes make the answer not known.")
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
    """Decide by the last audit whether this host may take a job.

    Both the host's own audit and what the last run of the fleet said of it count, and what earlier ones have found as
    long as none has tested it again; what is unknown is listed.

    Exit code 0: yes; 10: no, an error was found; 11: not known, there is no audit, it is too old, or an error may be
    another host's.
    """
    from fabricpulse.audit.report.gate import gate

    last, kept = state / LAST, state / FLEET
    not_kept = [
        f"what a later {what} has found could not be kept in {state}, for want of room, or as {lost(name)} could not "
        "be read: clear that, and run it again"
        for name, what in ((LAST, "audit"), (FLEET, "run of the fleet"))
        if not is_there(state / name) and is_there(state / lost(name))
    ]
    if is_read_only(state):
        not_kept.append(f"{state} is read-only: what was found last may not be there")
    report = read(last, HostReport) if is_there(last) else None
    answer = gate(
        report,
        time.time(),
        max_age_h * 3600,
        fail_on=fail_on,
        ignore=ignore,
        fleet=read(kept, FleetFindings) if is_there(kept) else None,
        strict=strict,
        host=socket.gethostname(),
        boot=own_boot(),
        machine=own_machine(),
        not_kept=tuple(not_kept),
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
