"""Which switch port a NIC hangs on, from a frame of LLDP (IEEE 802.1AB-2016, clause 8). Pure."""

import struct

from msgspec import Struct

from fabricpulse.audit.model import Name, clip

ETHERTYPE = 0x88CC
# Nearest bridge: no bridge forwards it, so its sender is at the other end of the cable (clause 7.1).
MULTICAST = bytes.fromhex("0180c200000e")
_END, _CHASSIS, _PORT, _PORT_DESCRIPTION, _SYSTEM_NAME = 0, 1, 2, 4, 5
# Sub-types of chassis and port identifiers that are MAC addresses, and network addresses.
_MAC = {_CHASSIS: 4, _PORT: 3}
_TEXT = {_CHASSIS: (1, 2, 3, 6, 7), _PORT: (1, 2, 5, 6, 7)}


class Neighbour(Struct, frozen=True):
    """The other end of a cable. switch : its system name, or else its chassis identifier. port : its identifier.
    description : of the port, "" if it has none."""

    switch: Name
    port: Name
    description: Name = ""


def parse(frame: bytes) -> Neighbour | None:
    """The neighbour that has sent an Ethernet frame; None for what is no LLDP of a well-formed kind, or lacks either
    mandatory identifier."""
    if len(frame) < 14 or struct.unpack_from("!H", frame, 12)[0] != ETHERTYPE:
        return None
    found: dict[int, bytes] = {}
    at = 14
    while at + 2 <= len(frame):
        (head,) = struct.unpack_from("!H", frame, at)
        kind, size = head >> 9, head & 0x1FF
        at += 2
        if kind == _END:
            break
        if at + size > len(frame):
            return None
        found.setdefault(kind, frame[at : at + size])
        at += size
    chassis, port = _identifier(found, _CHASSIS), _identifier(found, _PORT)
    if not chassis or not port:
        return None
    name = _text(found.get(_SYSTEM_NAME, b""))
    return Neighbour(name or chassis, port, _text(found.get(_PORT_DESCRIPTION, b"")))


def _identifier(found: dict[int, bytes], kind: int) -> str:
    value = found.get(kind, b"")
    if len(value) < 2:
        return ""
    if value[0] == _MAC[kind] or value[0] not in _TEXT[kind]:
        return value[1:33].hex(":")
    return _text(value[1:])


def _text(value: bytes) -> str:
    return clip(value.rstrip(b"\0").decode("utf-8", "replace"), 128)
