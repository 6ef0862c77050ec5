"""ethtool: the driver's own statistics by ioctl, what is standardised (FEC, pause, module EEPROM) by netlink.

Per-priority pause and discards exist only among the driver's own statistics, and those only behind SIOCETHTOOL: the
netlink interface carries standardised groups alone (Documentation/networking/ethtool-netlink.rst).
"""

import array
import errno
import fcntl
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fabricpulse.hostinfo.netlink.attributes import NESTED, attribute, attributes
from fabricpulse.hostinfo.netlink.request import NETLINK_GENERIC, NetlinkClient

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO, _GTUNABLE = 0x1B, 0x1D, 0x37, 0x48
# struct ethtool_tunable: cmd, id, type_id, len, and the value; this one is a u16.
_TUNABLE = struct.Struct("=IIIIH2x")
_PFC_PREVENTION, _TUNABLE_U16 = 3, 2
_SS_STATS = 1
_STRING_LENGTH = 32
_MSG_PAUSE_GET, _MSG_FEC_GET, _MSG_MODULE_EEPROM_GET = 21, 29, 31
_HEADER_NAME, _HEADER_FLAGS, _FLAG_STATS = 2, 3, 4
_FEC_STATS = 5
_FEC_CORRECTED, _FEC_UNCORRECTABLE, _FEC_CORRECTED_BITS = 2, 3, 4
_PAUSE_STATS = 4
_PAUSE_TX, _PAUSE_RX = 2, 3
_NOT_SET = (1 << 64) - 1


@dataclass(frozen=True)
class Statistics:
    """A driver's statistics. names : in the driver's order. values : as many, u64."""

    names: Sequence[str]
    values: Sequence[int]


class EthtoolSource(Protocol):
    """Where ethtool data comes from; all methods raise OSError (EOPNOTSUPP: the driver has none)."""

    def statistics(self, netdev: str) -> Statistics:
        """The driver's own statistics; the same `names` object as long as the driver's list is the same."""

    def fec(self, netdev: str) -> Mapping[str, int]:
        """Of corrected_blocks, uncorrectable_blocks, corrected_bits: those that the driver counts."""

    def pause(self, netdev: str) -> Mapping[str, int]:
        """Of received, transmitted: frames of link-level pause, as far as the driver counts them."""

    def pfc_watchdog_ms(self, netdev: str) -> int:
        """How long the NIC may be kept from receiving before it stops sending pause frames: 0 for ever, 65535 as the
        driver likes (ETHTOOL_PFC_PREVENTION_TOUT)."""

    def module(self, netdev: str, page: int, offset: int, length: int, address: int) -> bytes:
        """A part of the module's EEPROM behind a two-wire address: offsets 0-127, or 128-255 of an upper page."""

    def close(self) -> None:
        """Gives sockets back."""


@dataclass
class KernelEthtool:
    """The kernel's ethtool."""

    _socket: socket.socket | None = None
    _netlink: NetlinkClient = field(default_factory=lambda: NetlinkClient(NETLINK_GENERIC))
    _names: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def statistics(self, netdev: str) -> Statistics:
        count = self._count(netdev)
        if not count:
            raise OSError(errno.EOPNOTSUPP, "no statistics")
        known = self._names.get(netdev)
        if known is None or known[0] != count:
            known = self._names[netdev] = (count, self._strings(netdev, count))
        # One entry of room to spare: a list that grows meanwhile must not be written past the buffer.
        buffer = array.array("B", struct.pack("=II", _GSTATS, count) + bytes(8 * (count + 1)))
        self._ioctl(netdev, buffer)
        length = struct.unpack_from("=I", buffer, 4)[0]
        if length != count:
            self._names.pop(netdev, None)
            raise OSError(errno.EAGAIN, "the list of statistics has changed")
        return Statistics(known[1], struct.unpack_from(f"={count}Q", buffer, 8))

    def _count(self, netdev: str) -> int:
        buffer = array.array("B", struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0))
        self._ioctl(netdev, buffer)
        mask, count = struct.unpack_from("=QI", buffer, 8)
        return int(count) if mask else 0

    def _strings(self, netdev: str, count: int) -> tuple[str, ...]:
        buffer = array.array(
            "B", struct.pack("=III", _GSTRINGS, _SS_STATS, count) + bytes(_STRING_LENGTH * count)
        )
        self._ioctl(netdev, buffer)
        raw = bytes(buffer[12:])
        pieces = (raw[i : i + _STRING_LENGTH] for i in range(0, _STRING_LENGTH * count, _STRING_LENGTH))
        return tuple(piece.partition(b"\0")[0].decode("ascii", "replace").strip() for piece in pieces)

    def _ioctl(self, netdev: str, buffer: "array.array[int]") -> None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        # struct ifreq: name, then a pointer to the command; 40 bytes on 64-bit machines.
        request = struct.pack("=16sQ16x", netdev.encode(), buffer.buffer_info()[0])
        fcntl.ioctl(self._socket, _SIOCETHTOOL, request)

    def fec(self, netdev: str) -> Mapping[str, int]:
        found = dict(attributes(self._request(_MSG_FEC_GET, netdev, _FLAG_STATS)))
        names = {
            _FEC_CORRECTED: "corrected_blocks",
            _FEC_UNCORRECTABLE: "uncorrectable_blocks",
            _FEC_CORRECTED_BITS: "corrected_bits",
        }
        counts = {}
        for kind, payload in attributes(found.get(_FEC_STATS, b"")):
            # The first number is the total, one for each lane follows.
            if kind in names and len(payload) >= 8:
                counts[names[kind]] = struct.unpack_from("=Q", payload)[0]
        return counts

    def pause(self, netdev: str) -> Mapping[str, int]:
        found = dict(attributes(self._request(_MSG_PAUSE_GET, netdev, _FLAG_STATS)))
        counts = {}
        for kind, payload in attributes(found.get(_PAUSE_STATS, b"")):
            name = {_PAUSE_TX: "transmitted", _PAUSE_RX: "received"}.get(kind)
            if name and len(payload) == 8 and (value := struct.unpack("=Q", payload)[0]) != _NOT_SET:
                counts[name] = value
        return counts

    def pfc_watchdog_ms(self, netdev: str) -> int:
        buffer = array.array("B", _TUNABLE.pack(_GTUNABLE, _PFC_PREVENTION, _TUNABLE_U16, 2, 0))
        self._ioctl(netdev, buffer)
        return int(_TUNABLE.unpack(buffer)[4])

    def module(self, netdev: str, page: int, offset: int, length: int, address: int) -> bytes:
        extra = attribute(2, struct.pack("=I", offset)) + attribute(3, struct.pack("=I", length))
        extra += attribute(4, bytes([page])) + attribute(5, b"\0") + attribute(6, bytes([address]))
        found = dict(attributes(self._request(_MSG_MODULE_EEPROM_GET, netdev, 0, extra)))
        data = found.get(7, b"")
        if len(data) < length:
            raise OSError(errno.EIO, "short answer from the module")
        return data

    def _request(self, command: int, netdev: str, flags: int, extra: bytes = b"") -> bytes:
        header = attribute(_HEADER_NAME, netdev.encode() + b"\0")
        if flags:
            header += attribute(_HEADER_FLAGS, struct.pack("=I", flags))
        return self._netlink.request_generic("ethtool", command, attribute(1 | NESTED, header) + extra)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._netlink.close()
