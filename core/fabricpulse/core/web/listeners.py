"""The listening sockets of a server: its own addresses, or sockets from systemd (sd_listen_fds(3))."""

import asyncio
import errno
import ipaddress
import os
import socket

from fabricpulse.core.errors import TemporaryError, UserError
from fabricpulse.core.web.options import parse_address

_FIRST_FD = 3  # SD_LISTEN_FDS_START
# Another process has it, it is not configured yet, or its name is not known yet.
_MAY_BE_FREE_LATER = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, socket.EAI_AGAIN})


async def bind(address: str, backlog: int) -> list[socket.socket]:
    """Sockets that listen on `address`, one for each of its IP addresses.

    Raises UserError for one that is malformed or cannot be bound, as TemporaryError if it may be free later.
    """
    host, port = parse_address(address)
    loop = asyncio.get_running_loop()
    try:
        # asyncio knows what to bind for a name, all addresses, both families; accepting is ours.
        server = await loop.create_server(
            asyncio.Protocol, host or None, port, reuse_address=True, start_serving=False
        )
    except OSError as error:
        kind = TemporaryError if error.errno in _MAY_BE_FREE_LATER else UserError
        raise kind(
            f"cannot listen on {address}: {_reason(error)}; choose another --web.listen-address"
        ) from error
    listeners = [socket.socket(fileno=os.dup(bound.fileno())) for bound in server.sockets]
    server.close()
    for listener in listeners:
        os.set_inheritable(listener.fileno(), False)
        listener.listen(backlog)
    return listeners


def own_address(listener: socket.socket) -> tuple[str, int]:
    """Where `listener` is bound. What asyncio binds serves one family only."""
    host, port = listener.getsockname()[:2]
    return str(host), int(port)


def systemd_sockets() -> list[socket.socket]:
    """The sockets that systemd has handed to this process; once taken they are not there any more.

    Raises UserError when there is none, or one that is no listening stream socket.
    """
    own = os.environ.get("LISTEN_PID") == str(os.getpid())
    count = os.environ.get("LISTEN_FDS", "")
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)  # not for our children
    if not own or not count.isdigit() or int(count) == 0:
        raise UserError(
            "--web.systemd-socket is set and systemd has handed over no socket; "
            "start the service by its .socket unit or leave the option out"
        )
    sockets = []
    for number in range(_FIRST_FD, _FIRST_FD + int(count)):
        os.set_inheritable(number, False)
        taken = socket.socket(fileno=number)
        listening = taken.type == socket.SOCK_STREAM and taken.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        )
        if not listening:
            raise UserError(
                f"socket {number - _FIRST_FD + 1} from systemd does not listen on a stream; "
                "use ListenStream= and Accept=no in the .socket unit"
            )
        sockets.append(taken)
    return sockets


def reached_at(listener: socket.socket) -> list[tuple[str, int]]:
    """Numeric addresses and the port under which clients reach `listener`; none for one that has no IP address.

    One of IPv6 may serve IPv4 as well (`ListenStream=9613` makes such a socket): `[::]` is there as `0.0.0.0` too, and
    an IPv4 address that is mapped as what it is.
    """
    if listener.family == socket.AF_INET:
        host, port = listener.getsockname()
        return [(host, port)]
    if listener.family != socket.AF_INET6:
        return []
    host, port = listener.getsockname()[:2]
    address = ipaddress.IPv6Address(host)
    if address.ipv4_mapped is not None:
        return [(str(address.ipv4_mapped), port)]
    both = not listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) and address.is_unspecified
    return [(host, port), ("0.0.0.0", port)] if both else [(host, port)]  # noqa: S104 - says what is so already


def _reason(error: OSError) -> str:
    # asyncio wraps the system's message, differently in each version of Python; errno is unchanged. Errors of name
    # resolution are below 0 and have their own messages.
    if error.errno and error.errno > 0:
        return os.strerror(error.errno).lower()
    return error.strerror or str(error)
