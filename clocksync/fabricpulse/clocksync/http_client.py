"""HTTP sessions to coordinators and neighbours, with TLS and password from files that may change while we
run.
"""

import ssl
from pathlib import Path

import aiohttp

from fabricpulse.clocksync.config import HttpClientConfig
from fabricpulse.core.errors import ConfigError


def open_session(config: HttpClientConfig) -> aiohttp.ClientSession:
    """A session. Raises ConfigError when a certificate or the password file cannot be used."""
    headers = {}
    if config.basic_auth is not None:
        try:
            password = Path(config.basic_auth.password_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(
                f"http_client.basic_auth: cannot read {config.basic_auth.password_file}: {error.strerror}"
            ) from error
        headers["Authorization"] = aiohttp.BasicAuth(config.basic_auth.username, password).encode()
    context: ssl.SSLContext | bool = True
    tls = config.tls_config
    if tls is not None:
        try:
            context = ssl.create_default_context(cafile=tls.ca_file or None)
            if tls.cert_file:
                context.load_cert_chain(tls.cert_file, tls.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"http_client.tls_config: cannot load the certificates: {error}") from error
        if tls.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context, limit=64),
        timeout=aiohttp.ClientTimeout(total=config.timeout_s),
        headers=headers,
    )
