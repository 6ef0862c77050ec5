"""Command-line options of a request: single keys of a file of HttpClientConfig, replaced."""

from pathlib import Path

import msgspec

from fabricpulse.core.config import load_config
from fabricpulse.core.errors import UserError
from fabricpulse.core.web.client_config import HttpClientConfig, TlsClientConfig, check_credentials
from fabricpulse.core.web.urls import check_base_url


def client_config(
    name: str,
    url: str,
    file: Path | None,
    *,
    token_file: str = "",
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
) -> HttpClientConfig:
    """The keys of `file`, or the defaults, with those that are given replaced; a token replaces a password.

    name : of the option that holds `url`. Raises UserError for a URL to which no path can be added, for one whose
    password another one would replace, and for keys that do not fit together.
    """
    try:
        check_base_url(name, url)
        config = load_config(file, HttpClientConfig)
        if token_file:
            config = msgspec.structs.replace(config, token_file=token_file, basic_auth=None)
        if ca_file or cert_file or key_file:
            tls = config.tls_config or TlsClientConfig()
            tls = msgspec.structs.replace(
                tls,
                ca_file=ca_file or tls.ca_file,
                cert_file=cert_file or tls.cert_file,
                key_file=key_file or tls.key_file,
            )
            tls.validate()
            config = msgspec.structs.replace(config, tls_config=tls)
        config.validate()
        check_credentials(name, url, config)
    except ValueError as error:
        raise UserError(str(error)) from error
    return config
