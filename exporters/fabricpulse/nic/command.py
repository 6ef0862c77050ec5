"""`fabricpulse nic`: the daemon, `--once` for a textfile, `show` for a person."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click
import msgspec

from fabricpulse.core.boot import boot_id
from fabricpulse.core.command_group import CommandGroup
from fabricpulse.core.config import load_config
from fabricpulse.core.daemon import Lifetime, run_daemon
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions, daemon_options
from fabricpulse.core.output import OutputFormat, output_option, write_file
from fabricpulse.core.run_dir import ensure_run_dir
from fabricpulse.core.run_lock import RunLock
from fabricpulse.core.shm.virtual_clock import ENV as VIRTUAL_CLOCK_ENV
from fabricpulse.core.shm.virtual_clock import VirtualClock
from fabricpulse.core.supervision import supervised
from fabricpulse.hostinfo.sources import host_sources
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.exporter import NicExporter, event_log
from fabricpulse.nic.registry import registered
from fabricpulse.nic.sections import DeviceSection

DEFAULT_LISTEN = DAEMONS["nic"].listen


def _collector_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, found in sorted(registered().items(), reverse=True):
        default = "on" if found.collector.on_by_default else "off"
        function = click.option(
            f"--collector.{name}/--no-collector.{name}",
            f"collector_{name}",
            default=None,
            help=f"Switch collector {name} on or off. [default: {default}]",
        )(function)
    return function


def _source_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option(
            "--nic.device-include", "include", help="Only devices whose RDMA or netdev name matches wholly."
        ),
        click.option(
            "--nic.device-exclude", "exclude", help="No devices whose RDMA or netdev name matches wholly."
        ),
        click.option(
            "--nic.raw-counters", "raw", is_flag=True, help="Export counters under the drivers' names too."
        ),
        click.option(
            "--path.sysfs",
            "sysfs",
            type=click.Path(path_type=Path),
            default=Path("/sys"),
            show_default=True,
            help="Where sysfs is mounted.",
        ),
        click.option(
            "--path.procfs",
            "procfs",
            type=click.Path(path_type=Path),
            default=Path("/proc"),
            show_default=True,
            help="Where procfs is mounted.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return _collector_options(function)


def merge(config: NicConfig, flags: dict[str, Any]) -> NicConfig:
    """The configuration with the flags of the command line over it."""
    collectors = dict(config.collectors)
    for name in registered():
        value = flags.get(f"collector_{name}")
        if value is not None:
            collectors[name] = value
    device = DeviceSection(
        include=config.device.include if flags["include"] is None else flags["include"],
        exclude=config.device.exclude if flags["exclude"] is None else flags["exclude"],
    )
    return msgspec.structs.replace(
        config, collectors=collectors, device=device, raw_counters=config.raw_counters or flags["raw"]
    )


def host_clock() -> Callable[[], float]:
    """Host time in seconds: the system clock, through the lab's virtual clock where there is one."""
    path = os.environ.get(VIRTUAL_CLOCK_ENV)
    if not path:
        return time.time
    clock = VirtualClock(Path(path))
    return lambda: clock.from_kernel(time.time_ns()) / 1e9


@click.group("nic", cls=CommandGroup, invoke_without_command=True)
@daemon_options(DEFAULT_LISTEN)
@_source_options
@click.option(
    "--once", is_flag=True, help="Write the metrics once and end; with --output-file to a file, atomically."
)
@click.option(
    "--output-file",
    "output",
    type=click.Path(path_type=Path),
    help="File for --once (a *.prom for node_exporter's textfile collector).",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    options: DaemonOptions,
    sysfs: Path,
    procfs: Path,
    once: bool,
    output: Path | None,
    **flags: Any,
) -> None:
    """Export RDMA and link state of this host's NICs."""
    config = merge(load_config(options.config, NicConfig), flags)
    if not (sysfs / "class/net").is_dir():
        raise UserError(f"{sysfs} is no sysfs: {sysfs / 'class/net'} is not a directory; set --path.sysfs")
    if context.invoked_subcommand is not None:
        context.obj = NicExporter(config, host_sources(sysfs), boot_id=boot_id(procfs))
        return
    if output is not None and not once:
        raise UserError("--output-file is for --once; the daemon serves its metrics over HTTP")
    if once:
        write_once(NicExporter(config, host_sources(sysfs), boot_id=boot_id(procfs)), output)
        return
    run_dir = ensure_run_dir()
    clock, boot = host_clock(), boot_id(procfs)

    def load() -> NicConfig:
        config = merge(load_config(options.config, NicConfig), flags)
        # Here, so that a reload is refused before the exporter that runs is stopped.
        event_log(config, run_dir).check("flaps.event_log")
        return config

    def make(config: NicConfig) -> NicExporter:
        return NicExporter(config, host_sources(sysfs), run_dir=run_dir, clock=clock, boot_id=boot)

    lock = RunLock(run_dir, "nic")
    try:
        run_daemon(lambda life: serve(life, options, load, make))
    finally:
        lock.release()


@command.command("show")
@output_option
@click.pass_obj
def show(exporter: NicExporter, output: OutputFormat) -> None:
    """Print the NICs of this host."""
    # Late: neither tables nor a parser of expositions in the daemon's memory.
    from fabricpulse.nic.show import print_json, print_tables, report

    found = report(exporter)
    exporter.close()
    (print_json if output == "json" else print_tables)(found)


async def serve(
    life: Lifetime,
    options: DaemonOptions,
    load: Callable[[], NicConfig],
    make: Callable[[NicConfig], NicExporter],
) -> None:
    """Runs the daemon until a stop signal; SIGHUP reads the configuration again, a bad one is refused."""
    from fabricpulse.core.web.server import WebServer  # late: core.start

    exporter = make(load())
    # Neither a scrape nor a second reload meets an exporter that is stopped or has not read its links yet.
    in_turn = asyncio.Lock()

    async def scrape(text_format: TextFormat) -> bytes:
        async with in_turn:
            return await exporter.scrape(text_format)

    server = WebServer("fabricpulse nic", life, scrape, options.web)
    try:
        async with supervised(life) as tasks:

            def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
                return tasks.start("rescan", work, may_end=True)

            async def reload() -> None:
                nonlocal exporter
                config = load()
                async with in_turn:
                    # Flaps in between are not lost: the state goes through the file, and the kernel counts on.
                    exporter.stop()
                    exporter = make(config)
                    await exporter.start(spawn)

            life.on_reload(reload)
            await exporter.start(spawn)
            await server.start()
            life.ready()
            await life.stopped()
    finally:
        await server.stop()
        exporter.stop()


def write_once(exporter: NicExporter, output: Path | None) -> None:
    """Writes one exposition to `output` by rename, or to standard output. Raises UserError when it cannot."""
    body = exporter.collect_once()
    exporter.close()
    if output is None:
        try:
            sys.stdout.buffer.write(body)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # Whoever reads has seen enough; click ends with its own code for this.
            raise
        except OSError as error:
            # Else the interpreter tries to flush it again at its end, and exits with a status of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise UserError(
                f"cannot write to standard output: {error.strerror}; free space or use --output-file"
            ) from error
        return
    write_file(output, body)
