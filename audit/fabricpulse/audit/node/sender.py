"""The end of a transfer that sends: paced datagrams, some of them as fast as the NIC is, then TCP for a moment. Linux.

At the whole rate the kernel cuts a call's buffer into datagrams (UDP_SEGMENT): one call a datagram is too slow for it.
"""

import errno
import ipaddress
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import msgspec

from fabricpulse.audit.node.host_losses import host_counts, since
from fabricpulse.audit.node.tcp_progress import TcpProgress, rates, tcp_progress
from fabricpulse.audit.node.transfer import (
    DATAGRAM,
    FIRST_SOURCE_PORT,
    MOST_DATAGRAM_S,
    MOST_NUMBERS,
    MOST_SEGMENTS,
    PATIENCE_S,
    PIECE,
    SYNCHRONIZED,
    TICK_S,
    Clock,
    Moved,
    TransferError,
    bound_socket,
    check,
    connect,
    read_document,
)
from fabricpulse.audit.node.wire import Hindered, Received, SendRequest, TransferResult

_UDP_HEADERS = {4: 28, 6: 48}
_SO_MAX_PACING_RATE = 47
# Of the time of TCP that does not count: a window that has yet to open is no property of a path.
_WARM_UP = 0.2
_TCP_NOTSENT_LOWAT, _LEAST_UNSENT = 25, 128 << 10
# Without it a datagram that this host's own queue drops is reported as sent (ip(7), udp(7)).
_RECVERR = {4: (socket.IPPROTO_IP, 11), 6: (socket.IPPROTO_IPV6, 25)}
# udp(7). Segments of a call, and its bytes; of Ethernet: preamble, header, checksum and gap.
_UDP_SEGMENT, _MOST_CALL, _ETHERNET = 103, 64_000, 38
# Of a call at the rate that was asked for: queues that are good enough for it hold that much, seconds.
_MOST_BURST_S = 0.001
# How far behind its pace a sender catches up, seconds.
_MOST_LATE_S = 0.002
# Queues of this host that are full.
_OWN = (errno.ENOBUFS, errno.EAGAIN)
# What routers have said of an earlier datagram: the network's loss.
_ICMP_ERRORS = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EPROTO)


def send(
    request: SendRequest,
    clock: Clock,
    stop: threading.Event,
    after: threading.Event | None = None,
    moved: Moved | None = None,
) -> TransferResult:
    """Makes the transfer; raises nothing: an error is in the result, with what was measured before it.

    after : TCP waits for it, so that transfers in both directions push at the same time. moved : counts what is sent.
    """
    result = TransferResult()
    moved = moved or Moved()
    try:
        with ExitStack() as stack:
            control = stack.enter_context(_connect(request))
            before = host_counts(request.device)
            by_port, more, loss_bps = _send_datagrams(request, clock, stop, moved)
            sent = sum(by_port.values()) + more
            result = msgspec.structs.replace(result, sent=sent, sent_by_port=by_port, loss_bps=loss_bps)
            control.sendall(b".")
            received = read_document(control, Received, stop, PATIENCE_S)
            dropped = since(request.device, before).dropped
            result = msgspec.structs.replace(result, received=received, host_dropped=dropped)
            # One at a time: the receiver takes them as they come, each with the key.
            streams = [stack.enter_context(_connect(request)) for _ in range(request.streams)]
            deadline = time.monotonic() + PATIENCE_S
            while after is not None and not after.wait(TICK_S):
                check(stop, deadline)
            before = host_counts(request.device)
            bps, path_bps = _push(request, streams, stop, moved)
            own = since(request.device, before)
            control.sendall(b".")
            peer = read_document(control, Hindered, stop, request.seconds + PATIENCE_S)
            result = msgspec.structs.replace(
                result,
                bps=bps or None,
                path_bps=path_bps,
                starved=min(1.0, max(own.starved_s, peer.starved_s) / request.seconds),
                stolen=min(1.0, max(own.stolen_s, peer.stolen_s) / request.seconds),
                busy=max(own.busy, peer.busy),
            )
    except (TransferError, OSError, ValueError) as error:
        text = str(error) or type(error).__name__
        return msgspec.structs.replace(result, error=text[:256])
    return result


def _send_datagrams(
    request: SendRequest, clock: Clock, stop: threading.Event, moved: Moved
) -> tuple[dict[int, int], int, float | None]:
    """Paced at a quarter of the rate, then at all of it, from all source ports in turn; how many the kernel took of
    each port; how many of the latter, which leave in bursts of one port and say nothing of it, and their rate on the
    wire, bits per second, None if there were none."""
    version = ipaddress.ip_address(request.peer).version
    key = bytes.fromhex(request.key)
    size = max(DATAGRAM.size, request.datagram_bytes - _UDP_HEADERS[version])
    filler = bytes(size - DATAGRAM.size)
    interval = size * 8 / max(1.0, request.rate_bps / 4)
    sent: dict[int, int] = {}
    with ExitStack() as stack:
        links = []
        for index in range(request.source_ports):
            port = FIRST_SOURCE_PORT + index
            link = stack.enter_context(bound_socket(request.address, request.device, "udp", port))
            link.connect((request.peer, request.udp_port))
            link.settimeout(PATIENCE_S)
            with suppress(OSError):
                link.setsockopt(*_RECVERR[version], 1)
            links.append((link, link.getsockname()[1]))
        begun = time.monotonic()
        deadline = begun + MOST_DATAGRAM_S
        due = begun
        for number in range(request.datagrams):
            early = due - time.monotonic()
            if early > 0.0005:
                time.sleep(early)
            # A host that was late does not catch up: a burst would be lost in queues that are good enough.
            due = max(due, time.monotonic() - _MOST_LATE_S) + interval
            if number % 64 == 0:
                check(stop, deadline)
            link, port = links[number % len(links)]
            now = clock()
            raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            stamp = (1, now.fleet_ns, now.bound_ns) if now and now.status in SYNCHRONIZED else (0, 0, 0)
            try:
                link.send(DATAGRAM.pack(key, number, *stamp, raw_ns) + filler)
            except ConnectionRefusedError as error:
                raise TransferError("the receiver does not listen any more") from error
            except OSError as error:
                if error.errno in _OWN:
                    continue
                if error.errno not in _ICMP_ERRORS:
                    raise
            sent[port] = sent.get(port, 0) + 1
            moved.bytes += size
        if not request.loss_seconds:
            return sent, 0, None
        return sent, *_send_at_whole_rate(request, key, size, [link for link, _ in links], stop, moved)


def _send_at_whole_rate(
    request: SendRequest,
    key: bytes,
    size: int,
    links: Sequence[socket.socket],
    stop: threading.Event,
    moved: Moved,
) -> tuple[int, float]:
    """Datagrams of `size` bytes of payload without stamps, numbered after those before. How many the kernel took, and
    their rate on the wire, bits per second: no more than was asked for, less where this host cannot."""
    on_wire = size + _UDP_HEADERS[ipaddress.ip_address(request.peer).version] + _ETHERNET
    most = min(MOST_SEGMENTS, _MOST_CALL // size, int(_MOST_BURST_S * request.rate_bps / 8 / on_wire))
    each = max(1, most)
    if not all(_segments(link, size) for link in links):
        each = 1
    batch = bytearray(each * size)
    interval = each * on_wire * 8 / request.rate_bps
    number, count = request.datagrams, 0
    begun = due = time.monotonic()
    end = begun + request.loss_seconds
    turn = 0
    while (now := time.monotonic()) < end and number + each <= MOST_NUMBERS:
        if due - now > 0.0005:
            time.sleep(min(due - now, end - now))
            continue
        due = max(due, now - _MOST_LATE_S) + interval
        if turn % 16 == 0:
            check(stop, end + 1)
        link = links[turn % len(links)]
        turn += 1
        for index in range(each):
            DATAGRAM.pack_into(batch, index * size, key, number + index, 0, 0, 0, 0)
        number += each
        try:
            link.send(batch)
        except ConnectionRefusedError as error:
            raise TransferError("the receiver does not listen any more") from error
        except OSError as error:
            if error.errno in _OWN:
                continue
            if error.errno not in _ICMP_ERRORS:
                raise
        count += each
        moved.bytes += each * size
    return count, count * on_wire * 8 / max(time.monotonic() - begun, 1e-3)


def _segments(link: socket.socket, size: int) -> bool:
    """Has the kernel cut what is sent into datagrams of this size; False where it cannot (before Linux 4.18)."""
    try:
        link.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, size)
    except OSError:
        return False
    return True


def _push(
    request: SendRequest, streams: list[socket.socket], stop: threading.Event, moved: Moved
) -> tuple[float | None, float | None]:
    """Zeros into all streams until the time is over; what came of it after the first fifth, as `rates` tells."""
    first: TcpProgress | None = None
    with ExitStack() as stack:
        zeros = os.memfd_create("zeros", os.MFD_CLOEXEC)
        stack.callback(os.close, zeros)
        os.ftruncate(zeros, PIECE)
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
        warm = time.monotonic() + _WARM_UP * request.seconds
        end = time.monotonic() + request.seconds
        while (now := time.monotonic()) < end:
            check(stop, end + 1)
            if first is None and now >= warm:
                first = tcp_progress(streams)
            until = end if first is not None else warm
            for key, _ in ready.select(min(TICK_S, max(0.0, until - now))):
                try:
                    moved.bytes += os.sendfile(key.fd, zeros, 0, PIECE)
                except BlockingIOError:
                    continue
        found = rates(first, tcp_progress(streams))
        for stream in streams:
            # What is still on its way is thrown away: it would be in the way of the next test.
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.close()
    return found


def _connect(request: SendRequest) -> socket.socket:
    return connect(request.address, request.device, request.peer, request.tcp_port, request.key)
