"""rtnetlink link messages as bytes: requests, and the state of a link in a message (linux/rtnetlink.h, if_link.h)."""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from fabricpulse.hostinfo.netlink.attributes import (
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    attributes,
    message,
    messages,
)

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR = 20, 21
RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100
IFF_UP = 0x1
IFF_LOWER_UP = 0x10000

_IFLA_IFNAME, _IFLA_CARRIER, _IFLA_CARRIER_UP_COUNT, _IFLA_CARRIER_DOWN_COUNT = 3, 33, 47, 48
_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")
_U32 = struct.Struct("=I")


@dataclass(frozen=True)
class Request:
    """The request that a message replies to: port and sequence number of the requesting socket.

    A notification has those of the process that caused the change, or zeros.
    """

    port: int
    sequence: int


@dataclass(frozen=True)
class LinkMessage:
    """A link. removed : it is being deleted. up_count, down_count : None on kernels before 4.16."""

    name: str
    ifindex: int
    admin_up: bool
    carrier: bool
    up_count: int | None
    down_count: int | None
    removed: bool
    answers: Request


@dataclass(frozen=True)
class AddressMessage:
    """An address came or went on an interface: GIDs follow addresses."""

    ifindex: int


@dataclass(frozen=True)
class Control:
    """End of a dump, or its failure. error : negative errno, 0 for a good end. interrupted : the table changed under
    the dump, which must be repeated."""

    answers: Request
    error: int
    interrupted: bool
    done: bool


Message = LinkMessage | AddressMessage | Control


def link_dump_request(sequence: int) -> bytes:
    """Asks for all links."""
    return message(RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, sequence, _IFINFO.pack(0, 0, 0, 0, 0))


def parse(data: bytes) -> Iterator[Message]:
    """The messages of one datagram; what is cut off or of another type is left out."""
    for found in messages(data):
        body, answers = found.body, Request(found.port, found.sequence)
        interrupted = bool(found.flags & NLM_F_DUMP_INTR)
        if found.kind in (RTM_NEWLINK, RTM_DELLINK):
            # A bridge reports its ports in messages of its own family: a link that left a bridge still exists.
            if len(body) >= _IFINFO.size and body[0] == socket.AF_UNSPEC:
                yield _link(body, found.kind == RTM_DELLINK, answers)
            if interrupted:
                yield Control(answers, 0, interrupted=True, done=False)
        elif found.kind in (RTM_NEWADDR, RTM_DELADDR):
            if len(body) >= _IFADDR.size:
                yield AddressMessage(_IFADDR.unpack_from(body)[4])
        elif found.kind == NLMSG_DONE:
            yield Control(answers, 0, interrupted, done=True)
        elif found.kind == NLMSG_ERROR and len(body) >= 4:
            yield Control(answers, struct.unpack_from("=i", body)[0], interrupted=False, done=True)


def _link(body: bytes, removed: bool, answers: Request) -> LinkMessage:
    _, _, ifindex, flags, _ = _IFINFO.unpack_from(body)
    name = ""
    carrier: bool | None = None
    up_count: int | None = None
    down_count: int | None = None
    for kind, payload in attributes(body[_IFINFO.size :]):
        if kind == _IFLA_IFNAME:
            name = payload.rstrip(b"\0").decode("utf-8", "replace")
        elif kind == _IFLA_CARRIER and payload:
            carrier = payload[0] != 0
        elif kind == _IFLA_CARRIER_UP_COUNT and len(payload) >= 4:
            up_count = _U32.unpack_from(payload)[0]
        elif kind == _IFLA_CARRIER_DOWN_COUNT and len(payload) >= 4:
            down_count = _U32.unpack_from(payload)[0]
    if carrier is None:
        carrier = bool(flags & IFF_LOWER_UP)
    return LinkMessage(name, ifindex, bool(flags & IFF_UP), carrier, up_count, down_count, removed, answers)
