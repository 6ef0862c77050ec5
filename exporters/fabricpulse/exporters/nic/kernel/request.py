"""One request, one answer: a small blocking netlink client for rtnetlink and generic netlink."""

import errno
import os
import socket
import struct

from fabricpulse.exporters.nic.kernel.attributes import HEADER, attribute, attributes, message

NETLINK_ROUTE, NETLINK_GENERIC = 0, 16
_REQUEST, _ACK = 1, 4
_ERROR, _DONE = 2, 3
_SOL_NETLINK, _NETLINK_EXT_ACK = 270, 11
_GENL_CTRL, _CTRL_GETFAMILY = 0x10, 3
_CTRL_FAMILY_ID, _CTRL_FAMILY_NAME = 1, 2
_TIMEOUT_S = 2.0


class NetlinkClient:
    """A socket opened at the first request and kept. Not for several threads at a time."""

    def __init__(self, protocol: int) -> None:
        self._protocol = protocol
        self._socket: socket.socket | None = None
        self._sequence = 0
        self._families: dict[str, int] = {}

    def ask(self, kind: int, body: bytes) -> bytes:
        """The body of the answer's first message. Raises OSError with what the kernel says."""
        sock = self._socket
        if sock is None:
            sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, self._protocol)
            sock.settimeout(_TIMEOUT_S)
            sock.bind((0, 0))
            self._socket = sock
        self._sequence += 1
        try:
            sock.send(message(kind, _REQUEST | _ACK, self._sequence, body))
            return self._answer(sock)
        except TimeoutError as error:
            self.close()
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from error

    def _answer(self, sock: socket.socket) -> bytes:
        answer = b""
        while True:
            data = sock.recv(1 << 17)
            offset = 0
            while len(data) - offset >= HEADER.size:
                length, kind, _, sequence, _ = HEADER.unpack_from(data, offset)
                if length < HEADER.size:
                    break
                body = data[offset + HEADER.size : offset + length]
                offset += (length + 3) & ~3
                if sequence != self._sequence:
                    continue
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    if code:
                        raise OSError(code, os.strerror(code))
                    return answer
                if kind == _DONE:
                    return answer
                answer = answer or body

    def ask_generic(self, family: str, command: int, body: bytes, version: int = 1) -> bytes:
        """As `ask`, of a generic netlink family; the answer without the generic header. Raises OSError."""
        if family not in self._families:
            name = attribute(_CTRL_FAMILY_NAME, family.encode() + b"\0")
            answer = self.ask(_GENL_CTRL, struct.pack("=BBH", _CTRL_GETFAMILY, 1, 0) + name)
            found = dict(attributes(answer[4:]))
            self._families[family] = struct.unpack("=H", found[_CTRL_FAMILY_ID])[0]
        return self.ask(self._families[family], struct.pack("=BBH", command, version, 0) + body)[4:]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
