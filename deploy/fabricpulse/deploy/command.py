"""`fabricpulse files`: what came with the programs, shown or put in place."""

import difflib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fabricpulse.core.command_group import CommandGroup
from fabricpulse.core.config import load_config
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.daemons import HOST, MONITOR
from fabricpulse.core.fleet.membership import Membership
from fabricpulse.core.output import OutputFormat, output_option
from fabricpulse.deploy.catalogue import FOLDERS, catalogue, data_folder, find
from fabricpulse.deploy.fill_in import Values, filled_in
from fabricpulse.deploy.placing import Placing, State, apply, plan


@click.group(cls=CommandGroup)
def command() -> None:
    """Show units, sample configurations and runbooks, or put them in place."""


def _value_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option(
            "--monitor", metavar="HOST", help="Machine of coordinator, receiver, Prometheus, Alertmanager."
        ),
        click.option(
            "--cluster", metavar="NAME", help="Label `cluster` of the scrape jobs and of pushed alerts."
        ),
        click.option(
            "--fleet", type=click.Path(path_type=Path), help="Membership file, for the scrape targets."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _values(monitor: str | None, cluster: str | None, fleet: Path | None) -> Values:
    hosts = None
    if fleet is not None:
        hosts = [host.name for host in load_config(fleet, Membership).hosts]
    # What systemd starts is the very program that writes the unit, in a virtual environment too.
    own = Path(sys.argv[0]).absolute()
    return Values(own if own.name == "fabricpulse" else None, monitor, cluster, hosts)


@command.command(name="list")
@output_option
def list_files(output: OutputFormat) -> None:
    """List all files: name, kind of machine, where it goes."""
    if output == "json":
        rows = [
            {"name": file.name, "role": file.role, "target": file.target, "about": file.about}
            for file in catalogue()
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    for file in catalogue():
        click.echo(f"{file.name:<44} {file.role or 'merge':<8} {file.target:<58} {file.about}")
    for name in FOLDERS:
        click.echo(f"{name:<44} {'folder':<8} {path_of(name)}")


@command.command()
@click.argument("name")
def path(name: str) -> None:
    """Print where a file, or one of the folders runbooks, mixins and rules, is."""
    click.echo(path_of(name))


def path_of(name: str) -> Path:
    """Where a file or folder is. Raises UserError when there is none of this name."""
    return data_folder() / (FOLDERS[name] if name in FOLDERS else find(name).source)


@command.command()
@_value_options
@click.argument("name")
def show(name: str, monitor: str | None, cluster: str | None, fleet: Path | None) -> None:
    """Print a file, with names filled in."""
    text = (data_folder() / find(name).source).read_text(encoding="utf-8")
    click.echo(filled_in(text, _values(monitor, cluster, fleet)), nl=False)


@command.command()
@_value_options
@click.option(
    "--root", type=click.Path(path_type=Path), default=Path("/"), help="Write below this directory."
)
@click.option("--apply", "applied", is_flag=True, help="Write. Without it nothing is changed, only shown.")
@click.option(
    "--replace",
    is_flag=True,
    help="Write files that differ too; the former file is then FILE.old, or FILE.old2.",
)
@click.option("--diff", "differences", is_flag=True, help="Show how files differ from what is there.")
@click.argument("role", type=click.Choice([HOST, MONITOR]))
def write(
    role: str,
    root: Path,
    monitor: str | None,
    cluster: str | None,
    fleet: Path | None,
    *,
    applied: bool,
    replace: bool,
    differences: bool,
) -> None:
    """Put units and settings of a GPU host, or of the monitor, in place.

    Nothing is written without --apply, and no file that differs from ours without --replace.
    """
    values = _values(monitor, cluster, fleet)
    wanted = []
    for file in catalogue():
        if file.role == role:
            text = (data_folder() / file.source).read_text(encoding="utf-8")
            wanted.append((root / file.target.lstrip("/"), filled_in(text, values)))
    placings = plan(wanted)
    written = apply(placings, replace=replace) if applied else []
    for placing in placings:
        click.echo(f"{_result_of(placing, placing.path in written, replace=replace):<14} {placing.path}")
        if differences and placing.state is State.DIFFERENT and placing.path not in written:
            _show_difference(placing)
    kept = sum(placing.state is State.DIFFERENT and placing.path not in written for placing in placings)
    if not applied:
        click.echo("nothing was written: --apply writes")
    elif kept:
        click.echo(f"{kept} files differ and were kept: --diff shows how, --replace writes ours")


def _result_of(placing: Placing, written: bool, *, replace: bool) -> str:
    if placing.state is State.SAME:
        return "same"
    if written:
        return "written" if placing.state is State.MISSING else "replaced"
    if placing.state is State.DIFFERENT and not replace:
        return "differs, kept"
    return "would write" if placing.state is State.MISSING else "would replace"


def _show_difference(placing: Placing) -> None:
    try:
        before = placing.path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {placing.path}: {error.strerror}") from error
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), placing.text.splitlines(keepends=True), str(placing.path), "ours"
    )
    for line in lines:
        click.echo("    " + line, nl=not line.endswith("\n"))
