"""Command-line options that every daemon takes."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from fabricpulse.core.log import LEVELS, LogFormat, configure_logging
from fabricpulse.core.start import begin_start, end_start
from fabricpulse.core.web.options import (
    DEFAULT_MAX_REQUESTS,
    DEFAULT_TELEMETRY_PATH,
    WebOptions,
    parse_address,
)

_PATH = re.compile(r"/[\w./~-]*", re.ASCII)


@dataclass(frozen=True)
class DaemonOptions:
    """What `daemon_options` has read from the command line."""

    config: Path | None
    web: WebOptions
    log_level: str
    log_format: LogFormat


def daemon_options(default_listen: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `--config`, `--web.*`, `--log.level` and `--log.format`.

    The command receives one argument `options: DaemonOptions`, with logging already configured. What it needs of HTTP
    it imports itself, so that the start is cheap (core.start).
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(
            config: Path | None,
            listen: tuple[str, ...],
            web_config: Path | None,
            telemetry_path: str,
            max_requests: int,
            max_request_bytes: int | None,
            systemd_socket: bool,
            log_level: str,
            log_format: str,
            **rest: Any,
        ) -> Any:
            fmt = cast(LogFormat, log_format)
            configure_logging(log_level, fmt)
            addresses = listen or (default_listen,)
            web = WebOptions(
                addresses, web_config, telemetry_path, max_requests, systemd_socket, max_request_bytes
            )
            begin_start()
            try:
                return function(options=DaemonOptions(config, web, log_level, fmt), **rest)
            finally:
                end_start()

        wrapper.__name__ = function.__name__
        wrapper.__doc__ = function.__doc__
        wrapper.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        decorators = [
            click.option(
                "--config",
                "--config.file",
                "config",
                type=click.Path(path_type=Path),
                help="Configuration file (YAML).",
            ),
            click.option(
                "--web.listen-address",
                "listen",
                multiple=True,
                metavar="ADDRESS",
                callback=_addresses,
                help=f"Address to serve HTTP on, HOST:PORT or :PORT; repeatable. [default: {default_listen}]",
            ),
            click.option(
                "--web.config.file",
                "web_config",
                type=click.Path(path_type=Path),
                help="TLS and basic authentication, in the format of the Prometheus exporter toolkit.",
            ),
            click.option(
                "--web.telemetry-path",
                "telemetry_path",
                default=DEFAULT_TELEMETRY_PATH,
                show_default=True,
                metavar="PATH",
                callback=_url_path,
                help="Path of the metrics.",
            ),
            click.option(
                "--web.max-requests",
                "max_requests",
                type=click.IntRange(min=0),
                default=DEFAULT_MAX_REQUESTS,
                show_default=True,
                help="Scrapes that are answered at a time, 503 above; 0 for any number.",
            ),
            click.option(
                "--web.max-request-bytes",
                "max_request_bytes",
                type=click.IntRange(min=1 << 20),
                metavar="BYTES",
                help="Bytes of all requests that are read or answered at a time, 503 above; one may have half. "
                "[default: 64 MiB, 256 MiB of the remediation receiver]",
            ),
            click.option(
                "--web.systemd-socket",
                "systemd_socket",
                is_flag=True,
                help="Serve on the sockets of a systemd .socket unit, not on --web.listen-address.",
            ),
            click.option(
                "--log.level",
                "log_level",
                type=click.Choice(LEVELS),
                default="info",
                show_default=True,
                help="Least severity of the lines that are logged.",
            ),
            click.option(
                "--log.format",
                "log_format",
                type=click.Choice(["logfmt", "json"]),
                default="logfmt",
                show_default=True,
                help="Format of log lines.",
            ),
        ]
        decorated: Callable[..., Any] = wrapper
        for decorator in reversed(decorators):
            decorated = decorator(decorated)
        return decorated

    return decorate


def _addresses(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    # A typing error is said before anything is opened, locked or asked.
    for value in values:
        parse_address(value)
    return values


def _url_path(_: click.Context, __: click.Parameter, value: str) -> str:
    # Anything else aiohttp would take for a pattern, or no scraper could ask for.
    if not _PATH.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no path; it begins with / and has letters, digits, / . _ ~ -")
    if value.startswith(("/-/", "/api/")):
        raise click.BadParameter(f"{value!r} is taken; choose one outside of /-/ and /api/")
    return value
