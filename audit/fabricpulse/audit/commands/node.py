"""`audit checks` and `audit node`: what is checked, and the agent that answers for a host."""

import click

from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.core.options import DaemonOptions, daemon_options
from fabricpulse.core.output import OutputFormat, output_option, print_json

DEFAULT_LISTEN = DAEMONS["audit-node"].listen


@click.command("checks")
@output_option
def checks_command(output: OutputFormat) -> None:
    """List the checks."""
    from fabricpulse.audit.registry import all_checks

    if output == "json":
        print_json(
            [
                {"check": c.id, "category": c.category, "severity": c.severity, "title": c.title}
                for c in all_checks().values()
            ]
        )
        return
    for check in all_checks().values():
        click.echo(f"{check.id:24} {check.category:10} {check.severity:8} {check.title}")


@click.command("node")
@daemon_options(DEFAULT_LISTEN)
def node_command(options: DaemonOptions) -> None:
    """Serve audits of this host to `run`. Who asks must show the token."""
    # Late: the list of checks needs neither a server nor its memory.
    from fabricpulse.audit.commands.own_host import own_reader
    from fabricpulse.audit.node.agent import Agent
    from fabricpulse.audit.node.config import NodeConfig
    from fabricpulse.core.config import load_config
    from fabricpulse.core.daemon import Lifetime, run_daemon
    from fabricpulse.core.log import get_logger
    from fabricpulse.hostinfo.gid_rules import NcclRules

    config = load_config(options.config, NodeConfig)
    for warning in config.warnings():
        get_logger(__name__).warning(warning)
    nccl = NcclRules(gid_index=config.nccl_gid_index)

    async def serve(life: Lifetime) -> None:
        await Agent(config, options, life, lambda rails: own_reader(rails=rails, nccl=nccl)).run()

    run_daemon(serve)
