"""`audit run`: a fleet, through the agents of its hosts."""

import sys
from pathlib import Path
from typing import Any

import click

from fabricpulse.audit.commands.output import (
    all_option,
    exit_code,
    fail_on_option,
    html_option,
    ignore_option,
    printed,
    run_output_option,
    write_page,
)
from fabricpulse.audit.model import Run
from fabricpulse.audit.storage import encode
from fabricpulse.core.errors import UserError
from fabricpulse.core.output import printable, require_writable, write_file
from fabricpulse.core.web.client_options import COORDINATOR, client_options

# 100,000 names of 94 letters.
MOST_LIST = 10 << 20


@click.command("run")
@click.option(
    "--coordinator",
    metavar="URL",
    help="Take the hosts from this clocksync coordinator: http://monitor:9614.",
)
@click.option(
    "--membership", type=click.Path(path_type=Path), help="Take the hosts from this membership file."
)
@click.option(
    "--hosts",
    "--nodes",
    "hosts",
    metavar="LIST",
    help="Only these, as Slurm writes lists: gpu-[001-016],gpu-020. `-` reads standard input, also what "
    "`kubectl get nodes -o name` writes.",
)
@click.option("--agent-url", default="http://{host}:9617", show_default=True, help="URL of a host's agent.")
@client_options("the agents")
@client_options("the coordinator", COORDINATOR, prefix="coordinator", parameter="coordinator_client")
@click.option(
    "--paths", is_flag=True, help="Test pairs of NICs too: connectivity and MTU, by some echoes each."
)
@click.option("--all-pairs", is_flag=True, help="With --paths: all pairs, not 2 log2 n rounds of them.")
@click.option(
    "--transfers",
    is_flag=True,
    help="Measure loss, bandwidth and one-way delay of pairs, by real traffic; implies --paths.",
)
@click.option(
    "--nccl",
    is_flag=True,
    help="Run the NCCL plugin's ring over the hosts in their order and in that of leaves, 1, 2, 4 and 8 lanes a "
    "connection, as fast as NICs are; implies --paths.",
)
@click.option(
    "--ring-seconds",
    "ring_seconds",
    type=click.FloatRange(0.1, 10),
    default=1.0,
    show_default=True,
    help="With --nccl: of each ring.",
)
@click.option("--yes", is_flag=True, help="With --transfers, --nccl: do not ask.")
@click.option(
    "--rate",
    "rate_mbps",
    type=click.IntRange(1, 10_000_000),
    default=10_000,
    show_default=True,
    help="With --transfers: most that a NIC sends, Mb/s.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 10),
    default=0.5,
    show_default=True,
    help="With --transfers: of TCP, each way of a pair.",
)
@click.option(
    "--datagrams",
    type=click.IntRange(100, 200_000),
    default=2000,
    show_default=True,
    help="With --transfers: that loss is measured by, each way of a pair.",
)
@click.option(
    "--loss-seconds",
    type=click.FloatRange(0, 10),
    default=0.0,
    show_default=True,
    help="With --transfers: of more datagrams, at all of --rate, each way of a pair.",
)
@click.option(
    "--duplex/--no-duplex",
    default=True,
    show_default=True,
    help="With --transfers: both directions of a pair at once, too.",
)
@click.option(
    "--rdma/--no-rdma",
    default=False,
    show_default=True,
    help="With --transfers: bandwidth by RDMA WRITE (RoCE v2), too.",
)
@click.option(
    "--budget-gb",
    type=float,
    default=1000.0,
    show_default=True,
    help="With --transfers: most that all send together.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    help="Go on with an interrupted run: hosts and ways that it has are not asked again.",
)
@click.option(
    "--leaves", type=click.Path(path_type=Path), help="With --paths: which hosts hang on which leaf (YAML)."
)
@click.option(
    "--wiring", is_flag=True, help="Compare where cables go, by LLDP, with `leaf` of the membership."
)
@click.option(
    "--wiring-file", type=click.Path(path_type=Path), help="Compare with this plan (YAML); implies --wiring."
)
@click.option(
    "--wiring-wait",
    "wiring_wait_s",
    type=click.FloatRange(1, 300),
    default=35.0,
    show_default=True,
    help="With --wiring: how long to listen, seconds.",
)
@click.option(
    "--host-timeout",
    "host_timeout_s",
    type=click.FloatRange(1, 600),
    default=30.0,
    show_default=True,
    help="Seconds that a host has for its audit.",
)
@click.option(
    "--profile", "--sla", "profile", type=click.Path(path_type=Path), help="Values that hosts must have."
)
@run_output_option
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    help="Write the run here, too, as JSON; while it goes on, what there is so far.",
)
@click.option(
    "--publish/--no-publish",
    default=True,
    show_default=True,
    help="Send each agent the findings about its host, for `gate`.",
)
@html_option
@all_option
@fail_on_option("makes the exit code 10")
@ignore_option
@click.pass_context
def run_command(ctx: click.Context, /, **flags: Any) -> None:
    """Audit a fleet through the agents of its hosts, and compare the hosts with one another."""
    from fabricpulse.audit.fleet.fleet_audit import run_fleet
    from fabricpulse.audit.fleet.plan import FleetOptions

    require_writable(flags["save"], flags["html"])
    if flags["hosts"] == "-":
        flags["hosts"] = _standard_input()
    transfers = None
    if flags["rdma"] and not flags["transfers"]:
        raise click.UsageError("--rdma needs --transfers")
    if flags["transfers"]:
        from fabricpulse.audit.pair_tests.transfer_tests import LEAST_BYTES, Transfers

        transfers = Transfers(
            flags["rate_mbps"] * 1_000_000,
            flags["seconds"],
            datagrams=flags["datagrams"],
            duplex=flags["duplex"],
            rdma=flags["rdma"],
            loss_s=flags["loss_seconds"],
        )
        if not transfers.enough:
            raise click.UsageError(
                f"--rate {flags['rate_mbps']} for --seconds {flags['seconds']:g} is too little to be measured: "
                f"{LEAST_BYTES / 1000:g} kB at least"
            )

    warned: set[str] = set()

    def checkpoint(so_far: Run) -> None:
        if flags["save"] is None:
            return
        try:
            write_file(flags["save"], encode(so_far))
        except UserError as error:
            # The run goes on: what it finds is printed in the end.
            if str(error) not in warned:
                warned.add(str(error))
                click.echo(printable(f"warning: {error}"), err=True)

    options = FleetOptions(
        **{name: flags[name] for name in RUN_FLAGS},
        transfers=transfers,
        ring_s=flags["ring_seconds"] if flags["nccl"] else 0.0,
    )
    run = run_fleet(options, checkpoint)
    with printed(run, flags["output"], every=flags["every"]) as saving:
        if flags["save"] is not None:
            saving(lambda: write_file(flags["save"], encode(run)))
        saving(lambda: write_page(run, flags["html"]))
    if run.cancelled:
        ctx.exit(1)
    ctx.exit(exit_code(run.findings, flags["fail_on"], flags["ignore"]))


def _standard_input() -> str:
    """What is piped in, within bounds. Raises UserError."""
    data = sys.stdin.buffer.read(MOST_LIST + 1)
    if len(data) > MOST_LIST:
        raise UserError(f"host list: standard input has more than {MOST_LIST >> 20} MiB; give a shorter one")
    return data.decode("utf-8", "replace")


RUN_FLAGS = (
    "coordinator",
    "membership",
    "hosts",
    "agent_url",
    "client",
    "coordinator_client",
    "host_timeout_s",
    "profile",
    "paths",
    "all_pairs",
    "leaves",
    "budget_gb",
    "yes",
    "resume",
    "publish",
    "wiring",
    "wiring_file",
    "wiring_wait_s",
)
