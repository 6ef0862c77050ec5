"""Configuration of the requests that a daemon makes of another one."""

from typing import Annotated

from msgspec import Meta

from fabricpulse.core.config import Section


class TlsClientConfig(Section, frozen=True):
    """TLS of requests that this daemon makes."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure_skip_verify: bool = False

    def validate(self) -> None:
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file are needed together")


class BasicAuth(Section, frozen=True):
    """User and password of requests that this daemon makes."""

    username: str
    password_file: str


class HttpClientConfig(Section, frozen=True):
    """What this daemon's requests trust and show.

    basic_auth : for servers whose web configuration asks for a password. token_file : bearer token that the coordinator
    asks for (its token_file); read again when it changes. timeout_s : for one whole request.
    """

    tls_config: TlsClientConfig | None = None
    basic_auth: BasicAuth | None = None
    token_file: str = ""
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 3.0

    def validate(self) -> None:
        if self.basic_auth is not None and self.token_file:
            raise ValueError("basic_auth and token_file exclude each other: a request shows one of them")
