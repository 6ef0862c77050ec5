"""rtnetlink link messages as bytes: requests, and what a message tells of a link (linux/rtnetlink.h, if_link.h)."""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR = 20, 21
NLMSG_ERROR, NLMSG_DONE, NLMSG_OVERRUN = 2, 3, 4
NLM_F_REQUEST, NLM_F_DUMP_INTR, NLM_F_DUMP = 1, 0x10, 0x300
RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100
IFF_UP = 0x1
IFF_LOWER_UP = 0x10000

_IFLA_IFNAME, _IFLA_CARRIER, _IFLA_CARRIER_UP_COUNT, _IFLA_CARRIER_DOWN_COUNT = 3, 33, 47, 48
_HEADER = struct.Struct("=IHHII")
_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_U32 = struct.Struct("=I")


@dataclass(frozen=True)
class Request:
    """What a message answers: port and sequence number of the asking socket.

    A notification has those of whoever caused the change, or zeros.
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
    body = _IFINFO.pack(0, 0, 0, 0, 0)
    return _HEADER.pack(_HEADER.size + len(body), RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, sequence, 0) + body


def parse(data: bytes) -> Iterator[Message]:
    """The messages of one datagram; what is cut off or of another type is left out."""
    offset, end = 0, len(data)
    while end - offset >= _HEADER.size:
        length, kind, flags, sequence, port = _HEADER.unpack_from(data, offset)
        answers = Request(port, sequence)
        if length < _HEADER.size or offset + length > end:
            return
        body = offset + _HEADER.size
        if kind in (RTM_NEWLINK, RTM_DELLINK):
            # A bridge tells of its ports with messages of its own family: the link that left a bridge still exists.
            if length >= _HEADER.size + _IFINFO.size and data[body] == socket.AF_UNSPEC:
                yield _link(data, body, offset + length, kind == RTM_DELLINK, answers)
            if flags & NLM_F_DUMP_INTR:
                yield Control(answers, 0, interrupted=True, done=False)
        elif kind in (RTM_NEWADDR, RTM_DELADDR):
            if length >= _HEADER.size + _IFADDR.size:
                yield AddressMessage(_IFADDR.unpack_from(data, body)[4])
        elif kind == NLMSG_DONE:
            yield Control(answers, 0, bool(flags & NLM_F_DUMP_INTR), done=True)
        elif kind == NLMSG_ERROR and length >= _HEADER.size + 4:
            error = struct.unpack_from("=i", data, body)[0]
            yield Control(answers, error, interrupted=False, done=True)
        offset += (length + 3) & ~3


def _link(data: bytes, body: int, end: int, removed: bool, answers: Request) -> LinkMessage:
    _, _, ifindex, flags, _ = _IFINFO.unpack_from(data, body)
    name = ""
    carrier: bool | None = None
    up_count: int | None = None
    down_count: int | None = None
    offset = body + _IFINFO.size
    while end - offset >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size or offset + length > end:
            break
        if kind == _IFLA_IFNAME:
            name = data[offset + 4 : offset + length].rstrip(b"\0").decode("utf-8", "replace")
        elif kind == _IFLA_CARRIER and length >= 5:
            carrier = data[offset + 4] != 0
        elif kind == _IFLA_CARRIER_UP_COUNT and length >= 8:
            up_count = _U32.unpack_from(data, offset + 4)[0]
        elif kind == _IFLA_CARRIER_DOWN_COUNT and length >= 8:
            down_count = _U32.unpack_from(data, offset + 4)[0]
        offset += (length + 3) & ~3
    if carrier is None:
        carrier = bool(flags & IFF_LOWER_UP)
    return LinkMessage(name, ifindex, bool(flags & IFF_UP), carrier, up_count, down_count, removed, answers)
