"""`fabricpulse mesh`."""

import click

from fabricpulse.core.config import load_config
from fabricpulse.core.daemon import run_daemon
from fabricpulse.core.options import DaemonOptions, daemon_options

DEFAULT_LISTEN = ":9610"


@click.command("mesh")
@daemon_options(DEFAULT_LISTEN)
def command(options: DaemonOptions) -> None:
    """Probe the fabric between NICs and export what is seen.

    Sends trains of small UDP packets to the NICs of other hosts and receives theirs; exports for each NIC whether it
    is connected, for each edge loss and one-way delay.
    """
    # Imported late: `fabricpulse mesh --help` needs neither the engine nor the HTTP server.
    from fabricpulse.mesh.config import MeshConfig
    from fabricpulse.mesh.service import run

    config = load_config(options.config, MeshConfig)
    run_daemon(lambda life: run(life, config, options))
