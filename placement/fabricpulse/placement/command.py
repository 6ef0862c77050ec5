"""`fabricpulse placement`: which hosts a job takes, and which rank runs where."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fabricpulse.core.command_group import CommandGroup
from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.core.output import OutputFormat, output_option, print_json, write_file
from fabricpulse.placement.inputs import host_options, read_hosts
from fabricpulse.placement.job import job_options, read_job

_HOSTS = ("places_file", "membership", "slurm_file", "hosts", "exclude", "audit_file", "gpus", "rail_leaves")
_OUT = click.Path(path_type=Path, dir_okay=False)


@click.group("placement", cls=CommandGroup)
def command() -> None:
    """Place a job: which hosts it takes, and which rank runs on which GPU.

    Ranks that exchange much come near one another: on one host, below one leaf, in one pod.
    """


@command.command("order")
@host_options
@job_options
@click.option(
    "--contiguous",
    is_flag=True,
    help="Keep consecutive ranks on each host, as torchrun numbers them; hosts move only.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=60.0,
    show_default=True,
    help="Longest time of the search; it ends by itself after some 10 s of one core at most.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32), default=1, show_default=True, help="Seed of the search."
)
@click.option(
    "--hostfile", type=_OUT, help="Write the host of each rank here, a line a rank: SLURM_HOSTFILE."
)
@click.option("--rankfile", type=_OUT, help="Write a rankfile of Open MPI here; needs --cores-per-rank.")
@click.option(
    "--cores-per-rank",
    type=click.IntRange(1, 4096),
    help="With --rankfile, which binds each rank: to how many cores.",
)
@click.option("--kubectl", type=_OUT, help="Write commands here that label Kubernetes nodes with the order.")
@output_option
def order_command(
    contiguous: bool,
    seconds: float,
    seed: int,
    hostfile: Path | None,
    rankfile: Path | None,
    cores_per_rank: int | None,
    kubectl: Path | None,
    output: OutputFormat,
    **flags: Any,
) -> None:
    """Find a rank order for a job on given hosts.

    Never a dearer one than that of names, which launchers use: where nothing cheaper is found, that is the answer.
    """
    from fabricpulse.placement.fabric import fabric_of
    from fabricpulse.placement.formats import document, kubernetes, openmpi, slurm
    from fabricpulse.placement.formats.ranks import by_host
    from fabricpulse.placement.order import Problem, place
    from fabricpulse.placement.text import order_text

    if (rankfile is None) != (cores_per_rank is None):
        raise OptionError(
            "--rankfile and --cores-per-rank need one another: a rankfile binds each rank to cores"
        )
    for path in filter(None, (hostfile, rankfile, kubectl)):
        # Before the search, so that its answer is not lost.
        if not os.access(path.parent, os.W_OK):
            raise UserError(f"cannot write {path}: choose a folder that exists and is writable")
    began = time.monotonic()
    given = read_hosts(**{name: flags.pop(name) for name in _HOSTS})
    fabric = fabric_of(given.places)
    traffic, shape, weights = read_job(fabric.slots, **flags)
    problem = Problem(fabric, traffic, shape, weights, contiguous, seed)
    with _progress() as report:
        order = place(problem, lambda: time.monotonic() - began > seconds, report)
    hosts = by_host(fabric, order.slot_of)
    if hostfile is not None:
        write_file(hostfile, slurm.hostfile(hosts))
    if rankfile is not None and cores_per_rank is not None:
        write_file(rankfile, openmpi.rankfile(hosts, cores_per_rank))
    if kubectl is not None:
        write_file(kubectl, "".join(f"{line}\n" for line in kubernetes.order_lines(hosts)))
    if output == "json":
        found = document.order_document(problem, order, hosts)
        print_json(found | {"notes": [*found["notes"], *given.notes]})
        return
    for line in order_text(problem, order, hosts):
        click.echo(line)
    for note in given.notes:
        click.echo(f"note: {note}")


@command.command("choose")
@host_options
@click.option("--count", type=click.IntRange(1, 131_072), required=True, help="How many hosts the job takes.")
@click.option(
    "--segment",
    type=click.IntRange(1, 131_072),
    default=1,
    show_default=True,
    help="Hosts that must be below one leaf together: each leaf gives a multiple.",
)
@click.option(
    "--output",
    type=click.Choice(["text", "json", "list"]),
    default="text",
    show_default=True,
    help="Output format; `list` is one line for `sbatch --nodelist`.",
)
def choose_command(count: int, segment: int, output: str, **flags: Any) -> None:
    """Choose which of the free hosts a job takes: in few pods, below few leaves, whole leaves first."""
    from fabricpulse.core.fleet.host_list import fold
    from fabricpulse.placement.choose import choose
    from fabricpulse.placement.formats.document import choice_document
    from fabricpulse.placement.places import notes
    from fabricpulse.placement.text import choice_text

    given = read_hosts(**flags)
    choice = choose(given.places, count, segment)
    more = [*notes(choice.hosts), *given.notes]
    if not choice.exact:
        more.append("there are too many sets of pods to compare: the largest pods were taken")
    if output == "json":
        print_json(choice_document(choice, len(given.places), more))
    elif output == "list":
        click.echo(fold([place.host for place in choice.hosts]))
    else:
        for line in choice_text(choice, len(given.places), more):
            click.echo(line)


@command.command("topology")
@host_options
def topology_command(**flags: Any) -> None:
    """Print where hosts are as Slurm's topology.conf, for the plugin topology/tree."""
    from fabricpulse.placement.formats.slurm import topology_conf

    for line in topology_conf(read_hosts(**flags).places):
        click.echo(line)


@command.command("labels")
@host_options
def labels_command(**flags: Any) -> None:
    """Print the commands that label Kubernetes nodes with their leaf and pod. Pipe them into sh."""
    from fabricpulse.placement.formats.kubernetes import place_lines

    for line in place_lines(read_hosts(**flags).places):
        click.echo(line)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Shows what is being done, on a terminal alone."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("traffic") as status:
        yield status.update
