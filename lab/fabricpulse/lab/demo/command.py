"""`fabricpulse demo`."""

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console

from fabricpulse.core.errors import UserError
from fabricpulse.lab.demo.performance import Options, perform
from fabricpulse.lab.demo.result import Result
from fabricpulse.lab.demo.scenarios import SCENARIOS
from fabricpulse.lab.demo.screens import LineScreen, LiveScreen
from fabricpulse.lab.tools import find_tools

INTERRUPTED_EXIT_CODE = 130


@click.command("demo")
@click.option(
    "--scenario",
    type=click.Choice(sorted(SCENARIOS)),
    default="flap",
    show_default=True,
    help="What happens.",
)
@click.option("--headless", is_flag=True, help="Print the run as lines instead of drawing a live view.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the result to FILE."
)
@click.option("--keep", is_flag=True, help="Stay up after the run until Ctrl-C.")
@click.option("--hosts", type=click.IntRange(2, 6), default=4, show_default=True, help="GPU hosts.")
@click.option("--rails", type=click.IntRange(2, 4), default=2, show_default=True, help="NICs of each host.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_000),
    default=0,
    metavar="FIRST",
    help="Show Prometheus, Alertmanager, receiver and an exporter on this port of 127.0.0.1 and the three after it.",
)
def command(
    scenario: str, headless: bool, json_file: Path | None, keep: bool, hosts: int, rails: int, port: int
) -> None:
    """Play a fault on a fleet of network namespaces and show what happens.

    Builds a GPU fleet on this machine, starts all daemons but the audit's, Prometheus and Alertmanager, runs a ring
    all-reduce over the NCCL plugin, breaks something and shows how it is seen, alerted, acted on and survived. Exits
    with 0 only if every milestone was really seen.
    """
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise UserError(f"cannot write {json_file}: the folder {json_file.absolute().parent} does not exist")
    least = SCENARIOS[scenario].least_hosts
    if hosts < least:
        raise UserError(f"scenario {scenario} needs at least {least} hosts: --hosts {least}")
    options = Options(scenario, hosts, rails, keep, json_file, find_tools(), port)
    console = Console()
    if headless or not console.is_terminal:
        result = asyncio.run(_interruptible(options, LineScreen(console)))
    else:
        screen = LiveScreen(console)
        try:
            result = asyncio.run(_interruptible(options, screen))
        finally:
            screen.close()
    if result is None:
        sys.exit(INTERRUPTED_EXIT_CODE)
    sys.exit(0 if result.success else 1)


async def _interruptible(options: Options, screen: LineScreen | LiveScreen) -> Result | None:
    """Plays until the end, SIGINT or SIGTERM; None when it was cut off before its result."""
    finished: list[Result] = []

    task = asyncio.create_task(perform(options, screen, finished.append))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, task.cancel)
    with suppress(asyncio.CancelledError):
        await task
    return finished[0] if finished else None
