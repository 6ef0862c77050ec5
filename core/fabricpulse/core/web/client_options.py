"""Command-line options of requests: TLS and credentials.

Every command that sends requests takes the same ones: a file of HttpClientConfig, and options that replace single keys
of it, each with an environment variable.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from fabricpulse.core.config import load_config
from fabricpulse.core.errors import OptionError
from fabricpulse.core.web.client_config import HttpClientConfig, TlsClientConfig, check_credentials
from fabricpulse.core.web.urls import check_base_url

# Prefixes of the environment variables. A server must not get the credentials of another one, so the servers that a
# command queries beside the daemons of hosts have their own.
DAEMONS = "FABRICPULSE_CLIENT"
COORDINATOR = "FABRICPULSE_COORDINATOR"
RECEIVER = "FABRICPULSE_RECEIVER"
PROMETHEUS = "FABRICPULSE_PROMETHEUS"

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class ClientOptions:
    """The values of `client_options`; an empty string is an option that was not given."""

    http_config: Path | None = None
    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""

    def __bool__(self) -> bool:
        """Whether any option was given."""
        return self != ClientOptions()

    def config(self, name: str, *urls: str) -> HttpClientConfig:
        """The keys of the file, or the defaults, with those that are given replaced; a token replaces a password.

        name : of the option that holds `urls`. Raises OptionError for a URL to which no path can be added, for one
        whose password another one would replace, and for keys that do not fit together.
        """
        try:
            for url in urls:
                check_base_url(name, url)
            config = load_config(self.http_config, HttpClientConfig)
            if self.token_file:
                config = msgspec.structs.replace(config, token_file=self.token_file, basic_auth=None)
            if self.ca_file or self.cert_file or self.key_file:
                tls = config.tls_config or TlsClientConfig()
                tls = msgspec.structs.replace(
                    tls,
                    ca_file=self.ca_file or tls.ca_file,
                    cert_file=self.cert_file or tls.cert_file,
                    key_file=self.key_file or tls.key_file,
                )
                tls.validate()
                config = msgspec.structs.replace(config, tls_config=tls)
            config.validate()
            for url in urls:
                check_credentials(name, url, config)
        except ValueError as error:
            raise OptionError(str(error)) from error
        return config


def client_options(
    server: str = "the daemon", variables: str = DAEMONS, *, prefix: str = "", parameter: str = "client"
) -> Callable[[_F], Callable[..., Any]]:
    """Adds `--http.config.file`, `--token-file`, `--ca-file`, `--cert-file` and `--key-file`.

    The command receives `parameter`: ClientOptions. server : whom the requests go to, for the help. variables : what
    the environment variables begin with. prefix : for the second server of a command: `receiver` makes
    `--receiver.http.config.file` and `--receiver-token-file`, and of the others none.
    """
    dash, dot = (f"{prefix}-", f"{prefix}.") if prefix else ("", "")
    single = [("token_file", f"File with a bearer token for {server}.")]
    if not prefix:
        single += [
            ("ca_file", f"Authorities that may sign the certificate of {server} (PEM)."),
            ("cert_file", "Client certificate to show (PEM)."),
            ("key_file", "Key of the client certificate (PEM)."),
        ]

    def decorate(function: _F) -> Callable[..., Any]:
        def wrapper(*args: Any, **given: Any) -> Any:
            file = given.pop(f"{parameter}_http_config")
            keys = {name: given.pop(f"{parameter}_{name}") for name, _ in single}
            return function(*args, **given, **{parameter: ClientOptions(file, **keys)})

        wrapper.__name__ = function.__name__
        wrapper.__doc__ = function.__doc__
        decorated: Callable[..., Any] = wrapper
        decorated.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        for name, text in reversed(single):
            decorated = click.option(
                f"--{dash}{name.replace('_', '-')}",
                f"{parameter}_{name}",
                default="",
                type=click.Path(),
                metavar="FILE",
                envvar=f"{variables}_{name.upper()}",
                show_envvar=True,
                help=text,
            )(decorated)
        return click.option(
            f"--{dot}http.config.file",
            f"{parameter}_http_config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            envvar=f"{variables}_HTTP_CONFIG_FILE",
            show_envvar=True,
            help=f"TLS, password or token for {server} (YAML, the keys of http_client).",
        )(decorated)

    return decorate
