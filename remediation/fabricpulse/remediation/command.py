"""`fabricpulse remediation`: receiver, node agent, and the operator's commands."""

import getpass
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fabricpulse.core.command_group import CommandGroup
from fabricpulse.core.config import load_config
from fabricpulse.core.daemon import run_daemon
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.core.options import DaemonOptions, daemon_options
from fabricpulse.core.output import OutputFormat, output_option
from fabricpulse.core.web.client_options import RECEIVER, ClientOptions, client_options

# Exit code of `status` when remediation does not work as a whole, or waits for an operator.
NEEDS_ATTENTION = 3
_DRAIN_IS_OVER = ("returned", "dropped", "dry_run")


def _client_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that say where the receiver is and what to show it, and hands over a client."""

    def wrapper(url: str, client: ClientOptions, **rest: Any) -> None:
        from fabricpulse.remediation.operator_client import OperatorClient

        function(OperatorClient(url, client), **rest)

    wrapper.__name__ = function.__name__
    wrapper.__doc__ = function.__doc__
    wrapper.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    return click.option(
        "--url",
        default="http://localhost:9615",
        show_default=True,
        envvar=RECEIVER,
        show_envvar=True,
        help="Base URL of the receiver.",
    )(client_options("the receiver", RECEIVER)(wrapper))


@click.group(cls=CommandGroup)
def command() -> None:
    """Act on alerts: the receiver, and the agent of a host."""


@command.command()
@daemon_options(DAEMONS["remediation-receiver"].listen)
def receiver(options: DaemonOptions) -> None:
    """Take Alertmanager's webhooks, decide, and keep the journal. One per fleet."""
    from fabricpulse.remediation.receiver.policy import load_policy
    from fabricpulse.remediation.receiver.receiver import run_receiver

    policy = load_policy(options.config)
    run_daemon(lambda life: run_receiver(policy, life, options))


@command.command()
@daemon_options(DAEMONS["remediation-node"].listen)
def node(options: DaemonOptions) -> None:
    """Carry out the receiver's decisions on this host's jobs. One per GPU host."""
    from fabricpulse.remediation.node.agent import NodeAgent
    from fabricpulse.remediation.node.config import NodeConfig

    config = load_config(options.config, NodeConfig)
    run_daemon(lambda life: NodeAgent(config, life).run(options))


@command.command()
@_client_options
@output_option
def status(client: Any, output: OutputFormat) -> None:
    """Show problems, NICs with a decision, hosts that are left, and agents.

    Exit code 0 when remediation can act, 3 when it cannot or waits for an operator (the problems say why), 1 when the
    receiver is not reached.
    """
    from fabricpulse.remediation.tables import status_tables

    document, targets = client.get("/api/v1/status"), client.get("/api/v1/targets")
    drains = [drain for drain in client.get("/api/v1/drains") if drain["phase"] not in _DRAIN_IS_OVER]
    if output == "json":
        _print_json(document | {"targets": targets, "drains": drains})
    else:
        status_tables(document, targets, drains)
    if document["problems"]:
        raise SystemExit(NEEDS_ATTENTION)


@command.command()
@_client_options
@output_option
@click.argument("host", metavar="HOST|ALERT.json")
@click.argument("device", default="")
def explain(client: Any, output: OutputFormat, host: str, device: str) -> None:
    """Show why a NIC, or a host that was left, is where it is, and what it waits for; or what an alert would come to.

    ALERT.json holds an alert, a list of them, or a webhook body, as Alertmanager gives them; - is standard input.
    """
    from urllib.parse import quote

    from fabricpulse.core.output import printable
    from fabricpulse.remediation.tables import actions_table, drain_lines

    if not device:
        try:
            with click.open_file(host, "rb") as file:
                document = file.read()
        except OSError as error:
            is_file = "/" in host or host.endswith(".json")
            all_drains = [] if is_file else client.get("/api/v1/drains")
            drains = [drain for drain in all_drains if drain["host"] == host]
            if not drains:
                hint = "give a host and a NIC, a host that was left, or a file with an alert"
                raise UserError(f"cannot read {host}: {error.strerror}; {hint}") from error
            if output == "json":
                _print_json(drains)
            else:
                for line in drain_lines(drains[-1]):
                    click.echo(printable(line))
            return
        answers = json.loads(client.post("/api/v1/explain", _json_document(document, host)))
        if output == "json":
            _print_json(answers)
            return
        for answer in answers:
            target = answer["target"]
            name = f"{target['host']}/{target['device']}" if target else "-"
            click.echo(printable(f"{answer['alert']} {name}: {answer['next']}"))
        return
    found = client.get(f"/api/v1/explain?host={quote(host)}&device={quote(device)}")
    if output == "json":
        _print_json(found)
        return
    target = found["target"]
    click.echo(printable(f"{host}/{device}: {target['phase']}, health {found['health']}"))
    click.echo(f"next: {printable(found['next'])}")
    for episode in found["episodes"]:
        click.echo(printable(f"alert {episode['alert']}: {episode['status']} {' '.join(episode['causes'])}"))
    if found["actions"]:
        actions_table(found["actions"])


@command.command()
@_client_options
@output_option
def actions(client: Any, output: OutputFormat) -> None:
    """Show what was decided and what became of it."""
    from fabricpulse.remediation.tables import actions_table

    found = client.get("/api/v1/actions")
    if output == "json":
        _print_json(found)
    else:
        actions_table(found)


@command.command()
@_client_options
@output_option
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Lines at most.")
@click.option(
    "--after", type=click.IntRange(0), help="Only lines with a higher number. [default: the newest]"
)
def journal(client: Any, output: OutputFormat, limit: int, after: int | None) -> None:
    """Show the journal: every decision and what became of it, with its reason."""
    from fabricpulse.remediation.tables import journal_table

    lines = client.get(f"/api/v1/events?limit={limit}&{'last=1' if after is None else f'after={after}'}")
    if output == "json":
        _print_json(lines)
    else:
        journal_table(lines)


@command.command()
@_client_options
@output_option
def verify(client: Any, output: OutputFormat) -> None:
    """Check the journal's hash chain and seal; exit code 1 if a line or the state was changed by another program."""
    from fabricpulse.core.output import printable

    found = client.get("/api/v1/verify", is_long=True)
    if output == "json":
        _print_json(found)
    if not found["intact"]:
        raise UserError(f"the journal is broken: {printable(found['reason'])}")
    if output != "json":
        click.echo(f"the journal is intact: {found['length']} lines, head {found['head']}")


@command.command()
@_client_options
@output_option
@click.argument("name", metavar="OPERATION|HOST/DEVICE")
def show(client: Any, output: OutputFormat, name: str) -> None:
    """Show all that the journal has about an operation, or about a NIC."""
    from urllib.parse import quote

    from fabricpulse.remediation.tables import actions_table, journal_table

    found = client.get(f"/api/v1/show?id={quote(name, safe='')}")
    if output == "json":
        _print_json(found)
        return
    if found["action"] is not None:
        actions_table([found["action"]])
    journal_table(found["lines"])


@command.command()
@_client_options
@output_option
def plans(client: Any, output: OutputFormat) -> None:
    """Show what waits for an operator's approval (rules with mode: approve)."""
    from fabricpulse.remediation.tables import plans_table

    found = client.get("/api/v1/plans")
    if output == "json":
        _print_json(found)
    else:
        plans_table(found)


@command.command()
@_client_options
@click.argument("plan")
def approve(client: Any, plan: str) -> None:
    """Approve a plan by its hash. It is carried out when the guards allow, within 15 minutes or not at all."""
    click.echo(client.post("/api/v1/approve", {"plan": plan, "owner": getpass.getuser()}))


@command.command()
@click.argument("config", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@output_option
def check(config: Path, output: OutputFormat) -> None:
    """Check a receiver's configuration and every file that it names; exit code 2 when it cannot be used."""
    from fabricpulse.core.output import printable
    from fabricpulse.remediation.receiver.policy import advice, load_policy

    policy = load_policy(config)
    if output == "json":
        rules = [{"alert": r.alert, "action": r.action, "mode": r.mode} for r in policy.config.rules]
        _print_json({"policy": policy.digest, "rules": rules, "notes": list(advice(policy))})
        return
    for rule in policy.config.rules:
        click.echo(printable(f"{rule.alert}: {rule.action}, {rule.mode}"))
    for line in advice(policy):
        click.echo(printable(f"note: {line}"))
    click.echo(f"{config} can be used; policy {policy.digest}")


@command.command()
@output_option
@click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The receiver configuration to try.",
)
@click.argument("export_file", metavar="EXPORT", type=click.File("r", encoding="utf-8"))
def replay(output: OutputFormat, config: Path, export_file: Any) -> None:
    """Show what another configuration would have decided about the deliveries of the past.

    EXPORT is what `export --deliveries` writes; - is standard input. Hosts are assumed to be healthy and to
    carry out all commands.
    """
    from fabricpulse.remediation.receiver.policy import load_policy
    from fabricpulse.remediation.receiver.replay import Replay, past_of
    from fabricpulse.remediation.tables import replay_tables

    policy = load_policy(config)
    try:
        decided, deliveries = past_of(export_file)
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"cannot replay {export_file.name}: {error}") from error
    if not deliveries:
        raise UserError(
            f"{export_file.name} has no deliveries; write it with `export --deliveries`, which has 7 days"
        )
    run = Replay(policy.config, policy.inventory)
    for at, alerts in deliveries:
        run.deliver(at, alerts)
    end = max([line.at for line in decided], default=0.0)
    run.advance(max(end, deliveries[-1][0] + policy.config.guards.settle_s + 1))
    document = {
        "deliveries": len(deliveries),
        "was": [asdict(line) for line in decided],
        "would_be": [asdict(line) for line in run.lines],
    }
    if output == "json":
        _print_json(document)
    else:
        replay_tables(document)


@command.command()
@_client_options
@click.option("--deliveries", is_flag=True, help="Also the webhook bodies as they came (kept for 7 days).")
def export(client: Any, deliveries: bool) -> None:
    """Write the whole journal to standard output, one JSON object a line."""
    client.copy("/api/v1/export" + ("?deliveries=1" if deliveries else ""))


@command.command()
@_client_options
@click.option("--reason", required=True, help="Why; it goes into the journal.")
@click.option(
    "--for", "duration_s", default=0.0, type=click.FloatRange(0), help="Seconds; 0 = until resumed."
)
def pause(client: Any, reason: str, duration_s: float) -> None:
    """Stop deciding anything. NICs stay as they are."""
    message = {"reason": reason, "owner": getpass.getuser(), "duration_s": duration_s}
    click.echo(client.post("/api/v1/pause", message))


@command.command()
@_client_options
def resume(client: Any) -> None:
    """End a pause and reset tripped breakers."""
    click.echo(client.post("/api/v1/resume", {"owner": getpass.getuser()}))


@command.command()
@_client_options
@click.argument("host")
@click.argument("device", default="")
def release(client: Any, host: str, device: str) -> None:
    """Put a NIC back into service now, without waiting for its hold; without DEVICE a host that was drained."""
    click.echo(client.post("/api/v1/release", {"host": host, "device": device, "owner": getpass.getuser()}))


@command.command("token")
@click.argument("host")
@click.option(
    "--key-file", required=True, type=click.Path(path_type=Path), help="As key_file in the receiver's access."
)
def token_command(host: str, key_file: Path) -> None:
    """Print the bearer token of one host's agent."""
    from fabricpulse.core.web.token_file import SecretFile
    from fabricpulse.remediation.receiver.web.auth import agent_token

    click.echo(agent_token(SecretFile("--key-file", str(key_file)).value, host))


@command.command()
@click.argument("private", type=click.Path(path_type=Path))
@click.argument("public", type=click.Path(path_type=Path))
def keygen(private: Path, public: Path) -> None:
    """Make a key that signs messages to agents: PRIVATE for the receiver, PUBLIC (appended to) for the hosts.

    To rotate: keygen with the same PUBLIC, bring that to the hosts (receiver_keys), then put the new PRIVATE in the
    place of the receiver's signing_key_file; no restart is needed. Take the old block out of PUBLIC at last.
    """
    from fabricpulse.remediation.signing import make_key_pair

    click.echo(f"key {make_key_pair(private, public)}: {private} for the receiver, {public} for the hosts")


@command.command()
@_client_options
@click.argument("host")
def forget(client: Any, host: str) -> None:
    """Drop everything that is known of a host that was retired."""
    click.echo(client.post("/api/v1/forget", {"host": host, "owner": getpass.getuser()}))


def _json_document(body: bytes, name: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not JSON: {error}") from error


def _print_json(document: Any) -> None:
    """One document in ASCII: what is not printable is an escape."""
    click.echo(json.dumps(document, indent=2))
