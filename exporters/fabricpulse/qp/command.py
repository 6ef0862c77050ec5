"""`fabricpulse qp`."""

import click

from fabricpulse.core.config import load_config
from fabricpulse.core.daemon import run_daemon
from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.core.options import DaemonOptions, daemon_options


@click.command("qp")
@daemon_options(DAEMONS["qp"].listen)
def command(options: DaemonOptions) -> None:
    """Export what running jobs do: lanes and queue pairs of each.

    Reads the telemetry of the NCCL plugin and of the verbs interposer.
    """
    # Imported late: `fabricpulse qp --help` needs neither arrays nor the HTTP server.
    from fabricpulse.qp.config import QpConfig
    from fabricpulse.qp.service import run

    config = load_config(options.config, QpConfig)
    run_daemon(lambda life: run(life, config, options))
