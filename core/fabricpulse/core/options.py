"""Command-line options that every daemon takes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from fabricpulse.core.log import LEVELS, LogFormat, configure_logging


@dataclass(frozen=True)
class DaemonOptions:
    """What `daemon_options` has read from the command line."""

    config: Path | None
    listen: tuple[str, ...]
    web_config: Path | None
    log_level: str
    log_format: LogFormat


def daemon_options(default_listen: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `--config`, `--web.listen-address`, `--web.config.file`, `--log.level`, `--log.format`.

    The command receives one argument `options: DaemonOptions`, with logging already configured.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(
            config: Path | None,
            listen: tuple[str, ...],
            web_config: Path | None,
            log_level: str,
            log_format: str,
            **rest: Any,
        ) -> Any:
            fmt = cast(LogFormat, log_format)
            configure_logging(log_level, fmt)
            options = DaemonOptions(config, listen or (default_listen,), web_config, log_level, fmt)
            return function(options=options, **rest)

        wrapper.__name__ = function.__name__
        wrapper.__doc__ = function.__doc__
        wrapper.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        decorators = [
            click.option("--config", type=click.Path(path_type=Path), help="Configuration file (YAML)."),
            click.option(
                "--web.listen-address",
                "listen",
                multiple=True,
                metavar="ADDRESS",
                help=f"Address to serve HTTP on, HOST:PORT or :PORT; repeatable. [default: {default_listen}]",
            ),
            click.option(
                "--web.config.file",
                "web_config",
                type=click.Path(path_type=Path),
                help="TLS and basic authentication, in the format of the Prometheus exporter toolkit.",
            ),
            click.option(
                "--log.level", "log_level", type=click.Choice(LEVELS), default="info", show_default=True
            ),
            click.option(
                "--log.format",
                "log_format",
                type=click.Choice(["logfmt", "json"]),
                default="logfmt",
                show_default=True,
            ),
        ]
        decorated: Callable[..., Any] = wrapper
        for decorator in reversed(decorators):
            decorated = decorator(decorated)
        return decorated

    return decorate
