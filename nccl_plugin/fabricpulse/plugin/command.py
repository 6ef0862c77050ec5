"""`fabricpulse plugin`: find the library, set up a job's environment, look into running jobs, tell them what to do."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.live import Live

from fabricpulse.core.errors import UserError
from fabricpulse.plugin import environment, jobs, links
from fabricpulse.plugin.locate import library
from fabricpulse.plugin.status import status_table
from fabricpulse.plugin_ipc.process import parse_name


@click.group()
def command() -> None:
    """Work with the NCCL plugin of running jobs."""


@command.command()
@click.option("--ld-path", is_flag=True, help="Print the folder, for LD_LIBRARY_PATH.")
def path(ld_path: bool) -> None:
    """Print where the library that NCCL loads is installed."""
    found = library()
    click.echo(found.parent if ld_path else found)


@command.command()
@click.option(
    "--nccl-version", metavar="VERSION", help="The job's NCCL, such as 2.27.3.  [default: the newest known]"
)
@click.option("--profiler-only", is_flag=True, help="Keep NCCL's own transport; only feed telemetry.")
@click.option(
    "--check", "check_only", is_flag=True, help="Check the present environment; print what is wrong with it."
)
def env(nccl_version: str | None, profiler_only: bool, check_only: bool) -> None:
    """Print the variables that make NCCL load the plugin, as shell commands."""
    version = environment.parse_version(nccl_version) if nccl_version else None
    wanted = environment.plan(library(), version, profiler_only)
    if check_only:
        problems = environment.check(wanted, os.environ)
        for problem in problems:
            click.echo(problem)
        if problems:
            sys.exit(1)
        parts = [f"net v{wanted.net}"] if wanted.net else []
        parts += [f"profiler v{wanted.profiler}"] if wanted.profiler else []
        click.echo(f"NCCL will load {library()}: {', '.join(parts)}")
        return
    for setting in wanted.settings:
        click.echo(setting.shell())


@command.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--default", is_flag=True, help="Also the names that are found without any variable.")
def link(folder: Path, default: bool) -> None:
    """Make links to the library in FOLDER, by the names under which NCCL and RCCL look for it.

    With FOLDER in LD_LIBRARY_PATH, NCCL_NET_PLUGIN=fabricpulse and NCCL_PROFILER_PLUGIN=fabricpulse load it in jobs of
    NCCL and of RCCL alike. Links are replaced when they lead elsewhere; other files are left alone.
    """
    for path in links.make_links(library(), folder, default):
        click.echo(path)


@command.command()
@click.argument("pid", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the jobs' own answers, one JSON object a line.")
@click.option("--watch", is_flag=True, help="Show a live table until interrupted.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks of --watch.",
)
def status(pid: str | None, as_json: bool, watch: bool, interval: float) -> None:
    """Show the lanes of all jobs of this host, or of process PID.

    PID is that of the job in its own container. Where several containers have it, say the name of its control socket
    without .sock.
    """
    if as_json:
        for job in jobs.select(pid):
            click.echo(json.dumps({"pid": job.pid, "process": job.name, **_status(job)}))
        return
    if not watch:
        Console().print(status_table(_statuses(jobs.select(pid))))
        return
    previous, looked = _statuses(jobs.select(pid)), time.monotonic()
    try:
        with Live(status_table(previous), auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                # A job that does not answer makes a round longer than the interval.
                current, now = _statuses(jobs.select(pid)), time.monotonic()
                live.update(status_table(current, previous, now - looked), refresh=True)
                previous, looked = current, now
    except KeyboardInterrupt:
        return


@command.command()
@click.argument("target", metavar="PID|--all", required=False)
@click.argument("operation", required=False)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--all", "everywhere", is_flag=True, help="Every job of this host.")
@click.option(
    "--op-id", help="Identity of the operation: the same one is applied once.  [default: a new one]"
)
@click.option(
    "--generation",
    type=int,
    help="Refused by a job that has seen a later one.  [default: the job's present one]",
)
def ctl(
    target: str | None,
    operation: str | None,
    arguments: tuple[str, ...],
    everywhere: bool,
    op_id: str | None,
    generation: int | None,
) -> None:
    """Tell one job (PID) or all jobs (--all) of this host what to do.

    Operations: hello, status, events, lane.disable, lane.enable, lane.weight, lane.repath, nic.avoid, nic.restore,
    detail. For example: fabricpulse plugin ctl --all nic.avoid device=rail0
    """
    pid, operation, arguments = _operands(target, operation, arguments, everywhere)
    if operation not in (*jobs.CHANGES, *jobs.READS):
        known = ", ".join((*jobs.READS, *jobs.CHANGES))
        raise UserError(f"operation {operation!r} is not known; known are {known}")
    values = dict(_argument(argument) for argument in arguments)
    refused = False
    for job in jobs.select(pid):
        if operation == "status" and not values:
            answer = _status(job)
        elif operation in jobs.READS:
            answer = _call(job, {"op": operation, **values})
        else:
            number = (
                generation
                if generation is not None
                else jobs.present_generation(_call(job, {"op": "status", "connections": False}))
            )
            answer = _call(job, jobs.change_message(operation, values, op_id, number))
        click.echo(json.dumps({"pid": job.pid, "process": job.name, **answer}))
        refused = refused or not answer.get("ok", False)
    if refused:
        sys.exit(1)


def _operands(
    target: str | None, operation: str | None, arguments: tuple[str, ...], everywhere: bool
) -> tuple[str | None, str, tuple[str, ...]]:
    """PID, operation and its arguments; with --all the first operand is the operation already."""
    if everywhere:
        rest = (*((operation,) if operation is not None else ()), *arguments)
        if target is None:
            raise UserError("say what to do: an operation is missing after --all")
        return None, target, rest
    if target is None or parse_name(target) is None:
        raise UserError("say which job: a process id, or --all")
    if operation is None:
        raise UserError("say what to do: an operation is missing after the process id")
    return target, operation, arguments


# Arguments that are numbers or null; all others are text, also a connection whose 16 digits are decimal.
_NUMBERS = ("lane", "weight", "level", "since", "entropy")


def _argument(text: str) -> tuple[str, Any]:
    """`device=rail0`, `lane=3`, `weight=null` as (key, value). Raises UserError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"argument {text!r} is not of the form key=value")
    if key not in _NUMBERS:
        return key, value
    try:
        return key, msgspec.json.decode(value.encode(), type=float | int | None)
    except msgspec.DecodeError as error:
        raise UserError(f"argument {text!r}: {key} takes a number or null") from error


def _call(job: jobs.Job, message: dict[str, Any]) -> dict[str, Any]:
    try:
        return job.call(message)
    except jobs.ControlError as error:
        raise UserError(f"process {job.pid} did not answer on its control socket: {error}") from error


def _status(job: jobs.Job) -> dict[str, Any]:
    try:
        return job.status()
    except jobs.ControlError as error:
        raise UserError(f"process {job.pid} did not answer on its control socket: {error}") from error


def _statuses(found: list[jobs.Job]) -> dict[str, dict[str, Any]]:
    """The status of each job that answers: one that ends between two looks is no error."""
    answers = {}
    for job, label in jobs.labels(found).items():
        try:
            answers[label] = job.status()
        except jobs.ControlError as error:
            answers[label] = {"ok": False, "error": {"code": "silent", "message": str(error)}}
    return answers
