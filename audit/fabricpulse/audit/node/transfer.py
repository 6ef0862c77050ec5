"""What both ends of a transfer between two NICs share: its datagrams, sockets, documents and patience. Linux.

The sender connects a control connection and shows the key. Datagrams carry the sender's fleet time and are paced; the
receiver tells how many of them came and the smallest one-way delay. Then the sender's streams push zeros at the rate
that was asked for (SO_MAX_PACING_RATE), and its kernel tells what was acknowledged after the first fifth of the time
(tcp_progress.py). Sockets are bound to the NIC, so that no other one carries a test.

Both ends do blocking work with a deadline, in a thread each; `stop` ends either within a tenth of a second. Both count
what their host itself has dropped or delayed (host_losses.py).
"""

import errno
import hmac
import ipaddress
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from fabricpulse.core.shm.clock_page import ClockStatus, FleetTime

# How long a receiver waits for its sender, and each end for a word of the other.
PATIENCE_S = 8.0
# Of the datagrams of one transfer.
MOST_DATAGRAM_S = 60.0
# Of the datagrams of one transfer: ten seconds of 20 Gb/s in packets of 1,500 bytes.
MOST_NUMBERS = 1 << 24
# Of a call that sends many of them (UDP_SEGMENT).
MOST_SEGMENTS = 64
TICK_S = 0.1
DATAGRAM = struct.Struct("!16sIIqqq")
# Switches hash ports: the same ports take the same path when a way is tested again.
FIRST_SOURCE_PORT, UDP_PORT = 49152, 9617
PIECE = 1 << 20
MOST_DOCUMENT = 16_384
SYNCHRONIZED = (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER)
Clock = Callable[[], FleetTime | None]

T = TypeVar("T")


class Moved:
    """Bytes that a transfer has brought or sent so far, headers left out. Written by its thread, read by others."""

    def __init__(self) -> None:
        self.bytes = 0


class TransferError(Exception):
    """The transfer cannot go on; the text says why."""


def bound_socket(address: str, device: str, kind: str, port: int = 0) -> socket.socket:
    """Bound to an address of the NIC, and to the NIC. port : if nobody has it; any other if somebody does."""
    version = ipaddress.ip_address(address).version
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    what = socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM
    link = socket.socket(family, what | socket.SOCK_CLOEXEC)
    try:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
        try:
            link.bind((address, port))
        except OSError as error:
            if not port or error.errno != errno.EADDRINUSE:
                raise
            link.bind((address, 0))
    except BaseException:
        link.close()
        raise
    return link


def check(stop: threading.Event, deadline: float) -> None:
    """Raises TransferError when the transfer is to end, or time.monotonic() is beyond the deadline."""
    if stop.is_set():
        raise TransferError("stopped")
    if time.monotonic() > deadline:
        raise TransferError("the other end did not come or go on in time")


def read(connection: socket.socket, size: int) -> bytes:
    """So many bytes, within the socket's timeout for each part. Raises TransferError, OSError."""
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise TransferError("the other end has closed the connection")
        parts += part
    return parts


def accept(
    listener: socket.socket,
    key: bytes,
    peer: str,
    stop: threading.Event,
    deadline: float,
    control: socket.socket | None = None,
) -> socket.socket:
    """The next connection that comes from the peer's address and shows the key; others are closed. control : of a
    sender that is there already, and may go. Raises TransferError, OSError."""
    wanted = ipaddress.ip_address(peer)
    listener.settimeout(TICK_S)
    while True:
        check(stop, deadline)
        if control is not None and has_gone(control):
            raise TransferError("the sender has gone")
        try:
            connection, (address, *_) = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(2)
        try:
            shown = read(connection, len(key)) if ipaddress.ip_address(address) == wanted else b""
        except (TransferError, OSError):
            shown = b""
        if hmac.compare_digest(shown, key):
            return connection
        connection.close()


def has_gone(control: socket.socket) -> bool:
    """Whether the other end has closed it. Makes it non-blocking: with a timeout it would wait for a word."""
    control.setblocking(False)
    try:
        return not control.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def connect(address: str, device: str, peer: str, port: int, key: str) -> socket.socket:
    """To who listens there, with the key shown. Raises OSError."""
    connection = bound_socket(address, device, "tcp")
    try:
        connection.settimeout(PATIENCE_S)
        connection.connect((peer, port))
        connection.sendall(bytes.fromhex(key))
    except BaseException:
        connection.close()
        raise
    return connection


def send_document(connection: socket.socket, document: object) -> None:
    """With its length before it. Raises OSError."""
    data = msgspec.json.encode(document)
    connection.setblocking(True)
    connection.settimeout(PATIENCE_S)
    connection.sendall(struct.pack("!I", len(data)) + data)


def read_document(connection: socket.socket, kind: type[T], stop: threading.Event, patience_s: float) -> T:
    """What send_document has sent. Raises TransferError, also when `stop` is set or patience has an end; OSError."""
    deadline = time.monotonic() + patience_s
    connection.settimeout(TICK_S)
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4]):
        check(stop, deadline)
        if len(data) >= 4 and int.from_bytes(data[:4]) > MOST_DOCUMENT:
            raise TransferError("the receiver's answer is too long")
        try:
            part = connection.recv((4 if len(data) < 4 else 4 + int.from_bytes(data[:4])) - len(data))
        except TimeoutError:
            continue
        if not part:
            raise TransferError("the other end has closed the connection")
        data += part
    try:
        return msgspec.json.decode(data[4:], type=kind)
    except msgspec.DecodeError as error:
        raise TransferError(f"the receiver's answer is none: {error}") from error
