"""`fabricpulse clocksync`."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fabricpulse.core.command_group import CommandGroup
from fabricpulse.core.daemon import Lifetime, run_daemon
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.core.options import DaemonOptions, daemon_options
from fabricpulse.core.output import OutputFormat, output_option, print_json
from fabricpulse.core.web.client_options import ClientOptions, client_options

if TYPE_CHECKING:
    from fabricpulse.core.shm.clock_page import ClockPageReader, FleetTime

_EVERYWHERE = "0.0.0.0"  # noqa: S104


@click.group(cls=CommandGroup)
def command() -> None:
    """Keep fleet time: the sidecar of a host, the coordinator of a fleet."""


@command.command()
@daemon_options(_EVERYWHERE + DAEMONS["clocksync-sidecar"].listen)
def sidecar(options: DaemonOptions) -> None:
    """Fit the edges of this host, keep fleet time, publish the clock page."""
    from fabricpulse.clocksync.sidecar.sidecar import Sidecar

    async def main(life: Lifetime) -> None:
        await Sidecar(options, life).run()

    run_daemon(main)


@command.command()
@daemon_options(_EVERYWHERE + DAEMONS["clocksync-coordinator"].listen)
def coordinator(options: DaemonOptions) -> None:
    """Solve the fleet's clocks each round; serve membership and http_sd."""
    from fabricpulse.clocksync.coordinator.coordinator import Coordinator

    async def main(life: Lifetime) -> None:
        await Coordinator(options, life).run()

    run_daemon(main)


@command.command()
@click.option("--pkg-config", "pkg_config", is_flag=True, help="Print a fabricpulse.pc for PKG_CONFIG_PATH.")
def include(pkg_config: bool) -> None:
    """Print the folder of the C headers, for the compiler's -I."""
    from fabricpulse.core.shm.headers import include_dir, pkg_config_file

    click.echo(pkg_config_file() if pkg_config else include_dir(), nl=not pkg_config)


_leap_smear_option = click.option(
    "--leap-smear",
    type=click.Path(path_type=Path),
    help="Print UTC with leap seconds spread over 24 hours, as of this leap-seconds.list.",
)


def _print(shown: "FleetTime", output: OutputFormat, leap_smear: Path | None = None) -> None:
    """`json` is one object a line; ns since 1970."""
    from fabricpulse.clocksync.leap_smear import parse, smeared
    from fabricpulse.clocksync.reading import document, line

    if leap_smear is not None:
        try:
            shown = smeared(shown, parse(leap_smear.read_text()))
        except OSError as error:
            raise UserError(f"cannot read {leap_smear}: {error.strerror}") from error
        except ValueError as error:
            raise UserError(f"{leap_smear} is no leap-seconds.list: {error}") from error
    click.echo(json.dumps(document(shown)) if output == "json" else line(shown))


def _reader() -> "ClockPageReader":
    from fabricpulse.core.run_dir import clock_page_path
    from fabricpulse.core.shm.clock_page import ClockPageReader
    from fabricpulse.core.shm.mapping import LayoutError

    path = clock_page_path()
    try:
        return ClockPageReader(path)
    except FileNotFoundError:
        raise UserError(
            f"{path} is not there: does fabricpulse clocksync sidecar run on this host?"
        ) from None
    except (OSError, LayoutError) as error:
        raise UserError(f"cannot read the clock page: {error}") from error


@command.command()
@_leap_smear_option
@output_option
def now(leap_smear: Path | None, output: OutputFormat) -> None:
    """Print fleet time with its error bound."""
    from fabricpulse.clocksync.reading import usable

    _print(usable(_reader().now()), output, leap_smear)


@command.command()
@click.argument("stamps", nargs=-1, required=True)
@_leap_smear_option
@output_option
def convert(stamps: tuple[str, ...], leap_smear: Path | None, output: OutputFormat) -> None:
    """Print STAMPS of this host's clock, taken in the last seconds, on fleet time: ns since 1970, or seconds as
    `date +%s.%N` prints them.
    """
    from fabricpulse.clocksync.reading import converted, stamp_ns

    reader = _reader()
    for stamp in stamps:
        shown = converted(reader.convert(stamp_ns(stamp)), reader.now(), f"fleet time of {stamp}")
        _print(shown, output, leap_smear)


@command.command()
@click.option("--until", help="Fleet time: ns since 1970, or seconds. Default: now, at the latest.")
@output_option
def wait(until: str | None, output: OutputFormat) -> None:
    """Wait until fleet time is past on every host (commit-wait), and print it."""
    from fabricpulse.clocksync.reading import stamp_ns, usable, wait_past

    reader = _reader()
    moment_ns = usable(reader.now()).latest_ns if until is None else stamp_ns(until)
    _print(wait_past(moment_ns, reader.now, time.sleep), output)


@command.command()
@click.option(
    "--url",
    default="http://127.0.0.1:9613",
    show_default=True,
    help="A sidecar, or a coordinator (port 9614).",
)
@output_option
@click.option(
    "--watch", type=click.FloatRange(min=0.0), default=0.0, help="Print again every so many seconds."
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Corrections and error bound of a sidecar's host, to a .svg file, or a .png (needs fabricpulse[plot]).",
)
@client_options("the sidecar or the coordinator")
def status(url: str, output: OutputFormat, watch: float, plot: Path | None, client: ClientOptions) -> None:
    """Show the clock of a host (its sidecar) or of the fleet (its coordinator)."""
    import msgspec
    from rich.console import Console

    from fabricpulse.clocksync.plot import HistoryPoint, write_plot
    from fabricpulse.clocksync.status import HISTORY_PATH, STATUS_PATH, print_status
    from fabricpulse.core.web.document import fetch_document

    config = client.config("--url", url)
    while True:
        document = fetch_document(url, STATUS_PATH, config, daemon="clocksync daemon")
        if output == "json":
            print_json(document)
        else:
            print_status(document, Console())
        if plot is not None:
            if "host" not in document:
                raise UserError(
                    f"{url} is a coordinator, which keeps no history: give --plot the --url of a sidecar"
                )
            history = fetch_document(url, HISTORY_PATH, config, daemon="sidecar")
            points = msgspec.convert(history, list[HistoryPoint])
            write_plot(plot, document["host"], points)
        if watch <= 0:
            return
        time.sleep(watch)
