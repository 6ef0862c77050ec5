"""Requests of a daemon or command to a server: TLS, password and token from files, which may change at any time.

Credentials are never logged; `describe` makes a log field of an error whose text may hold a URL.
"""

import asyncio
import os
import socket
import ssl
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Any, Self

import aiohttp

from fabricpulse.core.errors import ConfigError
from fabricpulse.core.files import FileStamp
from fabricpulse.core.log import get_logger
from fabricpulse.core.reread import Reread
from fabricpulse.core.web.client_config import HttpClientConfig, TlsClientConfig
from fabricpulse.core.web.token_file import SecretFile, TokenFile
from fabricpulse.core.web.urls import redact

log = get_logger(__name__)

_TLS_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


# Bytes of a response: several times the membership of the largest fleet, or a scrape at the sample cap.
MOST_BODY = 64 << 20


class BodyTooLargeError(aiohttp.ClientError):
    """A response is larger than any valid one."""


class Credentials:
    """TLS context and Authorization header of requests, by the current content of the files."""

    def __init__(self, config: HttpClientConfig) -> None:
        """Raises ConfigError when a certificate, the password or the token cannot be read."""
        self._tls = config.tls_config
        self._user = config.basic_auth.username if config.basic_auth else ""
        self._password = SecretFile(
            "basic_auth.password_file", config.basic_auth.password_file if config.basic_auth else ""
        )
        self._token = TokenFile(config.token_file)
        self._reread = Reread(_stamps(self._tls))
        self._context = _new_context(self._tls) if self._tls else None

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The newest context, None for the system's defaults.

        Certificates that cannot be loaded, one without its key while both are replaced say, leave the old ones in force
        and are logged once.
        """
        if self._tls is not None and self._reread.is_due(stamps := _stamps(self._tls)):
            try:
                self._context = _new_context(self._tls)
                self._reread.succeeded(stamps)
            except ConfigError as error:
                if self._reread.failed(stamps):
                    log.error(
                        "client certificates cannot be loaded, the old ones stay in force", error=str(error)
                    )
        return self._context

    @property
    def headers(self) -> dict[str, str]:
        """The Authorization header, {} without a password or token."""
        if password := self._password.value:
            return {"Authorization": f"Basic {b64encode(f'{self._user}:{password}'.encode()).decode()}"}
        return self._token.header


class HttpClient:
    """A pool of connections whose requests carry the newest credentials. Made in a running event loop.

        client = HttpClient(config)
        async with client.get(url) as response: ...
        await client.close()

    Requests raise what aiohttp's do: ClientError, TimeoutError.
    """

    def __init__(self, config: HttpClientConfig, *, connections: int = 64) -> None:
        """connections : at a time, more wait. Raises ConfigError when a file that `config` names cannot be used."""
        self._credentials = Credentials(config)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections),
            timeout=aiohttp.ClientTimeout(total=config.timeout_s),
        )

    def request(self, method: str, url: str, **options: Any) -> Any:
        """As aiohttp.ClientSession.request: `async with` gives the response. options : of aiohttp's request.

        Only what reads follows redirects: of a POST they make a GET, and its 200, the page of a login, would say that
        something was done.
        """
        credentials = self._credentials
        if method not in ("GET", "HEAD"):
            options.setdefault("allow_redirects", False)
        headers = {**credentials.headers, **(options.pop("headers", None) or {})}
        if url.startswith("https:"):
            options.setdefault("ssl", credentials.tls or _system_context())
        return self.session.request(method, url, headers=headers, **options)

    def get(self, url: str, **options: Any) -> Any:
        """`request` with GET."""
        return self.request("GET", url, **options)

    def post(self, url: str, **options: Any) -> Any:
        """`request` with POST."""
        return self.request("POST", url, **options)

    async def close(self) -> None:
        """Closes all connections."""
        await self.session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def read_body(response: aiohttp.ClientResponse, limit: int = MOST_BODY) -> bytes:
    """The whole body. Raises BodyTooLargeError above `limit` bytes: the server may send without end."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            response.close()
            raise BodyTooLargeError(f"the answer is larger than {limit} bytes")
    return bytes(body)


def fetch(
    url: str, config: HttpClientConfig | None = None, *, method: str = "GET", **options: Any
) -> tuple[int, bytes]:
    """Status and body of one request, for commands: not to be called in an event loop.

    options : of aiohttp's request (`json`, `headers`, `timeout`). Raises ConfigError as HttpClient does,
    aiohttp.ClientError, TimeoutError.
    """

    async def once() -> tuple[int, bytes]:
        async with (
            HttpClient(config or HttpClientConfig()) as client,
            client.request(method, url, **options) as response,
        ):
            return response.status, await read_body(response)

    return asyncio.run(once())


def describe(error: BaseException) -> str:
    """What went wrong with a request, for a log line or a message: never empty, no credentials.

    A failed connection has the kernel's or the resolver's message: connection refused.
    """
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        cause = error.os_error
        if isinstance(cause, socket.gaierror) and cause.strerror:
            return f"{error.host}: {_lower(cause.strerror)}"
        return f"{error.host}:{error.port}: {_of_errno(cause)}"
    if (
        isinstance(error, OSError)
        and error.filename is None
        and not isinstance(error, aiohttp.ClientSSLError)
    ):
        return redact(_of_errno(error))
    return redact(str(error)) or type(error).__name__


def _of_errno(error: OSError) -> str:
    # asyncio replaces the kernel's message by "Connect call failed" with the address.
    if error.errno and not isinstance(error, (socket.gaierror, ssl.SSLError)):
        return _lower(os.strerror(error.errno))
    return str(error) or type(error).__name__


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


class _ClientContext(ssl.SSLContext):
    """A context that sends (SNI) and verifies one server name whatever the URL says; "" for that of the URL."""

    server_name = ""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        name = self.server_name or server_hostname
        return super().wrap_bio(incoming, outgoing, server_side, name, session)


def _new_context(tls: TlsClientConfig) -> ssl.SSLContext:
    """A new context each time: authorities and certificates of the previous one must not stay in use."""
    context = _ClientContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = tls.server_name
    try:
        if tls.ca_file:
            context.load_verify_locations(tls.ca_file)
        else:
            context.load_default_certs()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls_config.ca_file: cannot load certificates from {tls.ca_file}: {error.strerror}"
        ) from error
    context.minimum_version = _TLS_VERSIONS[tls.min_version]
    if tls.cert_file:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_passphrase)
        except (OSError, ssl.SSLError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(
                f"tls_config: cannot load cert_file {tls.cert_file} with key_file {tls.key_file}: {reason}"
            ) from error
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def check_tls(_path: Path, tls: TlsClientConfig) -> None:
    """For `fabricpulse check`: raises ConfigError when certificates or authorities cannot be used."""
    _new_context(tls)


@cache
def _system_context() -> ssl.SSLContext:
    """Trusts the certificate authorities of the system; not aiohttp's own, which has none in a daemon (core.start)."""
    return ssl.create_default_context()


def _no_passphrase() -> str:
    """Replaces OpenSSL's prompt on the terminal, for which a daemon would wait."""
    raise ValueError("the key is encrypted; give it without a passphrase")


def _stamps(tls: TlsClientConfig | None) -> tuple[FileStamp, ...]:
    names = (tls.ca_file, tls.cert_file, tls.key_file) if tls else ()
    return tuple(FileStamp.of(Path(name)) for name in names if name)
