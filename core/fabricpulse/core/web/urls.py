"""URLs in settings and options: checked once at the start, so that the message names the setting.

A wrong URL that is accepted fails later and elsewhere, as a traceback each second or a target that is never scraped.
"""

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
# User and password are accepted in a URL, though a file is better (http_client). A zone, as in fe80::1%eth0, belongs to
# an address.
_AUTHORITY = re.compile(
    r"([^@\s]*@)?(?P<host>\[[0-9a-fA-F:.]+(%[^\]\s]+)?\]|[^\[\]:@\s]+)(:(?P<port>[0-9]{1,5}))?", re.ASCII
)

_CREDENTIALS = re.compile(r"://\S*@")


def check_url(name: str, text: str) -> SplitResult:
    """The parts of an http or https URL with a host. name : of the setting, for the message.

    Raises ValueError with a clause that says what is wrong.
    """
    problem = _problem(text)
    if problem:
        raise ValueError(
            f"{name} {redact(text)!r} is not an http or https URL, such as http://HOST:PORT: {problem}"
        )
    return urlsplit(text)


def check_base_url(name: str, text: str) -> SplitResult:
    """As check_url, for a URL to which paths are added: it may have a path of its own, but nothing after that."""
    parts = check_url(name, text)
    if parts.query or parts.fragment:
        raise ValueError(f"{name} {redact(text)!r} must end with its path: no ? and no # in it")
    return parts


def host_and_port(url: str) -> tuple[str, int]:
    """Where `url` is served: the host without brackets, and its port or that of its scheme. Raises ValueError."""
    parts = check_url("the URL", url)
    return parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]


def join_host_port(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def redact(text: str) -> str:
    """`text` with the credentials of every URL in it replaced: `http://***@host/`. For logs and messages."""
    return _CREDENTIALS.sub("://***@", text)


def strip_credentials(text: str) -> str:
    """`text` with the credentials of every URL in it taken out: `http://host/`. For links that others will open."""
    return _CREDENTIALS.sub("://", text)


def _problem(text: str) -> str:
    """What is wrong with `text`, or ""."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:  # a port that is no number, a bracket without its other half
        if "@" in text:  # with a / in a password, the error would show a part of it
            return "its host or port cannot be read"
        reason = str(error)
        return reason[:1].lower() + reason[1:]
    if parts.scheme not in _DEFAULT_PORTS:
        return "it begins with neither http:// nor https://"
    if text != text.strip() or any(character.isspace() for character in text):
        return "there is a blank in it"
    authority = _AUTHORITY.fullmatch(parts.netloc)
    if authority is None:
        return "there is no host in it" if not parts.hostname else "its host is none"
    if authority["host"].startswith("["):
        try:
            ipaddress.IPv6Address(authority["host"][1:-1].replace("%25", "%", 1))
        except ValueError:
            return f"{authority['host']} is no IPv6 address"
    return "port 0 cannot be connected to" if port == 0 else ""
