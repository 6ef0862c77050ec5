"""`fabricpulse remediation`: receiver, node agent, and the operator's commands."""

import getpass
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import click
import msgspec

from fabricpulse.core.config import load_config
from fabricpulse.core.daemon import run_daemon
from fabricpulse.core.errors import UserError
from fabricpulse.core.options import DaemonOptions, daemon_options
from fabricpulse.core.web.token_file import TokenFile
from fabricpulse.core.web.urls import check_base_url
from fabricpulse.remediation.tables import actions_table, journal_table, status_tables

_URL = click.option(
    "--url",
    default="http://localhost:9615",
    show_default=True,
    help="Base URL of the receiver.",
    envvar="FABRICPULSE_RECEIVER",
)
_TOKEN = click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="Bearer token.",
    envvar="FABRICPULSE_RECEIVER_TOKEN_FILE",
)


@click.group()
def command() -> None:
    """Act on alerts: the receiver, and the agent of a host."""


@command.command()
@daemon_options(":9615")
def receiver(options: DaemonOptions) -> None:
    """Take Alertmanager's webhooks, decide, and keep the journal. One per fleet."""
    from fabricpulse.remediation.receiver.config import ReceiverConfig
    from fabricpulse.remediation.receiver.receiver import Receiver

    config = load_config(options.config, ReceiverConfig)
    run_daemon(lambda life: Receiver(config, life).run(options))


@command.command()
@daemon_options(":9616")
def node(options: DaemonOptions) -> None:
    """Carry out the receiver's decisions on this host's jobs. One per GPU host."""
    from fabricpulse.remediation.node.agent import NodeAgent
    from fabricpulse.remediation.node.config import NodeConfig

    config = load_config(options.config, NodeConfig)
    run_daemon(lambda life: NodeAgent(config, life).run(options))


@command.command()
@_URL
@_TOKEN
def status(url: str, token_file: Path | None) -> None:
    """Show NICs out of service, agents, pause and breakers."""
    get = _client(url, token_file)
    status_tables(get("/api/v1/status"), get("/api/v1/targets"))


@command.command()
@_URL
@_TOKEN
def actions(url: str, token_file: Path | None) -> None:
    """Show what was decided and what became of it."""
    actions_table(_client(url, token_file)("/api/v1/actions"))


@command.command()
@_URL
@_TOKEN
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Lines at most.")
@click.option(
    "--after", type=click.IntRange(0), help="Only lines with a higher number. [default: the newest]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--verify", is_flag=True, help="Check the hash chain instead; exit code 1 if it is broken.")
def journal(
    url: str, token_file: Path | None, limit: int, after: int | None, as_json: bool, verify: bool
) -> None:
    """Show the journal: every decision and what became of it, with its reason."""
    call = _client(url, token_file)
    if verify:
        found = call("/api/v1/verify")
        if not found["intact"]:
            raise UserError(f"the journal is broken: {found['reason']}")
        click.echo(f"the journal is intact: {found['length']} lines, head {found['head']}")
        return
    lines = call(f"/api/v1/events?limit={limit}&{'last=1' if after is None else f'after={after}'}")
    if as_json:
        for line in lines:
            click.echo(msgspec.json.encode(line).decode())
    else:
        journal_table(lines)


@command.command()
@_URL
@_TOKEN
@click.option("--deliveries", is_flag=True, help="Also the webhook bodies as they came (kept for 7 days).")
def export(url: str, token_file: Path | None, deliveries: bool) -> None:
    """Write the whole journal to standard output, one JSON object a line."""
    path = "/api/v1/export" + ("?deliveries=1" if deliveries else "")
    with _open(url, path, token_file) as answer:
        while block := answer.read(1 << 16):
            sys.stdout.buffer.write(block)


@command.command()
@_URL
@_TOKEN
@click.option("--reason", required=True, help="Why; it goes into the journal.")
@click.option(
    "--for", "duration_s", default=0.0, type=click.FloatRange(0), help="Seconds; 0 = until resumed."
)
def pause(url: str, token_file: Path | None, reason: str, duration_s: float) -> None:
    """Stop deciding anything. NICs stay as they are."""
    message = {"reason": reason, "owner": getpass.getuser(), "duration_s": duration_s}
    click.echo(_client(url, token_file)("/api/v1/pause", message), nl=False)


@command.command()
@_URL
@_TOKEN
def resume(url: str, token_file: Path | None) -> None:
    """End a pause and reset tripped breakers."""
    click.echo(_client(url, token_file)("/api/v1/resume", {"owner": getpass.getuser()}), nl=False)


@command.command()
@_URL
@_TOKEN
@click.argument("host")
@click.argument("device")
def release(url: str, token_file: Path | None, host: str, device: str) -> None:
    """Put a NIC back into service now, whatever the hold-down says."""
    message = {"host": host, "device": device, "owner": getpass.getuser()}
    click.echo(_client(url, token_file)("/api/v1/release", message), nl=False)


def _client(url: str, token_file: Path | None) -> Any:
    def call(path: str, message: dict[str, Any] | None = None) -> Any:
        with _open(url, path, token_file, message) as answer:
            text = answer.read()
            kind = answer.headers.get_content_type()
        if kind != "application/json":
            return text.decode("utf-8", "replace")
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise UserError(f"what answers at {url} is no receiver: {error}") from error

    return call


def _open(url: str, path: str, token_file: Path | None, message: dict[str, Any] | None = None) -> Any:
    try:
        check_base_url("--url", url)
    except ValueError as error:
        raise UserError(str(error)) from error
    headers = {"Content-Type": "application/json"}
    if token_file is not None:
        headers |= TokenFile(str(token_file)).header
    body = None if message is None else msgspec.json.encode(message)
    request = urllib.request.Request(url.rstrip("/") + path, data=body, headers=headers)  # noqa: S310 - checked above
    try:
        return urllib.request.urlopen(request, timeout=10)  # noqa: S310
    except urllib.error.HTTPError as error:
        with error:
            detail = error.read(500).decode("utf-8", "replace").strip()
        raise UserError(f"the receiver at {url} refused: {detail or error.reason}") from error
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"cannot reach the receiver at {url}: {reason}; start it or give another --url"
        ) from error
