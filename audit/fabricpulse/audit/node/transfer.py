"""One transfer between two NICs: datagrams that are counted, then TCP for a moment. Linux.

The sender connects a control connection and shows the key. Datagrams carry the sender's fleet time and are paced; the
receiver tells how many of them came and the smallest one-way delay. Then the sender's streams push zeros at the rate
that was asked for (SO_MAX_PACING_RATE), and the receiver tells what came after the first fifth of the time: a window
that has yet to open is no property of a path. Sockets are bound to the NIC, so that no other one carries a test.

Both ends do blocking work with a deadline, in a thread each; `stop` ends either within a tenth of a second.
"""

import errno
import hmac
import ipaddress
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

import msgspec

from fabricpulse.audit.node.wire import (
    MOST_PORTS,
    PortCount,
    ReceiveAnswer,
    Received,
    ReceiveRequest,
    SendRequest,
    TransferResult,
)
from fabricpulse.core.shm.clock_page import ClockStatus, FleetTime

# How long a receiver waits for its sender, and each end for a word of the other.
PATIENCE_S = 8.0
_TICK_S = 0.1
# Datagrams that are late come within this of the last one.
_DRAIN_S = 0.05
_DATAGRAM = struct.Struct("!16sIIqqq")
# Switches hash ports: the same ports take the same path when a way is tested again.
_FIRST_SOURCE_PORT, _UDP_PORT = 49152, 9617
_UDP_HEADERS = {4: 28, 6: 48}
_SO_MAX_PACING_RATE, _SO_MEMINFO, _DROPS = 47, 55, 8
_TCP_NOTSENT_LOWAT, _LEAST_UNSENT = 25, 128 << 10
_WARM_UP = 0.2
_PIECE = 1 << 20
_SYNCHRONIZED = (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER)
Clock = Callable[[], FleetTime | None]

T = TypeVar("T")


class TransferError(Exception):
    """The transfer cannot go on; the text says why."""


class Receiver:
    """Listens for one transfer from the moment that it is made. Raises OSError."""

    def __init__(self, request: ReceiveRequest, clock: Clock) -> None:
        self._request = request
        self._clock = clock
        self._key = os.urandom(16)
        # All streams of the sender are there: what is sent the other way at once may begin.
        self.began = threading.Event()
        self._stack = ExitStack()
        try:
            self._listener = self._stack.enter_context(_socket(request.address, request.device, "tcp"))
            self._listener.listen(request.streams + 4)
            self._datagrams = self._stack.enter_context(
                _socket(request.address, request.device, "udp", _UDP_PORT)
            )
            self._datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        except BaseException:
            self._stack.close()
            raise

    @property
    def answer(self) -> ReceiveAnswer:
        """Where to send to."""
        return ReceiveAnswer(
            self._listener.getsockname()[1], self._datagrams.getsockname()[1], self._key.hex()
        )

    def run(self, stop: threading.Event) -> None:
        """Takes the transfer, or gives up when nobody comes. Raises TransferError, OSError."""
        with self._stack:
            deadline = time.monotonic() + PATIENCE_S
            control = self._accept(stop, deadline)
            _send_document(control, self._count(control, stop))
            streams = [
                self._accept(stop, time.monotonic() + PATIENCE_S) for _ in range(self._request.streams)
            ]
            self.began.set()
            _send_document(control, self._drain(streams, stop))

    def _accept(self, stop: threading.Event, deadline: float) -> socket.socket:
        """The next connection that comes from the peer and shows the key; others are closed."""
        peer = ipaddress.ip_address(self._request.peer)
        self._listener.settimeout(_TICK_S)
        while True:
            _check(stop, deadline)
            try:
                connection, (address, *_) = self._listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(2)
            try:
                shown = _read(connection, len(self._key)) if ipaddress.ip_address(address) == peer else b""
            except (TransferError, OSError):
                shown = b""
            if hmac.compare_digest(shown, self._key):
                return self._stack.enter_context(connection)
            connection.close()

    def _count(self, control: socket.socket, stop: threading.Event) -> Received:
        """Until the sender says that all are sent, and a moment longer."""
        seen: set[int] = set()
        best: tuple[int, int] | None = None
        ports: dict[int, tuple[int, int | None]] = {}
        deadline = time.monotonic() + 60 + PATIENCE_S
        end = float("inf")
        self._datagrams.setblocking(False)
        control.setblocking(False)
        with selectors.DefaultSelector() as ready:
            ready.register(self._datagrams, selectors.EVENT_READ)
            ready.register(control, selectors.EVENT_READ)
            while time.monotonic() < end:
                _check(stop, deadline)
                for key, _ in ready.select(min(_TICK_S, max(0.0, end - time.monotonic()))):
                    if key.fileobj is control:
                        if not control.recv(1):
                            raise TransferError("the sender has gone")
                        ready.unregister(control)
                        end = time.monotonic() + _DRAIN_S
                        continue
                    for data, port in _datagrams(self._datagrams):
                        if len(data) < _DATAGRAM.size:
                            continue
                        shown, number, status, sent_ns, bound_ns, raw_ns = _DATAGRAM.unpack_from(data)
                        if number in seen or not hmac.compare_digest(shown, self._key):
                            continue
                        seen.add(number)
                        if port in ports or len(ports) < MOST_PORTS:
                            delay = (
                                time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - raw_ns if raw_ns else None
                            )
                            count, least = ports.get(port, (0, None))
                            known = [d for d in (delay, least) if d is not None]
                            ports[port] = count + 1, min(known, default=None)
                        now = self._clock()
                        if now is not None and now.status in _SYNCHRONIZED and status:
                            owd = now.fleet_ns - sent_ns
                            if best is None or owd < best[0]:
                                best = owd, now.bound_ns + bound_ns
        control.setblocking(True)
        by_port = tuple(PortCount(port, *counted) for port, counted in sorted(ports.items()))
        owd_ns, bound_ns = best or (None, 0)
        return Received(len(seen), _drops(self._datagrams), owd_ns, bound_ns, by_port)

    def _drain(self, streams: list[socket.socket], stop: threading.Event) -> list[float]:
        """[bytes, seconds] after the warm-up; [] if too little came."""
        buffer = bytearray(_PIECE)
        samples: list[tuple[float, int]] = []
        total = 0
        begun = time.monotonic()
        deadline = begun + self._request.seconds + PATIENCE_S
        with selectors.DefaultSelector() as ready:
            for stream in streams:
                stream.setblocking(False)
                ready.register(stream, selectors.EVENT_READ)
            while ready.get_map():
                _check(stop, deadline)
                for key, _ in ready.select(_TICK_S):
                    stream = key.fileobj  # type: ignore[assignment]
                    try:
                        # MSG_TRUNC: the kernel throws it away uncopied (tcp(7)).
                        size = stream.recv_into(buffer, _PIECE, socket.MSG_TRUNC)
                    except BlockingIOError:
                        continue
                    if not size:
                        ready.unregister(stream)
                    total += size
                now = time.monotonic()
                if not samples or now - samples[-1][0] >= 0.005:
                    samples.append((now, total))
        return rate_after_warm_up(samples, self._request.seconds * _WARM_UP)

    def close(self) -> None:
        """Of one that is not run."""
        self._stack.close()


def rate_after_warm_up(samples: list[tuple[float, int]], warm_up_s: float) -> list[float]:
    """[bytes, seconds] between the first sample after the warm-up and the last one that brought bytes; [] without two.

    samples : (time in seconds, bytes so far) in order.
    """
    if not samples:
        return []
    first = next((s for s in samples if s[0] >= samples[0][0] + warm_up_s), None)
    total = samples[-1][1]
    last = next((s for s in samples if s[1] == total), None)
    if first is None or last is None or last[0] <= first[0]:
        return []
    return [float(total - first[1]), last[0] - first[0]]


def send(
    request: SendRequest, clock: Clock, stop: threading.Event, after: threading.Event | None = None
) -> TransferResult:
    """Makes the transfer; raises nothing: an error is in the result, with what was measured before it.

    after : TCP waits for it, so that transfers in both directions push at the same time.
    """
    result = TransferResult()
    try:
        with ExitStack() as stack:
            control = stack.enter_context(_connect(request))
            by_port = _send_datagrams(request, clock, stop)
            result = msgspec.structs.replace(result, sent=sum(by_port.values()), sent_by_port=by_port)
            control.sendall(b".")
            result = msgspec.structs.replace(result, received=_read_document(control, Received))
            # One at a time: the receiver takes them as they come, each with the key.
            streams = [stack.enter_context(_connect(request)) for _ in range(request.streams)]
            deadline = time.monotonic() + PATIENCE_S
            while after is not None and not after.wait(_TICK_S):
                _check(stop, deadline)
            _push(request, streams, stop)
            amount = _read_document(control, list[float])
            if len(amount) == 2 and amount[1] > 0:
                result = msgspec.structs.replace(result, bps=amount[0] * 8 / amount[1])
    except (TransferError, OSError, ValueError) as error:
        text = str(error) or type(error).__name__
        return msgspec.structs.replace(result, error=text[:256])
    return result


def _send_datagrams(request: SendRequest, clock: Clock, stop: threading.Event) -> dict[int, int]:
    """Paced at a quarter of the rate, from all source ports in turn; how many the kernel took of each port."""
    version = ipaddress.ip_address(request.peer).version
    key = bytes.fromhex(request.key)
    size = max(_DATAGRAM.size, request.datagram_bytes - _UDP_HEADERS[version])
    filler = bytes(size - _DATAGRAM.size)
    interval = size * 8 / max(1.0, request.rate_bps / 4)
    sent: dict[int, int] = {}
    with ExitStack() as stack:
        links = []
        for index in range(request.source_ports):
            port = _FIRST_SOURCE_PORT + index
            link = stack.enter_context(_socket(request.address, request.device, "udp", port))
            link.connect((request.peer, request.udp_port))
            link.settimeout(PATIENCE_S)
            links.append((link, link.getsockname()[1]))
        begun = time.monotonic()
        deadline = begun + 60
        for number in range(request.datagrams):
            early = begun + number * interval - time.monotonic()
            if early > 0.0005:
                time.sleep(early)
            if number % 64 == 0:
                _check(stop, deadline)
            link, port = links[number % len(links)]
            now = clock()
            raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            stamp = (1, now.fleet_ns, now.bound_ns) if now and now.status in _SYNCHRONIZED else (0, 0, 0)
            try:
                link.send(_DATAGRAM.pack(key, number, *stamp, raw_ns) + filler)
            except ConnectionRefusedError as error:
                raise TransferError("the receiver does not listen any more") from error
            except OSError as error:
                # A full queue of this host is not the network's loss.
                if error.errno not in (105, 11):
                    raise
                continue
            sent[port] = sent.get(port, 0) + 1
    return sent


def _push(request: SendRequest, streams: list[socket.socket], stop: threading.Event) -> None:
    """Zeros into all streams until the time is over."""
    with ExitStack() as stack:
        zeros = os.memfd_create("zeros", os.MFD_CLOEXEC)
        stack.callback(os.close, zeros)
        os.ftruncate(zeros, _PIECE)
        ready = stack.enter_context(selectors.DefaultSelector())
        for stream in streams:
            # Bytes per second; above 2^32 - 1 it is a 64-bit option (socket(7)).
            pace = max(1, request.rate_bps // 8 // len(streams))
            stream.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", pace))
            # A send buffer may hold seconds of a slow pace: the transfer would last as much longer (tcp(7)).
            stream.setsockopt(
                socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, min(max(_LEAST_UNSENT, pace // 50), 1 << 30)
            )
            stream.setblocking(False)
            ready.register(stream, selectors.EVENT_WRITE)
        end = time.monotonic() + request.seconds
        while (now := time.monotonic()) < end:
            _check(stop, end + 1)
            for key, _ in ready.select(min(_TICK_S, end - now)):
                try:
                    os.sendfile(key.fd, zeros, 0, _PIECE)
                except BlockingIOError:
                    continue
        for stream in streams:
            stream.shutdown(socket.SHUT_WR)


def _connect(request: SendRequest) -> socket.socket:
    connection = _socket(request.address, request.device, "tcp")
    try:
        connection.settimeout(PATIENCE_S)
        connection.connect((request.peer, request.tcp_port))
        connection.sendall(bytes.fromhex(request.key))
    except BaseException:
        connection.close()
        raise
    return connection


def _socket(address: str, device: str, kind: str, port: int = 0) -> socket.socket:
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


def _datagrams(link: socket.socket) -> list[tuple[bytes, int]]:
    """Some of those that wait, with their source ports."""
    found = []
    for _ in range(64):
        try:
            data, address = link.recvfrom(_DATAGRAM.size)
        except BlockingIOError:
            break
        found.append((data, address[1]))
    return found


def _drops(link: socket.socket) -> int:
    """Datagrams that the socket had no room for (SO_MEMINFO)."""
    try:
        words = struct.unpack("=9I", link.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))
    except (OSError, struct.error):
        return 0
    return int(words[_DROPS])


def _check(stop: threading.Event, deadline: float) -> None:
    if stop.is_set():
        raise TransferError("stopped")
    if time.monotonic() > deadline:
        raise TransferError("the other end did not come or go on in time")


def _read(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise TransferError("the other end has closed the connection")
        parts += part
    return parts


def _send_document(connection: socket.socket, document: object) -> None:
    data = msgspec.json.encode(document)
    connection.setblocking(True)
    connection.settimeout(PATIENCE_S)
    connection.sendall(struct.pack("!I", len(data)) + data)


def _read_document(connection: socket.socket, kind: type[T]) -> T:
    connection.settimeout(PATIENCE_S + 60)
    (size,) = struct.unpack("!I", _read(connection, 4))
    if size > 16_384:
        raise TransferError("the receiver's answer is too long")
    try:
        return msgspec.json.decode(_read(connection, size), type=kind)
    except msgspec.DecodeError as error:
        raise TransferError(f"the receiver's answer is none: {error}") from error
