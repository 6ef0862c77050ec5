"""Which users listen on a port of this host, by /proc/net/tcp and tcp6 (proc(5)).

Any local user can have the port of an exporter that does not run.
"""

import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address

_NET = Path("/proc/self/net")
_LISTEN = "0A"
_V6 = (ip_address("::1"), IPv6Address(0))
_V4 = (ip_address("127.0.0.1"), IPv4Address(0), ip_address("::ffff:127.0.0.1"), IPv6Address(0))
# The addresses of a listener that may get a connection to a host of this name. Only of such URLs it is known: what the
# other addresses of this host are, and whether some program forwards them, is not.
_REACHED = {"127.0.0.1": _V4, "::1": _V6, "localhost": (*_V4, *_V6)}


def is_local(url: str) -> bool:
    """Whether `url` is of a host whose listeners can be known: localhost, 127.0.0.1 or ::1."""
    return urlsplit(url).hostname in _REACHED


def listeners(url: str, net: Path = _NET) -> frozenset[int]:
    """User ids of all sockets of which one may answer at `url`, see is_local; none when there is none.

    Listeners and not the peer of a connection: a connection that nobody has accepted, or that is closed, is root's.
    Raises OSError where that cannot be read now.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    reached = _REACHED[parts.hostname or ""]
    return frozenset(uid for address, at, uid in _listening(net) if at == port and address in reached)


def _listening(net: Path) -> Iterator[tuple[Address, int, int]]:
    for name in ("tcp", "tcp6"):
        try:
            lines = (net / name).read_text().splitlines()[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN:
                address, _, port = fields[1].partition(":")
                yield _address(address), int(port, 16), int(fields[7])


def _address(text: str) -> Address:
    """Of words of 32 bits as the machine keeps them, each in hexadecimal."""
    words = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    return ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
