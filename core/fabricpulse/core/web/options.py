"""How a daemon's HTTP server is set up, from the command line."""

from dataclasses import dataclass
from pathlib import Path

from fabricpulse.core.errors import OptionError

DEFAULT_TELEMETRY_PATH = "/metrics"
DEFAULT_MAX_REQUESTS = 40  # node_exporter's


@dataclass(frozen=True)
class WebOptions:
    """The options `--web.*`.

    listen : addresses HOST:PORT, [V6]:PORT or :PORT. config : exporter-toolkit file. telemetry_path : where the
    metrics are. max_requests : scrapes at a time, 0 for any number. systemd_socket : serve on the sockets that
    systemd hands over, instead of `listen`. max_request_bytes : of all requests in work;
    None for as many as the daemon needs.
    """

    listen: tuple[str, ...]
    config: Path | None = None
    telemetry_path: str = DEFAULT_TELEMETRY_PATH
    max_requests: int = DEFAULT_MAX_REQUESTS
    systemd_socket: bool = False
    max_request_bytes: int | None = None


def parse_address(address: str) -> tuple[str, int]:
    """`HOST:PORT`, `[V6]:PORT` or `:PORT` (all addresses) as (host, port). Raises OptionError."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        raise OptionError(f"listen address {address!r} is not HOST:PORT")
    if len(port) > 9 or int(port) > 65535:
        raise OptionError(f"listen address {address!r}: ports are 1 to 65535, and 0 for any that is free")
    return host.removeprefix("[").removesuffix("]"), int(port)
