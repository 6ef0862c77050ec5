"""Credentials in URLs."""

from urllib.parse import urlsplit

from fabricpulse.core.web.client_config import HttpClientConfig


def check_credentials(name: str, url: str, client: HttpClientConfig) -> None:
    """Raises ValueError where a URL has a password and `http_client` has another one: a request shows one of them."""
    if "@" in urlsplit(url).netloc and (client.basic_auth or client.token_file):
        raise ValueError(
            f"{name} has a password in its URL, and http_client has another; keep the one in http_client"
        )
