"""The end of a transfer that receives: counts datagrams, then takes what TCP brings. Linux.

A datagram is timed when the kernel took it from the NIC (SO_TIMESTAMPNS), not when this process came to read it. What
is in the socket's buffer when the sender has ended has arrived: it is read to its end, however long a busy host takes.
"""

import hmac
import os
import selectors
import socket
import struct
import sys
import threading
import time
from contextlib import ExitStack, suppress
from typing import NamedTuple

from fabricpulse.audit.node.host_losses import host_counts, since
from fabricpulse.audit.node.transfer import (
    DATAGRAM,
    MOST_DATAGRAM_S,
    MOST_NUMBERS,
    PATIENCE_S,
    PIECE,
    SYNCHRONIZED,
    TICK_S,
    UDP_PORT,
    Clock,
    Moved,
    TransferError,
    accept,
    bound_socket,
    check,
    send_document,
)
from fabricpulse.audit.node.wire import (
    MOST_PORTS,
    Hindered,
    PortCount,
    ReceiveAnswer,
    Received,
    ReceiveRequest,
)

# After the sender's end: so long must the socket be found empty, and so long where numbers are missing, which may be
# late on another path or in the queue of a busy processor.
_DRAIN_S, _DRAIN_MISSING_S = 0.05, 0.4
# Of those that wait, read at a time.
_BATCH = 64
# What a datagram is taken to have moved: its size is not asked for.
_MOST_DATAGRAM = 9000
_BUFFER = 8 << 20
_SO_TIMESTAMPNS, _SO_RCVBUFFORCE, _SO_MEMINFO, _DROPS = 35, 33, 55, 8
_UDP_GRO = 104
_STAMP = struct.Struct("=qq")
# A stamp that is older was made before the clock was set.
_MOST_AGE_NS = 2_000_000_000


class _Arrived(NamedTuple):
    """The head of a datagram, its source port, the host's real time when the kernel took it, 0 where it did not say,
    and whether that is its own time: of those that came in one piece it is the first one's."""

    data: bytes
    port: int
    real_ns: int
    timed: bool


class TransferListener:
    """Listens for one transfer from the moment that it is made. moved : counts what comes. Raises OSError."""

    def __init__(self, request: ReceiveRequest, clock: Clock, moved: Moved | None = None) -> None:
        self._request = request
        self._clock = clock
        self._key = os.urandom(16)
        # All streams of the sender are there: what is sent the other way at once may begin.
        self.began = threading.Event()
        self._moved = moved or Moved()
        self._stack = ExitStack()
        try:
            self._listener = self._stack.enter_context(bound_socket(request.address, request.device, "tcp"))
            self._listener.listen(request.streams + 4)
            self._datagrams = self._stack.enter_context(
                bound_socket(request.address, request.device, "udp", UDP_PORT)
            )
            try:
                # Beyond net.core.rmem_max with CAP_NET_ADMIN only.
                self._datagrams.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
            except OSError:
                self._datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            with suppress(OSError):
                self._datagrams.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
                # What came together is read together (Linux 5.0).
                self._datagrams.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
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
        """Takes the transfer, or gives up when no sender connects. Raises TransferError, OSError."""
        with self._stack:
            deadline = time.monotonic() + PATIENCE_S
            control = self._accept(stop, deadline)
            send_document(control, self._count(control, stop))
            streams = [
                self._accept(stop, time.monotonic() + PATIENCE_S, control)
                for _ in range(self._request.streams)
            ]
            self.began.set()
            send_document(control, self._drain(control, streams, stop))

    def _accept(
        self, stop: threading.Event, deadline: float, control: socket.socket | None = None
    ) -> socket.socket:
        """As `accept`, closed with all else."""
        peer = self._request.peer
        return self._stack.enter_context(accept(self._listener, self._key, peer, stop, deadline, control))

    def _count(self, control: socket.socket, stop: threading.Event) -> Received:
        """Until the sender says that all are sent and nothing more comes."""
        counted = _Counted(self._key, self._clock)
        deadline = time.monotonic() + MOST_DATAGRAM_S + PATIENCE_S
        before = host_counts(self._request.device)
        buffer = bytearray(1 << 16)
        # Since when the socket was found empty, once the sender has ended; None before.
        quiet_since: float | None = None
        # When the last one came: a frozen sender keeps its connection, and the NIC would be in use for a minute.
        last_at: float | None = None
        self._datagrams.setblocking(False)
        control.setblocking(False)
        with selectors.DefaultSelector() as ready:
            ready.register(self._datagrams, selectors.EVENT_READ)
            ready.register(control, selectors.EVENT_READ)
            while True:
                check(stop, deadline)
                events = [key.fileobj for key, _ in ready.select(0.01 if quiet_since is not None else TICK_S)]
                if self._datagrams in events:
                    arrived = _arrived(self._datagrams, buffer)
                    counted.take(arrived)
                    self._moved.bytes += len(arrived) * _MOST_DATAGRAM
                    last_at = time.monotonic()
                    if quiet_since is not None:
                        quiet_since = last_at
                elif quiet_since is not None:
                    patience = _DRAIN_S if counted.gapless else _DRAIN_MISSING_S
                    if time.monotonic() - quiet_since > patience:
                        break
                if control in events:
                    if not control.recv(1):
                        raise TransferError("the sender has gone")
                    ready.unregister(control)
                    quiet_since = time.monotonic()
                elif quiet_since is None and last_at is not None and time.monotonic() - last_at > PATIENCE_S:
                    # Where none has come at all, the path may lose each: that is a result.
                    raise TransferError("the sender has fallen silent")
        control.setblocking(True)
        own = since(self._request.device, before)
        return counted.result(_drops(self._datagrams), own.dropped)

    def _drain(self, control: socket.socket, streams: list[socket.socket], stop: threading.Event) -> Hindered:
        """Takes what comes until the sender says that it has ended; how much this host was late meanwhile. What is
        still on its way then counts no more, and on a path that loses much it would come late."""
        buffer = bytearray(PIECE)
        before = host_counts(self._request.device)
        deadline = time.monotonic() + self._request.seconds + PATIENCE_S
        with selectors.DefaultSelector() as ready:
            for stream in streams:
                stream.setblocking(False)
                ready.register(stream, selectors.EVENT_READ)
            ready.register(control, selectors.EVENT_READ)
            under_way = True
            while under_way:
                check(stop, deadline)
                for key, _ in ready.select(TICK_S):
                    stream = key.fileobj  # type: ignore[assignment]
                    if stream is control:
                        if not control.recv(1):
                            raise TransferError("the sender has gone")
                        under_way = False
                        continue
                    try:
                        # MSG_TRUNC: the kernel throws it away uncopied (tcp(7)).
                        size = stream.recv_into(buffer, PIECE, socket.MSG_TRUNC)
                    except BlockingIOError:
                        continue
                    except ConnectionResetError:
                        size = 0
                    if not size:
                        ready.unregister(stream)
                    self._moved.bytes += size
        own = since(self._request.device, before)
        return Hindered(own.starved_s, own.stolen_s, own.busy)

    def close(self) -> None:
        """Of one that is not run."""
        self._stack.close()


class _Counted:
    """The datagrams of one transfer, each number once."""

    def __init__(self, key: bytes, clock: Clock) -> None:
        self._key = key
        self._clock = clock
        # A byte a number: there may be millions.
        self._seen = bytearray()
        self._count = 0
        self._last = -1
        # Datagrams of the largest piece: what has no room in the socket is counted by the piece.
        self._most = 1
        # Smallest one-way delay and the bound of its error, fleet time.
        self._best: tuple[int, int] | None = None
        # source port -> datagrams, smallest difference of raw clocks
        self._ports: dict[int, tuple[int, int | None]] = {}

    @property
    def gapless(self) -> bool:
        """Whether no number is missing up to the last that came, and any came."""
        return 0 < self._count == self._last + 1

    def take(self, arrived: list[_Arrived]) -> None:
        """Counts them, as they are read just now."""
        real_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        fleet = self._clock()
        piece = 0
        for one in arrived:
            piece = 1 if one.timed else piece + 1
            self._most = max(self._most, piece)
            if len(one.data) < DATAGRAM.size:
                continue
            shown, number, status, sent_ns, bound_ns, raw_ns = DATAGRAM.unpack_from(one.data)
            if number >= MOST_NUMBERS or not hmac.compare_digest(shown, self._key):
                continue
            if number >= len(self._seen):
                self._seen.extend(bytes(max(4096, number + 1 - len(self._seen))))
            if self._seen[number]:
                continue
            self._seen[number] = 1
            self._count += 1
            self._last = max(self._last, number)
            # How long it has waited to be read.
            age_ns = real_ns - one.real_ns if one.real_ns else 0
            age_ns = age_ns if 0 <= age_ns <= _MOST_AGE_NS else 0
            # Those without a stamp are sent at the whole rate, in bursts of one port: ports cannot be compared by them.
            if raw_ns and (one.port in self._ports or len(self._ports) < MOST_PORTS):
                delay = now_ns - age_ns - raw_ns if one.timed else None
                count, least = self._ports.get(one.port, (0, None))
                known = [d for d in (delay, least) if d is not None]
                self._ports[one.port] = count + 1, min(known, default=None)
            if fleet is not None and fleet.status in SYNCHRONIZED and status and one.timed:
                owd = fleet.fleet_ns - age_ns - sent_ns
                if self._best is None or owd < self._best[0]:
                    self._best = owd, fleet.bound_ns + bound_ns

    def result(self, overflowed: int, host_dropped: int) -> Received:
        """What is reported of them. overflowed : pieces."""
        by_port = tuple(PortCount(port, *counted) for port, counted in sorted(self._ports.items()))
        owd_ns, bound_ns = self._best or (None, 0)
        most = overflowed * self._most
        return Received(self._count, most, owd_ns, bound_ns, by_port, host_dropped, overflowed)


def _arrived(link: socket.socket, buffer: bytearray) -> list[_Arrived]:
    """Some of those that wait. buffer : for the largest piece."""
    found = []
    for _ in range(_BATCH):
        try:
            size, more, _, address = link.recvmsg_into([buffer], 128)
        except BlockingIOError:
            break
        real_ns, each = 0, size
        for level, kind, value in more:
            if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(value) >= _STAMP.size:
                seconds, nanoseconds = _STAMP.unpack_from(value)
                real_ns = seconds * 1_000_000_000 + nanoseconds
            elif level == socket.IPPROTO_UDP and kind == _UDP_GRO and len(value) >= 4:
                each = int.from_bytes(value[:4], sys.byteorder) or size
        for start in range(0, size, max(each, 1)):
            head = bytes(buffer[start : min(start + DATAGRAM.size, start + each, size)])
            found.append(_Arrived(head, address[1], real_ns, start == 0))
    return found


def _drops(link: socket.socket) -> int:
    """Datagrams that the socket had no room for (SO_MEMINFO)."""
    try:
        words = struct.unpack("=9I", link.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))
    except (OSError, struct.error):
        return 0
    return int(words[_DROPS])
