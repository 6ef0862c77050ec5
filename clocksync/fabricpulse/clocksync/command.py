"""`fabricpulse clocksync`."""

import click

from fabricpulse.core.daemon import Lifetime, run_daemon
from fabricpulse.core.options import DaemonOptions, daemon_options


@click.group()
def command() -> None:
    """Keep fleet time: the sidecar of a host, the coordinator of a fleet."""


@command.command()
@daemon_options("0.0.0.0:9613")
def sidecar(options: DaemonOptions) -> None:
    """Fit the edges of this host, keep fleet time, publish the clock page."""
    from fabricpulse.clocksync.sidecar import Sidecar

    async def main(life: Lifetime) -> None:
        await Sidecar(options, life).run()

    run_daemon(main)


@command.command()
@daemon_options("0.0.0.0:9614")
def coordinator(options: DaemonOptions) -> None:
    """Solve the fleet's clocks each step; serve membership and http_sd."""
    from fabricpulse.clocksync.coordinator import Coordinator

    async def main(life: Lifetime) -> None:
        await Coordinator(options, life).run()

    run_daemon(main)
