"""Netlink messages and attributes as bytes: the one definition of their structs (linux/netlink.h).

Pure. All integers are in host byte order, as the kernel has them.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

# struct nlmsghdr: length with the header, type, flags, sequence, port of the socket.
HEADER = struct.Struct("=IHHII")
# struct nlattr: length with the header, type with the two highest bits as flags.
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
NESTED = 0x8000


# Types that every family has, and flags of messages.
NLMSG_ERROR, NLMSG_DONE, NLMSG_OVERRUN = 2, 3, 4
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP_INTR, NLM_F_DUMP = 1, 4, 0x10, 0x300


@dataclass(frozen=True)
class Message:
    """One message. body : what follows the header, as long as the header says, without padding."""

    kind: int
    flags: int
    sequence: int
    port: int
    body: bytes


def messages(data: bytes) -> Iterator[Message]:
    """The messages of one datagram; one that is cut off, or whose length is absurd, ends it."""
    offset, end = 0, len(data)
    while end - offset >= HEADER.size:
        length, kind, flags, sequence, port = HEADER.unpack_from(data, offset)
        if length < HEADER.size or offset + length > end:
            return
        yield Message(kind, flags, sequence, port, data[offset + HEADER.size : offset + length])
        offset += (length + 3) & ~3


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + b"\0" * (-length % 4)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, payload) of each attribute; what is cut off is left out."""
    offset, end = 0, len(data)
    while end - offset >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size or offset + length > end:
            return
        yield kind & _TYPE_MASK, data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """A netlink message."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, sequence, 0) + body
