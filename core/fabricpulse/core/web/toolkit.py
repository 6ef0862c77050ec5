"""TLS and basic authentication from a file in the format of the Prometheus exporter toolkit.

The file is looked at again on each request and each handshake, so that certificates and passwords rotate without a
restart; a file that has become unreadable keeps the old settings in force and is logged.
"""

import asyncio
import base64
import binascii
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import bcrypt
from aiohttp import web
from aiohttp.typedefs import Handler

from fabricpulse.core.config import Section, load_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.log import get_logger

log = get_logger(__name__)

ClientAuth = Literal[
    "NoClientCert", "RequestClientCert", "RequireAnyClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
]


class TlsServerConfig(Section, frozen=True):
    """`tls_server_config` of the exporter toolkit."""

    cert_file: str = ""
    key_file: str = ""
    client_auth_type: ClientAuth = "NoClientCert"
    client_ca_file: str = ""
    client_allowed_sans: tuple[str, ...] = ()
    min_version: Literal["TLS12", "TLS13"] = "TLS12"

    def validate(self) -> None:
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file are needed together")
        if self.client_auth_type.endswith(("IfGiven", "AndVerifyClientCert")) and not self.client_ca_file:
            raise ValueError(f"client_auth_type {self.client_auth_type} needs client_ca_file")
        if self.client_auth_type in ("RequestClientCert", "RequireAnyClientCert"):
            raise ValueError(
                f"client_auth_type {self.client_auth_type} is not offered: it lets any certificate in; "
                "use RequireAndVerifyClientCert"
            )
        if self.client_allowed_sans and self.client_auth_type != "RequireAndVerifyClientCert":
            raise ValueError("client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")


class WebFile(Section, frozen=True):
    """The whole file."""

    tls_server_config: TlsServerConfig | None = None
    basic_auth_users: dict[str, str] = {}


class WebConfig:
    """The file in force, and how to read it again."""

    def __init__(self, path: Path, content: WebFile, stamp: tuple[int, ...]) -> None:
        self.path = path
        self.content = content
        self._stamp = stamp
        self._context: ssl.SSLContext | None = None
        self._accepted: set[tuple[str, str]] = set()

    @classmethod
    def load(cls, path: Path) -> "WebConfig":
        """Raises ConfigError when the file or a certificate that it names cannot be used."""
        content = load_config(path, WebFile)
        config = cls(path, content, _stamp(path, content))
        config.ssl_context()
        return config

    def ssl_context(self) -> ssl.SSLContext | None:
        """The server's TLS context, or None for plain HTTP. It stays the same object when certificates change."""
        tls = self.content.tls_server_config
        if tls is None or not tls.cert_file:
            return None
        if self._context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_3 if tls.min_version == "TLS13" else ssl.TLSVersion.TLSv1_2
            self._load_certificates(context, tls)
            # A handshake is the moment to notice a new certificate: this one still gets the old one, the next the new.
            context.sni_callback = lambda *_: self.refresh()
            self._context = context
        return self._context

    def _resolve(self, name: str) -> Path:
        return self.path.parent / name

    def _load_certificates(self, context: ssl.SSLContext, tls: TlsServerConfig) -> None:
        try:
            context.load_cert_chain(self._resolve(tls.cert_file), self._resolve(tls.key_file))
            if tls.client_auth_type != "NoClientCert":
                context.load_verify_locations(self._resolve(tls.client_ca_file))
                required = tls.client_auth_type == "RequireAndVerifyClientCert"
                context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{self.path}: cannot load the certificates that tls_server_config names: {error}") from error

    def refresh(self) -> None:
        """Reads the file and its certificates again if they have changed; keeps the old settings if they are bad."""
        stamp = _stamp(self.path, self.content)
        if stamp == self._stamp:
            return
        try:
            content = load_config(self.path, WebFile)
            if self._context is not None and content.tls_server_config is not None:
                self._load_certificates(self._context, content.tls_server_config)
        except ConfigError as error:
            log.error("web configuration has changed and cannot be used, the old one stays in force", error=str(error))
            self._stamp = stamp
            return
        self.content = content
        self._accepted.clear()
        self._stamp = _stamp(self.path, content)

    def allows(self, authorization: str | None) -> bool:
        """Whether an Authorization header holds a known user and password. bcrypt: slow, call off the event loop."""
        credentials = _basic_credentials(authorization)
        if credentials is None:
            return False
        user, password = credentials
        # bcrypt takes ~50 ms on purpose; a scraper comes every few seconds with the same pair.
        if (user, password) in self._accepted:
            return True
        hashed = self.content.basic_auth_users.get(user)
        # An unknown user costs as much time as a wrong password, so that timing tells no user names.
        candidate = (hashed or "$2b$10$ssssssssssssssssssssseIZ9T1eHBVyE9aYbqn1Ff0aF7JtIyqYe").encode()
        try:
            good = bcrypt.checkpw(password.encode(), candidate)
        except ValueError:
            return False
        if good and hashed is not None:
            self._accepted.add((user, password))
            return True
        return False


def _basic_credentials(authorization: str | None) -> tuple[str, str] | None:
    scheme, _, value = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, password) if colon else None


def _stamp(path: Path, content: WebFile) -> tuple[int, ...]:
    """Modification times of the file and of the certificates that it names."""
    tls = content.tls_server_config
    names = [tls.cert_file, tls.key_file, tls.client_ca_file] if tls else []
    stamps = []
    for file in [path, *(path.parent / name for name in names if name)]:
        try:
            stamps.append(file.stat().st_mtime_ns)
        except OSError:
            stamps.append(-1)
    return tuple(stamps)


def authentication_middleware(
    config: WebConfig,
) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
    """Asks for a password if the file has users, and checks the client certificate's names if it lists any."""

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        config.refresh()
        tls = config.content.tls_server_config
        if tls is not None and tls.client_allowed_sans and not _has_allowed_name(request, tls.client_allowed_sans):
            return web.Response(status=403, text="client certificate is not on the list\n")
        if config.content.basic_auth_users:
            header = request.headers.get("Authorization")
            if not await asyncio.to_thread(config.allows, header):
                return web.Response(
                    status=401, text="Unauthorized\n", headers={"WWW-Authenticate": 'Basic realm="fabricpulse"'}
                )
        return await handler(request)

    return authenticate


def _has_allowed_name(request: web.Request, allowed: tuple[str, ...]) -> bool:
    certificate = request.get_extra_info("peercert") or {}
    names = {value for _, value in certificate.get("subjectAltName", ())}
    return not names.isdisjoint(allowed)
