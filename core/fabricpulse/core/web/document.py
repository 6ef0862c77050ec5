"""One JSON document of a daemon, for a command that shows it; every failure is a sentence that says what to do."""

import ssl
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.core.web.client import describe, fetch
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.urls import check_base_url, redact


def fetch_document(
    url: str, path: str, config: HttpClientConfig, *, daemon: str, option: str = "--url"
) -> Any:
    """The document at `url` + `path`. daemon : what answers there. option : the one that holds `url`.

    Raises UserError, without credentials in it, when none comes; OptionError when `url` is none;
    ConfigError when a file of `config` cannot be used.
    """
    try:
        check_base_url(option, url)
    except ValueError as error:
        raise OptionError(str(error)) from error
    shown = redact(url)
    try:
        status, body = fetch(url.rstrip("/") + path, config)
    except (aiohttp.ClientError, OSError) as error:
        raise UserError(_unreachable(shown, error, config, daemon, option)) from error
    if status != HTTPStatus.OK:
        raise UserError(_refusal(shown, path, status, config, daemon))
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UserError(f"what {shown} answers is not from a {daemon}: it is not JSON") from error


def _refusal(url: str, path: str, status: int, config: HttpClientConfig, daemon: str) -> str:
    if status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return f"{url} answers with status {status} instead of what a {daemon} has at {path}"
    if config.basic_auth or config.token_file:
        return f"{url} does not accept the password or token that was shown ({status})"
    return f"{url} asks for a password or token ({status}): give --token-file, or basic_auth in --http.config.file"


def _unreachable(url: str, error: Exception, config: HttpClientConfig, daemon: str, option: str) -> str:
    cause = error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    if isinstance(cause, ssl.SSLCertVerificationError):
        # A wrong name is a certificate that is trusted, and shows another host.
        if "mismatch" in cause.verify_message:
            return f"the certificate of {url} is not for this name: {cause.verify_message}"
        return (
            f"the certificate of {url} is not trusted: {cause.verify_message}; give its authority with "
            "--ca-file"
        )
    if isinstance(cause, ssl.SSLError):
        why = cause.reason or describe(cause)
        return f"TLS with {url} failed: {why}; does it speak https, or ask for a certificate of yours?"
    closed = (aiohttp.ServerDisconnectedError, aiohttp.ClientResponseError, ConnectionResetError)
    if isinstance(cause, closed) and url.startswith("http://"):
        return f"{url} closed the connection without a proper answer: does it speak https?"
    reason = describe(cause)
    if isinstance(cause, TimeoutError):
        reason = f"no answer within {config.timeout_s:g} s"
    return f"no {daemon} answers at {url}: {reason}; is the daemon running, and {option} right?"
