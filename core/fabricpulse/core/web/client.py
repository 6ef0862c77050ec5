"""What every request to another daemon of ours shows and trusts: TLS, password and token, from files."""

import ssl
from base64 import b64encode
from pathlib import Path

import aiohttp

from fabricpulse.core.errors import ConfigError
from fabricpulse.core.web.client_config import HttpClientConfig


def open_session(config: HttpClientConfig) -> aiohttp.ClientSession:
    """A session; tokens are the caller's, who reads them again. Raises ConfigError when a certificate or the password
    file cannot be used.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls_context(config) or True, limit=64),
        timeout=aiohttp.ClientTimeout(total=config.timeout_s),
        headers=password_header(config),
    )


def tls_context(config: HttpClientConfig) -> ssl.SSLContext | None:
    """What to trust and to show, None for the system's defaults. Raises ConfigError naming what cannot be loaded."""
    tls = config.tls_config
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls_config.ca_file: cannot load certificates from {tls.ca_file}: {error.strerror}"
        ) from error
    if tls.cert_file:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls_config: cannot load cert_file {tls.cert_file} with key_file {tls.key_file}: {error.strerror}"
            ) from error
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def password_header(config: HttpClientConfig) -> dict[str, str]:
    """The header that shows user and password, {} without. Raises ConfigError when the file cannot be read."""
    if config.basic_auth is None:
        return {}
    file = config.basic_auth.password_file
    try:
        password = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"basic_auth.password_file: cannot read {file}: {reason}") from error
    credentials = b64encode(f"{config.basic_auth.username}:{password}".encode()).decode()
    return {"Authorization": f"Basic {credentials}"}
