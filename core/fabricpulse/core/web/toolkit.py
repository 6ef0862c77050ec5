"""The exporter-toolkit file in force: read again when it or a certificate changes.

The file is checked on each request and each handshake, so that certificates and passwords rotate without a restart; a
file that has become unreadable keeps the old settings in force and is logged.
"""

import os
import ssl
from pathlib import Path

from aiohttp import web

from fabricpulse.core.config import load_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.files import FileStamp
from fabricpulse.core.log import get_logger
from fabricpulse.core.reread import Reread
from fabricpulse.core.web.toolkit_file import TlsServerConfig, WebFile

__all__ = ["WebConfig", "WebFile"]

log = get_logger(__name__)

_OLDEST = ssl.TLSVersion.TLSv1_2
_TLS_VERSIONS = {"TLS10": _OLDEST, "TLS11": _OLDEST, "TLS12": _OLDEST, "TLS13": ssl.TLSVersion.TLSv1_3}
_CURVES = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}


class WebConfig:
    """The file in force, and how to read it again."""

    def __init__(self, path: Path, content: WebFile) -> None:
        self.path = path
        self.content = content
        self._reread = Reread(_stamps(path, content))
        self._context = self._new_context(content.tls) if content.tls else None

    @classmethod
    def load(cls, path: Path) -> "WebConfig":
        """Raises ConfigError when the file or a certificate that it names cannot be used."""
        config = cls(path, load_config(path, WebFile))
        config._log_not_honoured()
        return config

    def ssl_context(self) -> ssl.SSLContext | None:
        """The listener's TLS context, or None for plain HTTP. Each handshake moves on to the newest certificates."""
        if self._context is not None:
            # OpenSSL calls it for every handshake, with a server name or without.
            self._context.sni_callback = self._on_handshake
        return self._context

    def refresh(self) -> None:
        """Reads the file and its certificates again if they have changed; keeps the old settings if they are bad.

        Whether a client certificate is asked for, and whether there is TLS at all, stay as at the start.
        """
        before = _stamps(self.path, self.content)
        if not self._reread.is_due(before):
            return
        try:
            content = load_config(self.path, WebFile)
            # It may name other certificates. All are stamped before they are read: they may be replaced meanwhile.
            stamps = (before[0], *_stamps(self.path, content)[1:])
            old, new = self.content.tls, content.tls
            if (old is None) != (new is None) or (
                old is not None and new is not None and old.client_auth_type != new.client_auth_type
            ):
                raise ConfigError(
                    f"{self.path}: TLS and client_auth_type cannot change while the daemon runs; restart it"
                )
            context = self._new_context(new) if new is not None else None
        except ConfigError as error:
            if self._reread.failed(before):
                log.error("web configuration cannot be used, the old one stays in force", error=str(error))
            return
        self.content, self._context = content, context
        self._reread.succeeded(stamps)
        log.info("web configuration read again", file=str(self.path))
        self._log_not_honoured()

    async def add_headers(self, _: web.Request, response: web.StreamResponse) -> None:
        """Adds what `http_server_config` lists to any response, errors included."""
        response.headers.update(self.content.http_server_config.response_headers)

    def _on_handshake(self, handshake: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
        self.refresh()
        if self._context is not None:
            handshake.context = self._context

    def _log_not_honoured(self) -> None:
        for sentence in self.content.tls_server_config.not_honoured():
            log.warning("web configuration is not honoured in full", file=str(self.path), setting=sentence)

    def _new_context(self, tls: TlsServerConfig) -> ssl.SSLContext:
        """A new context each time: a key that does not match must not break the context in use, and an authority that
        was removed must not stay trusted."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _TLS_VERSIONS[tls.min_version]
        context.maximum_version = _TLS_VERSIONS[tls.max_version]
        try:
            self._load_pair(context, tls)
            if tls.verifies_clients:
                self._load_authorities(context, tls)
                required = tls.requires_client_certificate
                context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
            self._choose(context, tls)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigError(
                f"{self.path}: cannot load the certificates that tls_server_config names: {error}"
            ) from error
        return context

    def _load_pair(self, context: ssl.SSLContext, tls: TlsServerConfig) -> None:
        if tls.cert_file and tls.key_file:
            context.load_cert_chain(
                self._resolve(tls.cert_file), self._resolve(tls.key_file), password=_no_passphrase
            )
            return
        # OpenSSL loads pairs from files only: one in memory, which no other user can open.
        with os.fdopen(os.memfd_create("pem", os.MFD_CLOEXEC), "w+b") as file:
            for name, text in ((tls.cert_file, tls.cert), (tls.key_file, tls.key)):
                file.write(self._resolve(name).read_bytes() if name else text.encode())
                file.write(b"\n")
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_passphrase)

    def _load_authorities(self, context: ssl.SSLContext, tls: TlsServerConfig) -> None:
        if tls.client_ca_file:
            context.load_verify_locations(self._resolve(tls.client_ca_file))
        elif tls.client_ca:
            context.load_verify_locations(cadata=tls.client_ca)
        else:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)

    @staticmethod
    def _choose(context: ssl.SSLContext, tls: TlsServerConfig) -> None:
        if tls.openssl_ciphers:
            context.set_ciphers(":".join(tls.openssl_ciphers))
        elif tls.cipher_suites:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        if tls.prefer_server_cipher_suites:
            context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
        else:
            context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        if len(tls.curve_preferences) == 1:
            context.set_ecdh_curve(_CURVES[tls.curve_preferences[0]])

    def _resolve(self, name: str) -> Path:
        return self.path.parent / name


def _no_passphrase() -> str:
    """Replaces OpenSSL's prompt on the terminal, for which a daemon would wait."""
    raise ValueError("the key is encrypted; give it without a passphrase")


def _stamps(path: Path, content: WebFile) -> tuple[FileStamp, ...]:
    """Of the file and of the certificates that it names."""
    tls = content.tls_server_config
    names = (tls.cert_file, tls.key_file, tls.client_ca_file)
    return tuple(FileStamp.of(file) for file in (path, *(path.parent / name for name in names if name)))
