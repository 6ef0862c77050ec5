"""`fabricpulse mesh`: the daemon; `show` for a person."""

import sys

import click

from fabricpulse.core.command_group import CommandGroup
from fabricpulse.core.config import load_config
from fabricpulse.core.daemon import run_daemon
from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.core.options import DaemonOptions, daemon_options
from fabricpulse.core.output import OutputFormat, output_option, print_json
from fabricpulse.core.web.client_options import ClientOptions, client_options

DEFAULT_LISTEN = DAEMONS["mesh"].listen


@click.group("mesh", cls=CommandGroup, invoke_without_command=True)
@daemon_options(DEFAULT_LISTEN)
@click.pass_context
def command(context: click.Context, /, options: DaemonOptions) -> None:
    """Probe the fabric between NICs and export what is seen.

    Sends trains of small UDP packets to the NICs of other hosts and receives theirs; exports for each NIC whether it
    is connected, for each edge loss and one-way delay.
    """
    if context.invoked_subcommand is not None:
        return
    # Imported late: `fabricpulse mesh --help` needs neither the engine nor the HTTP server.
    from fabricpulse.mesh.config import MeshConfig
    from fabricpulse.mesh.service import run

    config = load_config(options.config, MeshConfig)
    run_daemon(lambda life: run(life, config, options))


@command.command("show")
@click.option("--url", default="http://127.0.0.1:9610", show_default=True, help="The mesh exporter to ask.")
@click.option("--fleet", metavar="URL", default="", help="The coordinator to ask: which component is faulty.")
@client_options("the exporter or the coordinator")
@click.option("--all", "everything", is_flag=True, help="All edges, not only impaired ones.")
@output_option
def show(url: str, fleet: str, client: ClientOptions, everything: bool, output: OutputFormat) -> None:
    """Show NICs and the edges that suffer: which source ports, since when. Exits with 1 if any does.

    With --fleet: which NIC, switch or link of the whole fleet loses packets or is slow, as the coordinator reports it
    from what all hosts see, and which leaf has fewer live paths than its siblings.
    """
    from fabricpulse.mesh import show as view

    if fleet:
        suspects = view.fetch_suspects(fleet, client.config("--fleet", fleet))
        if output == "json":
            print_json(suspects)
        else:
            view.print_suspects(suspects)
        unwell = suspects["suspects"] or view.fewer_paths(suspects) or suspects.get("fails")
        sys.exit(view.IMPAIRED if unwell else view.FINE)
    document = view.fetch_edges(url, client.config("--url", url))
    if output == "json":
        print_json(document if everything else {**document, "edges": view.impaired_edges(document)})
    else:
        view.print_tables(document, everything)
    sys.exit(view.exit_code(document))


@command.command("topology")
@click.option("--fleet", metavar="URL", required=True, help="The coordinator to ask.")
@client_options("the coordinator")
@click.option(
    "--output",
    type=click.Choice(["text", "json", "graphml", "svg", "places"]),
    default="text",
    show_default=True,
    help="Output format; places is the file that `fabricpulse placement` reads.",
)
def topology(fleet: str, client: ClientOptions, output: str) -> None:
    """Show leaves, pods and shared machines of the fabric as the coordinator learns them from delays.

    Names NICs at a wrong leaf or rail. What the delays do not show is unknown. Exits with 1 while no leaf is known, and
    says what is missing.
    """
    from fabricpulse.mesh import topology as view

    document = view.fetch_topology(fleet, client.config("--fleet", fleet))
    if output == "json":
        print_json(document)
        sys.exit(0 if document["placed"] else 1)
    view.require_leaves(document)
    if output == "text":
        view.print_topology(document)
        return
    text, notes = view.rendered(document, output)
    click.echo(text, nl=False)
    for note in notes:
        click.echo(note, err=True)
