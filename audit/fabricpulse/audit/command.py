"""`fabricpulse audit`: the group, and the two subcommands that need nothing else."""

import click

from fabricpulse.audit.commands.gate import gate_command
from fabricpulse.audit.commands.kept_runs import diff_command, labels_command, learn_command, show_command
from fabricpulse.audit.commands.local import local
from fabricpulse.audit.commands.own_host import own_reader
from fabricpulse.audit.commands.run import run_command
from fabricpulse.core.options import DaemonOptions, daemon_options
from fabricpulse.hostinfo.gid_rules import NcclRules

DEFAULT_LISTEN = ":9617"


@click.group("audit")
def command() -> None:
    """Audit hosts before a long job: what is wrong, and what is odd.

    Exit code 0: no error was found; 10: there is one; 11: nothing is known yet (gate); 1 or 2: the audit could not be
    made.
    """


@command.command("checks")
def checks_command() -> None:
    """List the checks."""
    from fabricpulse.audit.fleet_checks import all_checks

    for check in all_checks().values():
        click.echo(f"{check.id:24} {check.category:10} {check.severity:8} {check.title}")


@command.command("node")
@daemon_options(DEFAULT_LISTEN)
def node_command(options: DaemonOptions) -> None:
    """Serve audits of this host to `run`. Who asks must show the token."""
    # Late: a health check needs neither a server nor its memory.
    from fabricpulse.audit.node.agent import Agent
    from fabricpulse.audit.node.config import NodeConfig
    from fabricpulse.core.config import load_config
    from fabricpulse.core.daemon import Lifetime, run_daemon

    config = load_config(options.config, NodeConfig)
    nccl = NcclRules(gid_index=config.nccl_gid_index)

    async def serve(life: Lifetime) -> None:
        await Agent(config, options, life, lambda rails: own_reader(rails=rails, nccl=nccl)).run()

    run_daemon(serve)


for subcommand in (
    local,
    run_command,
    gate_command,
    learn_command,
    show_command,
    diff_command,
    labels_command,
):
    command.add_command(subcommand)
