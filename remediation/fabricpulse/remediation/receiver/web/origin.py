"""Where a request comes from, which is all that is known of who asks where nobody has to show a secret.

A connection whose two ends have the same address is of this machine: the kernel takes no packet with one of its own
addresses from the network. What a proxy of this machine passes on shows in its headers, and address translation on this
machine does not show at all: whoever has either in front of the receiver sets `access`.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web

# What proxies add.
_PASSED_ON = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


def is_of_this_machine(request: web.Request) -> bool:
    """Whether the other end of the connection is on this machine, and nothing says that it speaks for somebody else."""
    if any(name in request.headers for name in _PASSED_ON):
        return False
    peer, own = (request.get_extra_info(name) for name in ("peername", "sockname"))
    if not isinstance(own, tuple):
        return own is not None  # a Unix socket
    if not isinstance(peer, tuple):
        return False
    address = _plain(peer[0])
    return address.is_loopback or address == _plain(own[0])


def is_of(request: web.Request, addresses: frozenset[str]) -> bool:
    """Whether the other end of the connection has one of these addresses."""
    peer = request.get_extra_info("peername")
    return isinstance(peer, tuple) and str(_plain(peer[0])) in addresses


async def addresses_of(
    urls: Iterable[str], known: frozenset[str] = frozenset()
) -> tuple[frozenset[str], bool]:
    """The addresses of the hosts of these URLs, and whether all names could be looked up. known : what counts as long
    as one cannot be."""
    found: set[str] = set()
    complete = True
    for host in {urlsplit(url).hostname for url in urls}:
        try:
            answers = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            found |= known
            complete = False
        else:
            found.update(str(_plain(answer[4][0])) for answer in answers)
    return frozenset(found), complete


def _plain(address: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    full = ipaddress.ip_address(str(address).partition("%")[0])
    mapped = full.ipv4_mapped if isinstance(full, ipaddress.IPv6Address) else None
    return mapped or full
