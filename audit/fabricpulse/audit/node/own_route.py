"""Whether the kernel has a route to an address by a NIC, from an address of that NIC. Linux, IPv4.

A socket that is bound to a NIC may send by it whatever the tables say: without a route the kernel takes every IPv4
address for one of its link, and what is sent is lost. RTM_GETROUTE with RTM_F_FIB_MATCH (Linux 4.13) answers by the
tables and policy rules alone (rtnetlink(7)).
"""

import errno
import ipaddress
import socket
import struct

_RTM_GETROUTE, _NLM_F_REQUEST, _NLMSG_ERROR = 26, 1, 2
_RTM_F_FIB_MATCH = 0x2000
_RTA_DST, _RTA_SRC, _RTA_OIF = 1, 2, 4
_HEADER, _ROUTE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBBBBBI"), struct.Struct("=HH")
_NONE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ESRCH)
_PATIENCE_S = 2.0


def route_error(device: str, source: str, target: str) -> str:
    """The name of the kernel's error where it has no route: `EHOSTUNREACH`, say. "" where it has one, and where it does
    not say: then what is sent shows it. source, target : IPv4; of another family the kernel says so by itself."""
    try:
        addresses = ipaddress.IPv4Address(source).packed, ipaddress.IPv4Address(target).packed
        index = socket.if_nametoindex(device)
        with socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
        ) as link:
            link.settimeout(_PATIENCE_S)
            link.send(_request(*addresses, index))
            answer = link.recv(65_536)
        _, kind, *_ = _HEADER.unpack_from(answer)
        if kind != _NLMSG_ERROR:
            return ""
        (code,) = struct.unpack_from("=i", answer, _HEADER.size)
    except (OSError, ValueError, struct.error):
        return ""
    return errno.errorcode.get(-code, "") if -code in _NONE else ""


def _request(source: bytes, target: bytes, index: int) -> bytes:
    body = _ROUTE.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, _RTM_F_FIB_MATCH)
    for kind, value in ((_RTA_DST, target), (_RTA_SRC, source), (_RTA_OIF, struct.pack("=I", index))):
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value
    return _HEADER.pack(_HEADER.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0) + body
