"""Configuration of the requests that a daemon or a command makes of a server."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from fabricpulse.core.config import Section
from fabricpulse.core.file_settings import READ_FILE, TOKEN_FILE


class TlsClientConfig(Section, frozen=True):
    """TLS of requests. All files are PEM; they are read again when they change.

    ca_file : authorities that may sign the server's certificate; empty: the system's. cert_file : client certificate
    to show; needs key_file. key_file : private key of the client certificate. server_name : name that the server's
    certificate must have, when it is not that of the URL. insecure_skip_verify : accept any certificate. min_version :
    oldest version of TLS that is accepted.
    """

    FILES_READER = "fabricpulse.core.web.client:check_tls"

    ca_file: Annotated[str, READ_FILE] = ""
    cert_file: Annotated[str, READ_FILE] = ""
    key_file: Annotated[str, READ_FILE] = ""
    server_name: str = ""
    insecure_skip_verify: bool = False
    min_version: Literal["TLS12", "TLS13"] = "TLS12"

    def validate(self) -> None:
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file are needed together")


class BasicAuth(Section, frozen=True):
    """User and password of requests.

    username : user name for HTTP basic authentication. password_file : file whose first line is the password; read
    again when it changes.
    """

    username: str
    password_file: Annotated[str, TOKEN_FILE]

    def validate(self) -> None:
        if not self.password_file:
            raise ValueError("password_file is empty")
        if ":" in self.username:
            raise ValueError("username must not contain a colon (RFC 7617)")


class HttpClientConfig(Section, frozen=True):
    """How requests authenticate the server and themselves.

    basic_auth : for servers whose web configuration asks for a password. token_file : file with a bearer token for the
    requests; read again when it changes. timeout_s : longest time for one whole request, seconds.
    """

    tls_config: TlsClientConfig | None = None
    basic_auth: BasicAuth | None = None
    token_file: Annotated[str, TOKEN_FILE] = ""
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 3.0

    def validate(self) -> None:
        if self.basic_auth is not None and self.token_file:
            raise ValueError("basic_auth and token_file exclude each other: a request shows one of them")


def check_credentials(name: str, url: str, client: HttpClientConfig) -> None:
    """Raises ValueError where a URL has a password and `client` has another one: a request shows one of them.

    name : of the setting or option that holds the URL.
    """
    if "@" in urlsplit(url).netloc and (client.basic_auth or client.token_file):
        raise ValueError(
            f"{name} has a password in its URL, and http_client has another; keep the one in http_client"
        )
