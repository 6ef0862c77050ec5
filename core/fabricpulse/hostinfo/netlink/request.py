"""One request, one answer: a small blocking netlink client for rtnetlink and generic netlink."""

import errno
import os
import socket
import struct
import threading

from fabricpulse.hostinfo.netlink.attributes import (
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    attribute,
    attributes,
    message,
    messages,
)

NETLINK_ROUTE, NETLINK_GENERIC, NETLINK_RDMA = 0, 16, 20
_GENL_CTRL, _CTRL_GETFAMILY = 0x10, 3
_CTRL_FAMILY_ID, _CTRL_FAMILY_NAME = 1, 2
_TIMEOUT_S = 2.0

_Socket = socket.socket


class _ThreadState(threading.local):
    socket: _Socket | None = None
    sequence: int = 0


class NetlinkClient:
    """A socket a thread, opened at its first request and kept: a thread that hangs in a request disturbs no other."""

    def __init__(self, protocol: int) -> None:
        self._protocol = protocol
        self._own = _ThreadState()
        self._sockets: list[socket.socket] = []
        self._families: dict[str, int] = {}

    def request(self, kind: int, body: bytes) -> bytes:
        """The body of the first message of the reply. Raises OSError with the kernel's error."""
        bodies = self._exchange(kind, NLM_F_REQUEST | NLM_F_ACK, body)
        return bodies[0] if bodies else b""

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """The bodies of all messages of a dump. Raises OSError with the kernel's error."""
        return self._exchange(kind, NLM_F_REQUEST | NLM_F_DUMP, body)

    def _exchange(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        own = self._own
        if own.socket is None:
            own.socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, self._protocol
            )
            self._sockets.append(own.socket)
            own.socket.settimeout(_TIMEOUT_S)
            own.socket.bind((0, 0))
        own.sequence += 1
        try:
            own.socket.send(message(kind, flags, own.sequence, body))
            return self._receive(own.socket, own.sequence)
        except TimeoutError as error:
            # Its reply may still arrive, and must not be taken for that of the next request: hence sequence numbers.
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from error

    @staticmethod
    def _receive(sock: socket.socket, wanted: int) -> list[bytes]:
        bodies: list[bytes] = []
        while True:
            for answer in messages(sock.recv(1 << 17)):
                if answer.sequence != wanted:
                    continue
                if answer.kind == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", answer.body)[0]
                    if code:
                        raise OSError(code, os.strerror(code))
                    return bodies
                if answer.kind == NLMSG_DONE:
                    return bodies
                bodies.append(answer.body)

    def request_generic(self, family: str, command: int, body: bytes, version: int = 1) -> bytes:
        """As `request`, of a generic netlink family; the answer without the generic header. Raises OSError."""
        if family not in self._families:
            name = attribute(_CTRL_FAMILY_NAME, family.encode() + b"\0")
            answer = self.request(_GENL_CTRL, struct.pack("=BBH", _CTRL_GETFAMILY, 1, 0) + name)
            found = dict(attributes(answer[4:]))
            self._families[family] = struct.unpack("=H", found[_CTRL_FAMILY_ID])[0]
        return self.request(self._families[family], struct.pack("=BBH", command, version, 0) + body)[4:]

    def close(self) -> None:
        """Closes the sockets of all threads."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        self._own = _ThreadState()
