"""The file of --web.config.file: format and checks of the Prometheus exporter toolkit, read into typed sections.

Source: docs/web-configuration.md and web/tls_config.go of github.com/prometheus/exporter-toolkit. What that accepts is
accepted; what this server cannot do is named by `WebFile.not_honoured`, for the log at the start.
"""

import re
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from fabricpulse.core.config import Section
from fabricpulse.core.file_settings import read_file

TlsVersion = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
ClientAuth = Literal[
    "NoClientCert",
    "RequestClientCert",
    "RequireClientCert",
    "RequireAnyClientCert",
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
]
Curve = Literal["CurveP256", "CurveP384", "CurveP521", "X25519"]

# Names of Go's crypto/tls (IANA) and of OpenSSL, for TLS up to 1.2.
CIPHERS = {
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
# Of TLS 1.3, whose suites are not chosen by this setting, as in Go.
_TLS13_CIPHERS = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}

_BCRYPT = re.compile(r"^\$2[abxy]\$\d\d\$[./A-Za-z0-9]{53}$")
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUES = {"X-Frame-Options": {"deny", "sameorigin", ""}, "X-Content-Type-Options": {"nosniff", ""}}

_BESIDE = read_file(beside=True)


class TlsServerConfig(Section, frozen=True):
    """`tls_server_config` of the exporter toolkit.

    cert_file : certificate of the server, PEM, relative to the folder of this file; without one plain HTTP is served.
    key_file : private key of the certificate, PEM, relative to the folder of this file. cert : certificate of the
    server as PEM in this file, where there is no cert_file. key : private key as PEM in this file, where there is no
    key_file. client_auth_type : whether clients must show a certificate. client_ca_file : PEM of the authorities whose
    client certificates count; without it the system's. client_ca : authorities whose client certificates count, as PEM
    in this file. client_allowed_sans : names of which a client certificate must have one; empty: any. min_version :
    oldest version of TLS; TLS 1.2 is the oldest that is offered. max_version : newest version of TLS. cipher_suites :
    cipher suites for TLS 1.2, by their names in Go; empty: OpenSSL's choice. prefer_server_cipher_suites : the order
    of cipher_suites counts, not the client's. curve_preferences : elliptic curves of the key exchange; one is
    enforced; of several, clients may choose any that OpenSSL has.
    """

    cert_file: Annotated[str, _BESIDE] = ""
    key_file: Annotated[str, _BESIDE] = ""
    cert: str = ""
    key: str = ""
    client_auth_type: ClientAuth | Literal[""] = "NoClientCert"
    client_ca_file: Annotated[str, _BESIDE] = ""
    client_ca: str = ""
    client_allowed_sans: tuple[str, ...] = ()
    min_version: TlsVersion = "TLS12"
    max_version: TlsVersion = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True
    curve_preferences: tuple[Curve, ...] = ()

    def validate(self) -> None:
        has_cert, has_key = bool(self.cert_file or self.cert), bool(self.key_file or self.key)
        if has_cert != has_key:
            raise ValueError(
                "a certificate (cert_file or cert) and a key (key_file or key) are needed together"
            )
        if not has_cert and (self.client_ca_file or self.client_ca or self.client_auth_type not in _NO_AUTH):
            raise ValueError("client certificates need a server certificate: cert_file or cert")
        if self.min_version > self.max_version:
            raise ValueError("min_version is above max_version")
        if self.max_version < "TLS12":
            raise ValueError(f"max_version {self.max_version} cannot be offered: TLS 1.2 is the oldest")
        if (self.client_ca_file or self.client_ca) and self.client_auth_type in _NO_AUTH:
            raise ValueError("client_ca_file or client_ca is set without client_auth_type")
        if self.client_allowed_sans and not self.verifies_clients:
            raise ValueError("client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")
        for name in self.cipher_suites:
            if name not in CIPHERS and name not in _TLS13_CIPHERS:
                raise ValueError(f"unknown cipher {name!r}")
        if self.cipher_suites and not self.openssl_ciphers and self.max_version == "TLS12":
            raise ValueError("cipher_suites has none for TLS 1.2, and max_version is TLS12")

    @property
    def enabled(self) -> bool:
        """Whether HTTPS is served."""
        return bool(self.cert_file or self.cert)

    @property
    def verifies_clients(self) -> bool:
        """Whether certificates that clients show are verified. RequireAnyClientCert with authorities is taken so."""
        any_of_ours = self.client_auth_type in _ANY and bool(self.client_ca_file or self.client_ca)
        return any_of_ours or self.client_auth_type in (
            "VerifyClientCertIfGiven",
            "RequireAndVerifyClientCert",
        )

    @property
    def requires_client_certificate(self) -> bool:
        """Whether a client without a certificate is turned away."""
        return self.verifies_clients and self.client_auth_type != "VerifyClientCertIfGiven"

    @property
    def openssl_ciphers(self) -> tuple[str, ...]:
        """The suites for TLS 1.2 by their names in OpenSSL."""
        return tuple(CIPHERS[name] for name in self.cipher_suites if name in CIPHERS)

    def not_honoured(self) -> list[str]:
        """Settings that are accepted and have another effect than in the toolkit, each as one sentence."""
        found = []
        if self.client_auth_type == "RequestClientCert":
            found.append("client_auth_type RequestClientCert: no client certificate is asked for")
        elif self.client_auth_type in _ANY and self.verifies_clients:
            found.append(
                f"client_auth_type {self.client_auth_type}: client certificates are verified as well"
            )
        elif self.client_auth_type in _ANY:
            found.append(
                f"client_auth_type {self.client_auth_type}: no client certificate is asked for, as anybody can make"
                " one; use RequireAndVerifyClientCert with client_ca_file"
            )
        if self.min_version < "TLS12":
            found.append(f"min_version {self.min_version}: TLS 1.2 is the oldest that is offered")
        if len(self.curve_preferences) > 1:
            found.append("curve_preferences: of several, clients may choose any that OpenSSL has")
        return found


_NO_AUTH = ("NoClientCert", "")
_ANY = ("RequireAnyClientCert", "RequireClientCert")


class HttpServerConfig(Section, frozen=True):
    """`http_server_config` of the exporter toolkit.

    http2 : accepted for the sake of shared files; this server speaks HTTP/1.1. headers : HTTP headers that are
    added to every response.
    """

    http2: bool = True
    headers: dict[str, str | int | float | bool] = {}

    def validate(self) -> None:
        for name, value in self.response_headers.items():
            if not _HEADER_NAME.fullmatch(name) or not value.isprintable():
                raise ValueError(f"{name!r} is no HTTP header, or its value has a control character")
            allowed = _HEADER_VALUES.get(name)
            if allowed is not None and value not in allowed:
                expected = " or ".join(sorted(allowed - {""}))
                raise ValueError(f"header {name} must be {expected}, not {value!r}")

    @property
    def response_headers(self) -> dict[str, str]:
        """As they are sent: YAML takes `X-XSS-Protection: 0` for a number. An empty value unsets the header."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.headers.items()
            if value != ""
        }


class RateLimit(Section, frozen=True):
    """`rate_limit` of the exporter toolkit: requests of all clients together, more are answered 429.

    interval : least time between two requests, as Go writes durations ("1s", "100ms"); 0: no limit. burst : requests
    that may come at once.
    """

    interval: str | int = 0
    burst: Annotated[int, Meta(ge=0)] = 0

    def validate(self) -> None:
        self.interval_s  # noqa: B018 - raises ValueError

    @property
    def interval_s(self) -> float:
        """`interval` in seconds; a bare number is nanoseconds, as in Go."""
        if isinstance(self.interval, int):
            if self.interval < 0:
                raise ValueError("interval must not be negative")
            return self.interval / 1e9
        if self.interval in ("", "0"):
            return 0.0
        parts = _DURATION.findall(self.interval)
        if "".join(number + unit for number, unit in parts) != self.interval:
            raise ValueError(f"interval {self.interval!r} is no duration, such as 1s or 100ms")
        return sum(float(number) * _UNITS[unit] for number, unit in parts)


class WebFile(Section, frozen=True):
    """The file of --web.config.file, in the format of the Prometheus exporter toolkit; changes count at once.

    basic_auth_users : user -> bcrypt hash of the password; empty: no password is asked for.
    """

    NULL_IS_DEFAULT: ClassVar[bool] = True
    FILES_READER = "fabricpulse.core.web.toolkit:WebConfig"

    tls_server_config: TlsServerConfig = TlsServerConfig()
    http_server_config: HttpServerConfig = HttpServerConfig()
    basic_auth_users: dict[str, str] = {}
    rate_limit: RateLimit = RateLimit()

    def validate(self) -> None:
        for user, hashed in self.basic_auth_users.items():
            if not _BCRYPT.match(hashed):
                raise ValueError(
                    f"the password of user {user!r} must be a bcrypt hash (htpasswd -nBC 10 {user})"
                )

    def warnings(self) -> list[str]:
        return self.tls_server_config.not_honoured()

    @property
    def tls(self) -> TlsServerConfig | None:
        """The TLS settings, or None for plain HTTP."""
        return self.tls_server_config if self.tls_server_config.enabled else None
