"""Command-line options for hosts and their places, and reading them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from fabricpulse.core.config import load_config
from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.core.fleet.host_list import expand_lines
from fabricpulse.core.fleet.membership import load_membership
from fabricpulse.placement.fabric import MOST_GPUS, Place
from fabricpulse.placement.formats.slurm import read_topology_conf
from fabricpulse.placement.places import PlacesFile, declarations, places, without

_MOST_TEXT = 10 << 20
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Hosts:
    """The hosts by the options. left_out : number of hosts excluded by --exclude and --audit. notes : for users."""

    places: list[Place]
    left_out: int
    notes: list[str]


def host_options(function: _F) -> _F:
    """Adds the options; the command receives them as keywords and gives them to `read_hosts`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_OPTIONS = (
    click.option(
        "--places",
        "places_file",
        type=_FILE,
        help="File that says which hosts are below which leaf, and which leaves are in which pod (YAML); the topology "
        "file of the coordinator is one, too.",
    ),
    click.option("--membership", type=_FILE, help="Membership file: `leaf` of its NICs."),
    click.option(
        "--slurm-topology",
        "slurm_file",
        type=_FILE,
        help="Instead of --places: Slurm's topology.conf (tree).",
    ),
    click.option(
        "--hosts",
        metavar="LIST",
        help="Only these, as Slurm writes lists: gpu-[001-016],gpu-020; default: all of the files. `-` reads standard "
        "input, also what `kubectl get nodes -o name` writes.",
    ),
    click.option("--exclude", metavar="LIST", help="Not these, as --hosts."),
    click.option(
        "--audit",
        "audit_file",
        type=_FILE,
        help="Not those that failed an audit: what `audit labels RUN --output json` has written.",
    ),
    click.option(
        "--gpus-per-host",
        "gpus",
        type=click.IntRange(1, MOST_GPUS),
        default=8,
        show_default=True,
        help="GPUs of each host for which the file of places has no number.",
    ),
    click.option(
        "--rail-optimized",
        "rail_leaves",
        is_flag=True,
        help="A leaf stands for one switch for each GPU of its hosts: GPUs with different numbers share no leaf.",
    ),
)


def read_hosts(
    places_file: Path | None,
    membership: Path | None,
    slurm_file: Path | None,
    hosts: str | None,
    exclude: str | None,
    audit_file: Path | None,
    gpus: int,
    rail_leaves: bool,
) -> Hosts:
    """Raises UserError."""
    if places_file is not None and slurm_file is not None:
        raise OptionError("--places and --slurm-topology exclude each other")
    if places_file is None and slurm_file is None and membership is None and hosts is None:
        raise OptionError("which hosts? give --places, --slurm-topology, --membership or --hosts")
    file = load_config(places_file, PlacesFile)
    if slurm_file is not None:
        file = read_topology_conf(_text(slurm_file).splitlines(), str(slurm_file))
    declared = declarations(file, load_membership(membership) if membership else None)
    named = _list(hosts, "--hosts") if hosts is not None else []
    found = places(declared, named, gpus, rail_leaves=rail_leaves)
    failed, notes = _failed_hosts(audit_file) if audit_file else ([], [])
    left = without(found, [*(_list(exclude, "--exclude") if exclude else []), *failed])
    if not left:
        raise UserError("all hosts are excluded; nothing is left to place")
    return Hosts(left, len(found) - len(left), notes)


def _list(text: str, option: str) -> list[str]:
    if text == "-":
        text = sys.stdin.read(_MOST_TEXT + 1)
        if len(text) > _MOST_TEXT:
            raise UserError(
                f"{option} -: more than {_MOST_TEXT >> 20} MiB on standard input; give fewer hosts"
            )
    found = expand_lines(text)
    if not found:
        raise OptionError(f"{option}: the list is empty; leave the option out if no host is meant")
    return found


class _Label(msgspec.Struct):
    node: str
    audit: str


def _failed_hosts(path: Path) -> tuple[list[str], list[str]]:
    """Hosts that failed the audit, and notes about those whose result is unknown."""
    try:
        labels = msgspec.json.decode(_text(path).encode(), type=list[_Label])
    except (msgspec.DecodeError, ValueError) as error:
        raise UserError(
            f"--audit: {path} is not what `audit labels RUN --output json` writes: {error}"
        ) from None
    unknown = sum(label.audit == "unknown" for label in labels)
    notes = [f"of {unknown} hosts the audit does not know whether they are good: they were not left out"]
    return [label.node for label in labels if label.audit == "failed"], notes if unknown else []


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_TEXT:
            raise UserError(f"{path} is larger than {_MOST_TEXT >> 20} MiB; is it the right file?")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
