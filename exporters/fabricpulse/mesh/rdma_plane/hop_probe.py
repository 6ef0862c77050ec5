"""The switches on the way of a queue pair: datagrams of the very same addresses and ports that a switch may forward
only so many times, and the ICMP errors of the switches that drop them.

A packet of RoCE v2 is one of UDP to port 4791 whose source port belongs to the queue pair. A NIC needs no UDP socket
for that port, so that an ordinary one can be bound to it, and its datagrams take the hash bucket of the queue pair.

None of them may reach the peer's NIC, which would take it for one of RDMA. It would be dropped without a trace in the
queue pair (transport version 15 and queue pair 0 are invalid, and so is its checksum), but NICs count what they drop,
and operators watch these counters. The hop limit therefore never exceeds the number of switches that datagrams to the
probe port of the peer have crossed, where they do no harm.

An answer counts only if it quotes the 64 random bits of the packet that it answers.
"""

import errno
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from fabricpulse.mesh.path_schedule import Hops

ROCE_PORT = 4791
MOST_HOPS = 8
PATIENCE_S = 0.25
_IP_RECVERR, _IPV6_RECVERR = 11, 25
# struct sock_extended_err (linux/errqueue.h), and after it the address of who sent the error.
_ERROR = struct.Struct("=IBBBBII")
_ORIGIN_ICMP, _ORIGIN_ICMP6 = 2, 3
_TIME_EXCEEDED, _TIME_EXCEEDED6 = 11, 3
_NONCE = 8
# Of a trace of the probe engine (probe_engine/path_tracer.cc), which every mesh exporter ignores: magic, nonce, hop.
_TRACE_HEAD, _TRACE_BYTES = b"FPTR", 16
# As long as a base transport header, with an opcode that is none, version 15, no partition and queue pair 0.
_ROCE_HEAD, _ROCE_BYTES = b"\xff\x0f\0\0\0\0\0\0", 32


@dataclass(frozen=True)
class Way:
    """What decides on the path. near, far : addresses. port : source port, 0 = any. to : destination port.
    traffic_class : of the IP header. device : that packets leave by, "" = as routed. hops : the highest hop limit.
    """

    near: str
    far: str
    port: int
    to: int
    traffic_class: int = 0
    device: str = ""
    hops: int = MOST_HOPS


@dataclass(frozen=True)
class Found:
    """hops : the switches, "" for one that does not answer, up to the last that does. error : errno when nothing could
    be sent, 0 = sent. sent : packets.
    """

    hops: Hops
    error: int = 0
    sent: int = 0


class _Probe:
    """One socket, for as long as answers are waited for."""

    def __init__(self, way: Way) -> None:
        """Raises OSError: EADDRINUSE where a socket of somebody else has the port, for one."""
        self._v6 = ":" in way.near
        self._way = way
        self._nonce = secrets.token_bytes(_NONCE)
        self._head, self._bytes = (
            (_ROCE_HEAD, _ROCE_BYTES) if way.to == ROCE_PORT else (_TRACE_HEAD, _TRACE_BYTES)
        )
        self.hops = [""] * way.hops
        self.sent = 0
        self.socket = socket.socket(socket.AF_INET6 if self._v6 else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._open()
        except BaseException:
            self.socket.close()
            raise

    def _open(self) -> None:
        way, link = self._way, self.socket
        link.setblocking(False)
        if self._v6:
            link.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
            link.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, way.traffic_class)
        else:
            link.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            link.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, way.traffic_class)
        if way.device:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, way.device.encode())
        # Not connected: the kernel would mark its packets with a number of the socket, and Linux routers behind virtual
        # links take that for the hash of addresses and ports.
        link.bind((way.near, way.port))

    def send(self) -> None:
        """Raises OSError when no packet can be sent."""
        for hop in range(1, self._way.hops + 1):
            if self._v6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hop)
            else:
                self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hop)
            data = (self._head + self._nonce + bytes((hop,))).ljust(self._bytes, b"\0")
            self._forget_error()  # the answer to the packet before may have come already
            try:
                self.socket.sendto(data, (self._way.far, self._way.to))
            except OSError as error:
                if error.errno not in (errno.EHOSTUNREACH, errno.ECONNREFUSED) and not self.sent:
                    raise
            else:
                self.sent += 1

    def receive(self) -> None:
        """Takes the answers that have come."""
        with suppress(BlockingIOError):
            while True:
                data, ancillary, _, _ = self.socket.recvmsg(256, 512, socket.MSG_ERRQUEUE)
                self._take(data, ancillary)
        self._forget_error()

    def _forget_error(self) -> None:
        self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def _take(self, data: bytes, ancillary: Sequence[tuple[int, int, bytes]]) -> None:
        head = len(self._head)
        if data[:head] != self._head or data[head : head + _NONCE] != self._nonce:
            return
        hop = data[head + _NONCE] if len(data) > head + _NONCE else 0
        for level, kind, value in ancillary:
            sender = _switch(level, kind, value)
            if sender and 1 <= hop <= len(self.hops):
                self.hops[hop - 1] = sender

    @property
    def answered(self) -> bool:
        """Whether nothing more is to come."""
        return "" not in self.hops


def _switch(level: int, kind: int, value: bytes) -> str:
    """The switch that has used up a hop limit, "" for any other message."""
    if len(value) < _ERROR.size:
        return ""
    _, origin, icmp_type, code, *_ = _ERROR.unpack_from(value)
    address = value[_ERROR.size :]
    if (level, kind, origin, icmp_type, code) == (
        *(socket.IPPROTO_IP, _IP_RECVERR, _ORIGIN_ICMP, _TIME_EXCEEDED),
        0,
    ):
        return socket.inet_ntop(socket.AF_INET, address[4:8]) if len(address) >= 8 else ""
    if (level, kind, origin, icmp_type, code) == (
        *(socket.IPPROTO_IPV6, _IPV6_RECVERR, _ORIGIN_ICMP6, _TIME_EXCEEDED6),
        0,
    ):
        return socket.inet_ntop(socket.AF_INET6, address[8:24]) if len(address) >= 24 else ""
    return ""


def traced(ways: Sequence[Way], patience_s: float = PATIENCE_S) -> list[Found]:
    """Traces all of them at once. Blocks until all switches have answered, or patience_s is over."""
    probes: dict[int, _Probe] = {}
    found: list[Found | None] = [None] * len(ways)
    poll = select.poll()
    try:
        waiting: dict[int, _Probe] = {}
        for index, way in enumerate(ways):
            try:
                probe = probes[index] = _Probe(way)
                probe.send()
            except OSError as error:
                found[index] = Found((), error.errno or errno.EIO)
                continue
            poll.register(probe.socket, 0)  # errors only
            waiting[probe.socket.fileno()] = probe
        until_s = time.monotonic() + patience_s
        while waiting and (left_s := until_s - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(1000 * left_s):
                probe = waiting[descriptor]
                probe.receive()
                if probe.answered:
                    poll.unregister(descriptor)
                    del waiting[descriptor]
    finally:
        for probe in probes.values():
            probe.socket.close()
    return [result or _result(probes[index]) for index, result in enumerate(found)]


def _result(probe: _Probe) -> Found:
    last = len(probe.hops)
    while last and not probe.hops[last - 1]:
        last -= 1
    return Found(tuple(probe.hops[:last]), 0, probe.sent)
