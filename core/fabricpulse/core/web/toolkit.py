"""TLS and basic authentication from a file in the format of the Prometheus exporter toolkit.

The file is looked at again on each request and each handshake, so that certificates and passwords rotate without a
restart; a file that has become unreadable keeps the old settings in force and is logged.
"""

import asyncio
import base64
import binascii
import re
import ssl
from pathlib import Path
from typing import Literal

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from fabricpulse.core.config import Section, load_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.log import get_logger

log = get_logger(__name__)

ClientAuth = Literal[
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
]

_TLS_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_BCRYPT = re.compile(r"^\$2[abxy]\$\d\d\$[./A-Za-z0-9]{53}$")


class TlsServerConfig(Section, frozen=True):
    """`tls_server_config` of the exporter toolkit.

    cert_file, key_file : PEM, relative to the folder of this file; without them plain HTTP is served.
    client_auth_type : whether clients must show a certificate. client_ca_file : PEM of the authorities whose client
    certificates count. client_allowed_sans : names of which a client certificate must have one; empty: any.
    min_version, max_version : of TLS.
    """

    cert_file: str = ""
    key_file: str = ""
    client_auth_type: ClientAuth = "NoClientCert"
    client_ca_file: str = ""
    client_allowed_sans: tuple[str, ...] = ()
    min_version: Literal["TLS12", "TLS13"] = "TLS12"
    max_version: Literal["TLS12", "TLS13"] = "TLS13"

    def validate(self) -> None:
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file are needed together")
        if self.min_version > self.max_version:
            raise ValueError("min_version is above max_version")
        if self.client_auth_type.endswith(("IfGiven", "AndVerifyClientCert")) and not self.client_ca_file:
            raise ValueError(f"client_auth_type {self.client_auth_type} needs client_ca_file")
        if self.client_auth_type in ("RequestClientCert", "RequireAnyClientCert"):
            raise ValueError(
                f"client_auth_type {self.client_auth_type} is not offered: it lets any certificate in; "
                "use RequireAndVerifyClientCert"
            )
        if self.client_allowed_sans and self.client_auth_type != "RequireAndVerifyClientCert":
            raise ValueError("client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")


class HttpServerConfig(Section, frozen=True):
    """`http_server_config` of the exporter toolkit.

    http2 : accepted for the sake of shared files; this server speaks HTTP/1.1. headers : added to every response.
    """

    http2: bool = True
    headers: dict[str, str] = {}


class WebFile(Section, frozen=True):
    """The file of --web.config.file, in the format of the Prometheus exporter toolkit; changes count at once.

    basic_auth_users : user -> bcrypt hash of the password; empty: no password is asked for.
    """

    tls_server_config: TlsServerConfig = TlsServerConfig()
    http_server_config: HttpServerConfig = HttpServerConfig()
    basic_auth_users: dict[str, str] = {}

    def validate(self) -> None:
        for user, hashed in self.basic_auth_users.items():
            if not _BCRYPT.match(hashed):
                raise ValueError(
                    f"the password of user {user!r} must be a bcrypt hash (htpasswd -nBC 10 {user})"
                )

    @property
    def tls(self) -> TlsServerConfig | None:
        """The TLS settings, or None for plain HTTP."""
        return self.tls_server_config if self.tls_server_config.cert_file else None


class WebConfig:
    """The file in force, and how to read it again."""

    def __init__(self, path: Path, content: WebFile) -> None:
        self.path = path
        self.content = content
        self._stamp = _stamp(path, content)
        self._context = self._new_context(content.tls) if content.tls else None
        self._accepted: set[tuple[str, str, str]] = set()

    @classmethod
    def load(cls, path: Path) -> "WebConfig":
        """Raises ConfigError when the file or a certificate that it names cannot be used."""
        return cls(path, load_config(path, WebFile))

    def ssl_context(self) -> ssl.SSLContext | None:
        """The listener's TLS context, or None for plain HTTP. Each handshake moves on to the newest certificates."""
        if self._context is not None:
            # OpenSSL calls it for every handshake, with a server name or without.
            self._context.sni_callback = self._on_handshake
        return self._context

    def _on_handshake(self, handshake: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
        self.refresh()
        if self._context is not None:
            handshake.context = self._context

    def _new_context(self, tls: TlsServerConfig) -> ssl.SSLContext:
        """A fresh one each time: a key that does not fit must not spoil the context in use, and a client authority
        that was taken off the list must not stay trusted."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _TLS_VERSIONS[tls.min_version]
        context.maximum_version = _TLS_VERSIONS[tls.max_version]
        try:
            context.load_cert_chain(self._resolve(tls.cert_file), self._resolve(tls.key_file))
            if tls.client_auth_type != "NoClientCert":
                context.load_verify_locations(self._resolve(tls.client_ca_file))
                required = tls.client_auth_type == "RequireAndVerifyClientCert"
                context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(
                f"{self.path}: cannot load the certificates that tls_server_config names: {error}"
            ) from error
        return context

    def _resolve(self, name: str) -> Path:
        return self.path.parent / name

    def refresh(self) -> None:
        """Reads the file and its certificates again if they have changed; keeps the old settings if they are bad.

        Whether a client certificate is asked for, and whether there is TLS at all, stay as at the start.
        """
        stamp = _stamp(self.path, self.content)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            content = load_config(self.path, WebFile)
            old, new = self.content.tls, content.tls
            if (old is None) != (new is None) or (
                old is not None and new is not None and old.client_auth_type != new.client_auth_type
            ):
                raise ConfigError(
                    f"{self.path}: TLS and client_auth_type cannot change while the daemon runs; restart it"
                )
            context = self._new_context(new) if new is not None else None
        except ConfigError as error:
            log.error("web configuration cannot be used, the old one stays in force", error=str(error))
            return
        self.content, self._context = content, context
        self._accepted.clear()
        self._stamp = _stamp(self.path, content)
        log.info("web configuration read again", file=str(self.path))

    async def add_headers(self, _: web.Request, response: web.StreamResponse) -> None:
        """Adds what `http_server_config` lists to any response, errors included."""
        response.headers.update(self.content.http_server_config.headers)

    def allows(self, authorization: str | None) -> bool:
        """Whether an Authorization header holds a known user and password.

        bcrypt is slow on purpose: call it off the event loop.
        """
        credentials = _basic_credentials(authorization)
        if credentials is None:
            return False
        user, password = credentials
        hashed = self.content.basic_auth_users.get(user)
        # A scraper comes every few seconds with the same pair. The hash is part of the key, so that a password that
        # was checked while the file changed is not accepted for longer than the file says.
        if hashed is not None and (user, password, hashed) in self._accepted:
            return True
        # An unknown user costs as much time as a wrong password, so that timing tells no user names.
        candidate = hashed or next(iter(self.content.basic_auth_users.values()))
        import bcrypt  # 1 MB that a daemon without passwords need not have

        try:
            good = bcrypt.checkpw(password.encode(), candidate.encode())
        except ValueError:  # longer than bcrypt's 72 bytes
            return False
        if good and hashed is not None:
            self._accepted.add((user, password, hashed))
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
    """Identities and times of the file and of the certificates that it names: another stamp means new content."""
    tls = content.tls_server_config
    stamp: list[int] = []
    for file in [path, *(path.parent / n for n in (tls.cert_file, tls.key_file, tls.client_ca_file) if n)]:
        try:
            status = file.stat()
            stamp += status.st_ino, status.st_mtime_ns, status.st_size
        except OSError:
            stamp.append(-1)
    return tuple(stamp)


def authentication_middleware(config: WebConfig) -> Middleware:
    """Asks for a password if the file has users; checks the client certificate's names if it lists any."""

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        config.refresh()
        return await _refusal(config.content, config, request) or await handler(request)

    return authenticate


async def _refusal(content: WebFile, config: WebConfig, request: web.Request) -> web.Response | None:
    allowed = content.tls_server_config.client_allowed_sans
    if allowed and not _has_allowed_name(request, allowed):
        return web.Response(status=403, text="client certificate is not on the list\n")
    if content.basic_auth_users:
        header = request.headers.get("Authorization")
        if not await asyncio.to_thread(config.allows, header):
            challenge = {"WWW-Authenticate": 'Basic realm="fabricpulse"'}
            return web.Response(status=401, text="Unauthorized\n", headers=challenge)
    return None


def _has_allowed_name(request: web.Request, allowed: tuple[str, ...]) -> bool:
    certificate = request.get_extra_info("peercert") or {}
    names = {value for _, value in certificate.get("subjectAltName", ())}
    return not names.isdisjoint(allowed)
