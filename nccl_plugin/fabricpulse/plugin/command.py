"""`fabricpulse plugin`: find the library, set up a job's environment, read and control running jobs."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from fabricpulse.core.command_group import CommandGroup
from fabricpulse.core.environment import Format
from fabricpulse.core.errors import UserError
from fabricpulse.core.output import OutputFormat, output_option
from fabricpulse.plugin import environment, jobs, links
from fabricpulse.plugin.arguments import parse_arguments
from fabricpulse.plugin.locate import library
from fabricpulse.plugin.status import status_table
from fabricpulse.plugin_ipc.process import parse_name


@click.group(cls=CommandGroup)
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
@click.option(
    "--transport",
    type=click.Choice([each.value for each in environment.Transport]),
    default=environment.Transport.AUTO.value,
    show_default=True,
    help="tcp, verbs: the plugin moves the data, over TCP or queue pairs. "
    "observe: NCCL's own transport does, the plugin only measures. "
    "auto: observe on a host with RDMA devices, else tcp.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice([each.value for each in Format]),
    default=Format.SHELL.value,
    show_default=True,
    help="shell: for eval. slurm: for a TaskProlog. env: for env files. json: with the reasons.",
)
@click.option(
    "--check", "check_only", is_flag=True, help="Check the present environment; print what is wrong with it."
)
def env(
    nccl_version: str | None,
    transport: str,
    format_: str,
    check_only: bool,
) -> None:
    """Print the variables that make NCCL load the plugin: eval "$(fabricpulse plugin env)".

    Standard output has the variables and nothing else. A job is never moved from RDMA to TCP unasked: on a host with
    RDMA devices NCCL keeps its own transport and the plugin only observes, as standard error shows.
    """
    version = environment.parse_version(nccl_version) if nccl_version else None
    devices = environment.rdma_devices() if transport == environment.Transport.AUTO else []
    observe = bool(devices) or transport == environment.Transport.OBSERVE
    if devices:
        click.echo(
            f"This host has RDMA devices ({', '.join(devices)}): NCCL keeps its own transport, the plugin only "
            "observes the job. To move it to the plugin's lanes: --transport verbs (queue pairs), or --transport tcp",
            err=True,
        )
    lanes = transport if transport in (environment.Transport.TCP, environment.Transport.VERBS) else None
    wanted = environment.job_environment(library(), version, observe, lanes)
    if not check_only:
        click.echo(wanted.render(Format(format_), os.environ))
        return
    problems = environment.check(wanted, os.environ)
    for problem in problems:
        click.echo(problem)
    if problems:
        sys.exit(1)
    parts = [f"net v{wanted.net}"] if wanted.net else []
    parts += [f"profiler v{wanted.profiler}"] if wanted.profiler else []
    click.echo(f"NCCL will load {library()}: {', '.join(parts)}")


@command.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--default", is_flag=True, help="Also the names that are found without any variable.")
@output_option
def link(folder: Path, default: bool, output: OutputFormat) -> None:
    """Make links to the library in FOLDER, by the names under which NCCL and RCCL look for it.

    With FOLDER in LD_LIBRARY_PATH, NCCL_NET_PLUGIN=fabricpulse and NCCL_PROFILER_PLUGIN=fabricpulse load it in jobs of
    NCCL and of RCCL alike. Links are replaced when they lead elsewhere; other files are left alone.
    """
    made = [str(path) for path in links.make_links(library(), folder, default)]
    click.echo(json.dumps({"links": made}) if output == "json" else "\n".join(made))


@command.command()
@click.argument("pid", required=False)
@output_option
@click.option("--watch", is_flag=True, help="Show a live table until interrupted.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two samples of --watch.",
)
def status(pid: str | None, output: OutputFormat, watch: bool, interval: float) -> None:
    """Show the lanes of all jobs of this host, or of process PID.

    PID is that of the job in its own container. Where several containers have it, give the name of its control socket
    without .sock. With --output json the answers of the jobs are printed, one object a line. Exits with 1 if a job
    did not answer.
    """
    if output == "json":
        found = jobs.select(pid)
        answers = jobs.ask_all(found, jobs.Job.status)
        for job, answer in zip(found, answers, strict=True):
            click.echo(json.dumps({"pid": job.pid, "process": job.name, **answer}))
        sys.exit(any(not answer.get("ok") for answer in answers))
    if not watch:
        statuses = _statuses(jobs.select(pid))
        Console().print(status_table(statuses))
        sys.exit(any(not answer.get("ok") for answer in statuses.values()))
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
    """Send a command to one job (PID) or to all jobs (--all) of this host.

    Operations: hello, status, events, lane.disable, lane.enable, lane.weight, lane.repath, nic.avoid, nic.restore,
    detail. For example: fabricpulse plugin ctl --all nic.avoid device=eth1

    All jobs are asked at the same time; one that does not answer keeps none of the others from it. One JSON object a
    line and job is printed. Exits with 1 if a job refused or did not answer.
    """
    pid, operation, texts = _operands(target, operation, arguments, everywhere)
    values = parse_arguments(operation, texts)

    def ask(job: jobs.Job) -> dict[str, Any]:
        if operation == "status" and not values:
            return job.status()
        if operation in jobs.READS:
            return job.call({"op": operation, **values})
        number = generation
        if number is None:
            number = jobs.present_generation(job.call({"op": "status", "connections": False}))
        return job.call(jobs.change_message(operation, values, op_id, number))

    found = jobs.select(pid)
    answers = jobs.ask_all(found, ask)
    for job, answer in zip(found, answers, strict=True):
        click.echo(json.dumps({"pid": job.pid, "process": job.name, **answer}))
    sys.exit(any(not answer.get("ok") for answer in answers))


def _operands(
    target: str | None, operation: str | None, arguments: tuple[str, ...], everywhere: bool
) -> tuple[str | None, str, tuple[str, ...]]:
    """PID, operation and its arguments; with --all the first operand is the operation."""
    if everywhere:
        rest = (*((operation,) if operation is not None else ()), *arguments)
        if target is None:
            raise UserError("an operation is missing after --all")
        return None, target, rest
    if target is None or parse_name(target) is None:
        raise UserError("no job is given: a process id, or --all")
    if operation is None:
        raise UserError("an operation is missing after the process id")
    return target, operation, arguments


def _statuses(found: list[jobs.Job]) -> dict[str, dict[str, Any]]:
    """The status of each job: one that does not answer, or ends between two samples, is shown as such."""
    answers = jobs.ask_all(found, jobs.Job.status)
    return dict(zip(jobs.labels(found).values(), answers, strict=True))
