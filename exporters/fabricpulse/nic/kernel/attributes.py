"""Netlink attributes as bytes: packing and unpacking (linux/netlink.h)."""

import struct
from collections.abc import Iterator

HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
NESTED = 0x8000


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
