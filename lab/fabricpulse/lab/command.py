"""`fabricpulse lab`: a lab from the shell."""

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click

from fabricpulse.core.command_group import CommandGroup
from fabricpulse.core.errors import UserError
from fabricpulse.core.output import OutputFormat, output_option, print_json
from fabricpulse.lab.lab import Lab
from fabricpulse.lab.rdma.fleet import HOSTS
from fabricpulse.lab.rdma.guest import Guest
from fabricpulse.lab.rdma.kernel import fetch_kernel, find_kernel

# Words of its command line: the directory is the third after the module.
_SUPERVISOR, _DIRECTORY_AFTER = b"fabricpulse.lab.supervisor", 3
_CHANGE_DIRECTORY = (
    'cd -- "$1" 2>/dev/null || '
    '{ echo "fabricpulse: error: $1 does not exist inside the lab: change to another directory" >&2; exit 2; }; '
    'shift; exec "$@"'
)


def _size_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        [
            click.option("--hosts", default=4, show_default=True, help="GPU hosts: h0, h1, …"),
            click.option("--rails", default=2, show_default=True, help="NICs per host: rail0, rail1, …"),
            click.option("--spines", default=2, show_default=True, help="Equal paths between leaves."),
            click.option(
                "--pods", default=1, show_default=True, help="Groups of hosts with leaves of their own."
            ),
            click.option(
                "--nic-mbit", type=float, help="Speed of every NIC, Mbit/s.  [default: the machine's]"
            ),
            click.option(
                "--directory", type=click.Path(path_type=Path), help="Where to keep run directories and logs."
            ),
        ]
    ):
        function = option(function)
    return function


@click.group(cls=CommandGroup)
def command() -> None:
    """Build a GPU fleet on one machine out of network namespaces."""


@command.command()
@_size_options
@click.option(
    "--forward",
    "forwards",
    multiple=True,
    metavar="NODE:PORT",
    help="Show a port of a node on 127.0.0.1; repeatable.",
)
def up(forwards: tuple[str, ...], **size: Any) -> None:
    """Start a lab and keep it until Ctrl-C; `exec`, `shell` and `list` find it from another terminal."""
    wanted = [_node_and_port(text) for text in forwards]
    with _started(size) as lab:
        click.echo(_picture(lab))
        for node, port in wanted:
            click.echo(f"{node}:{port} is http://127.0.0.1:{lab.forward(node, port)}/")
        click.echo("running; Ctrl-C ends it")
        _wait_for_stop()


@command.command(context_settings={"ignore_unknown_options": True})
@_size_options
@click.option("--on", "node", help="The node to run it on.  [default: mgmt, with --rdma h0]")
@click.option(
    "--rdma", is_flag=True, help="In a QEMU guest with Soft-RoCE: two hosts, real verbs, --rails NICs each."
)
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def run(node: str | None, argv: tuple[str, ...], *, rdma: bool, **size: Any) -> None:
    """Start a lab, run a program on a node, end the lab; exits as the program does."""
    if rdma:
        sys.exit(_run_in_guest(node or "h0", argv, size["rails"]))
    node = node or "mgmt"
    with _started(size) as lab:
        process = lab.popen(node, argv, stdin=sys.stdin, stdout=sys.stdout, stderr=sys.stderr)
        code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)


def _run_in_guest(host: str, argv: tuple[str, ...], rails: int) -> int:
    if host not in HOSTS:
        raise UserError(f"the RDMA lab has no host {host!r}; it has {' and '.join(HOSTS)}")
    inside = [sys.executable, "-P", "-m", "fabricpulse.lab.rdma.inside", str(rails), host, *argv]
    return Guest(find_kernel()).run(inside)


@command.command(name="rdma-kernel")
@click.option("--newest", is_flag=True, help="Ask Debian for a newer one also when one is here.")
def rdma_kernel(*, newest: bool) -> None:
    """Print where the kernel of the RDMA lab is; fetch it from Debian if there is none."""
    if not newest:
        with suppress(UserError):
            click.echo(find_kernel())
            return
    click.echo(fetch_kernel())


@command.command(name="list")
@output_option
def list_labs(output: OutputFormat) -> None:
    """List the labs of this machine that one may enter: one's own, or all as root."""
    if output == "json":
        print_json(
            [
                {
                    "directory": str(directory),
                    "started_by": about["parent_pid"],
                    "nodes": list(about["nodes"]),
                }
                for directory, about in _running()
            ]
        )
        return
    for directory, description in _running():
        click.echo(f"{directory}  started by {description['parent_pid']}: {' '.join(description['nodes'])}")


@command.command(context_settings={"ignore_unknown_options": True})
@click.option("--lab", "chosen", type=click.Path(path_type=Path), help="The lab's directory, if several run.")
@click.argument("node")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def exec(chosen: Path | None, node: str, argv: tuple[str, ...]) -> None:  # noqa: A001 - the name of the subcommand
    """Run a program on a node of a running lab: fabricpulse lab exec h0 ip -br link."""
    _enter(chosen, node, list(argv))


@command.command()
@click.option("--lab", "chosen", type=click.Path(path_type=Path), help="The lab's directory, if several run.")
@click.argument("node")
def shell(chosen: Path | None, node: str) -> None:
    """Open a shell on a node of a running lab."""
    _enter(chosen, node, [os.environ.get("SHELL") or "/bin/sh"])


@contextmanager
def _started(size: dict[str, Any]) -> Iterator[Lab]:
    directory = size.pop("directory")
    lab = Lab(**size, directory=directory, keep=directory is not None)

    def interrupt(signum: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt

    # As Ctrl-C: the lab is closed in order, and the exit code says which signal it was.
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with lab.start():
            for warning in lab.warnings:
                click.echo(f"fabricpulse: warning: {warning}", err=True)
            yield lab
    except KeyboardInterrupt:
        sys.exit(130)


def _wait_for_stop() -> None:
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def _picture(lab: Lab) -> str:
    lines = [f"lab in {lab.directory}"]
    for host in lab.hosts:
        nics = "  ".join(f"{nic.device} {nic.address} on {nic.leaf}" for nic in host.nics)
        lines.append(f"  {host.name}  fe0 {host.front_end}  {nics}")
    lines.append(f"  mgmt  fe0 {lab.fabric.front_end_addresses['mgmt']}")
    lines.append(f"  leaves {' '.join(lab.fabric.leaf_names)}, each to {' '.join(lab.fabric.spine_names)}")
    return "\n".join(lines)


def _node_and_port(text: str) -> tuple[str, int]:
    node, _, port = text.rpartition(":")
    if not node or not port.isdigit() or not 0 < int(port) < 65_536:
        raise UserError(f"--forward {text!r} is not NODE:PORT, as in mgmt:9090")
    return node, int(port)


def _running() -> list[tuple[Path, dict[str, Any]]]:
    """By the supervisors: a lab may be in any directory."""
    directories = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError, ValueError, IndexError):
            words = path.read_bytes().split(b"\0")
            directories.add(Path(os.fsdecode(words[words.index(_SUPERVISOR) + _DIRECTORY_AFTER])))
    found = []
    for directory in sorted(directories):
        path = directory / "lab.json"
        with suppress(OSError, ValueError):
            if os.geteuid() not in (0, path.stat().st_uid):
                continue
            description = json.loads(path.read_text())
            if _is_supervisor(description, directory):
                found.append((directory, description))
    return found


def _is_supervisor(description: dict[str, Any], directory: Path) -> bool:
    try:
        words = Path(f"/proc/{description['supervisor_pid']}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(directory) in words


def _enter(chosen: Path | None, node: str, argv: list[str]) -> None:
    """Becomes `nsenter` into the node; keeps the terminal, so that job control works in a shell."""
    if shutil.which("nsenter") is None:
        raise UserError("nsenter is not on PATH: install util-linux")
    labs = _running() if chosen is None else [(chosen, _described(chosen))]
    if not labs:
        raise UserError("no lab is running here: start one with `fabricpulse lab up`")
    if len(labs) > 1:
        raise UserError(
            f"several labs are running: choose one with --lab, {' or '.join(str(path) for path, _ in labs)}"
        )
    directory, description = labs[0]
    if node not in description["entries"]:
        raise UserError(f"the lab has no node {node!r}; it has {', '.join(description['nodes'])}")
    inner = description["inner_pid"]
    entry = {kind: f"/proc/{inner}/fd/{number}" for kind, number in description["entries"][node].items()}
    words = ["nsenter", f"--pid=/proc/{inner}/ns/pid", f"--ipc=/proc/{inner}/ns/ipc"]
    if description["user_namespace"]:
        words += [f"--user=/proc/{inner}/ns/user", "--preserve-credentials"]
    words += [f"--net={entry['net']}", f"--uts={entry['uts']}", f"--mount={entry['mnt']}"]
    # nsenter leaves its program in the root directory: what the user names relative to where he is must be there.
    words += ["--", "sh", "-c", _CHANGE_DIRECTORY, "sh", str(Path.cwd()), *argv]
    environment = {**os.environ, **description["environment"][node]}
    try:
        os.execvpe(words[0], words, environment)  # noqa: S606 - becomes nsenter on purpose
    except OSError as error:
        raise UserError(f"cannot enter {node} of {directory}: {error.strerror}") from error


def _described(directory: Path) -> dict[str, Any]:
    try:
        description = json.loads((directory / "lab.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{directory} is not the directory of a running lab") from error
    if not _is_supervisor(description, directory):
        raise UserError(f"the lab of {directory} has ended")
    return dict(description)
