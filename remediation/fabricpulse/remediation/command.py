"""`fabricpulse remediation`: receiver, node agent, and what people ask of the receiver."""

import getpass
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
    from fabricpulse.remediation.receiver.app import Receiver
    from fabricpulse.remediation.receiver.config import ReceiverConfig

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
@click.option("--after", default=0, type=click.IntRange(0), help="Only lines with a higher number.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def journal(url: str, token_file: Path | None, limit: int, after: int, as_json: bool) -> None:
    """Show the journal: every delivery's consequence, with its reason."""
    lines = _client(url, token_file)(f"/api/v1/events?after={after}&limit={limit}")
    if as_json:
        for line in lines:
            click.echo(msgspec.json.encode(line).decode())
    else:
        journal_table(lines)


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
    if not url.startswith(("http://", "https://")):
        raise UserError(f"--url {url!r} is not an http(s) URL")
    headers = {"Content-Type": "application/json"}
    if token_file is not None:
        try:
            headers["Authorization"] = f"Bearer {token_file.read_text(encoding='utf-8').strip()}"
        except OSError as error:
            raise UserError(f"cannot read {token_file}: {error.strerror}") from error

    def call(path: str, message: dict[str, Any] | None = None) -> Any:
        body = None if message is None else msgspec.json.encode(message)
        request = urllib.request.Request(url.rstrip("/") + path, data=body, headers=headers)  # noqa: S310 - checked above
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                text = answer.read()
                kind = answer.headers.get_content_type()
        except urllib.error.HTTPError as error:
            detail = error.read(500).decode("utf-8", "replace").strip()
            raise UserError(f"the receiver at {url} refused: {detail or error.reason}") from error
        except (urllib.error.URLError, TimeoutError) as error:
            raise UserError(
                f"cannot reach the receiver at {url}: {getattr(error, 'reason', error)}; start it or give another --url"
            ) from error
        return msgspec.json.decode(text) if kind == "application/json" else text.decode()

    return call
