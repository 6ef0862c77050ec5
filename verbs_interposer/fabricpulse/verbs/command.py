"""`fabricpulse verbs`."""

import json
import os
import time

import click
from rich.console import Console

from fabricpulse.core.command_group import CommandGroup
from fabricpulse.core.environment import Format, render
from fabricpulse.core.errors import UserError
from fabricpulse.core.output import OutputFormat, output_option
from fabricpulse.core.run_dir import plugin_dir
from fabricpulse.verbs.environment import Program, variable
from fabricpulse.verbs.locate import nccl_library, preload_library
from fabricpulse.verbs.status import describe, snapshots, status_tables


@click.group(cls=CommandGroup)
def command() -> None:
    """Observe the queue pairs of programs that use libibverbs, unmodified."""


@command.command()
@click.option(
    "--for",
    "program",
    type=click.Choice([each.value for each in Program]),
    default=Program.LINKED.value,
    show_default=True,
    help="linked: programs that are linked with libibverbs, or whose plugins are (MPI, UCX, perftest). "
    "nccl: NCCL 2.30.3 and newer, which open it. nccl-old: earlier NCCL, and RCCL.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice([each.value for each in Format]),
    default=Format.SHELL.value,
    show_default=True,
    help="shell: for eval. slurm: for a TaskProlog. env: for env files. json: with the reason.",
)
def env(program: str, format_: str) -> None:
    """Print the variable that loads the interposer: eval "$(fabricpulse verbs env)"."""
    wanted = variable(Program(program), preload_library(), nccl_library())
    click.echo(render([wanted], Format(format_), os.environ))


@command.command()
@output_option
def status(output: OutputFormat) -> None:
    """Show the queue pairs of this host's processes that have loaded the interposer, and what it cannot see."""
    found, complaints = snapshots(plugin_dir())
    for complaint in complaints:
        click.echo(complaint, err=True)
    if output == "json":
        raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        click.echo(json.dumps([describe(snapshot, raw_ns) for snapshot in found]))
        return
    if not found:
        raise UserError(
            f"no process with the verbs interposer found in {plugin_dir()}; it is seen once it opens an RDMA device. "
            "Set FABRICPULSE_RUN_DIR if it is another, and look at `fabricpulse verbs env`"
        )
    console = Console()
    for table in status_tables(found):
        console.print(table)
