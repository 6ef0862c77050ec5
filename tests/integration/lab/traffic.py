"""Small real traffic between nodes, to measure what a fault does."""

import socket
import statistics
import struct
import time
from contextlib import suppress

from tests.fixtures.waiting import Patience

from fabricpulse.lab import Lab

IP_RECVTOS = 13
SO_TIMESTAMPNS = 35
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
TIMESPEC = struct.Struct("qq")
ECT0, CE = 2, 3


class Pair:
    """A datagram socket on each of two NICs, joined: `a` sends to `b` and back."""

    def __init__(self, lab: Lab, a: tuple[str, str], b: tuple[str, str], version: int = 4) -> None:
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        ends = []
        for host, device in (a, b):
            nic = lab.host(host).nic(device)
            sock = lab.socket(host, socket.SOCK_DGRAM, family)
            sock.bind((nic.address if version == 4 else nic.address6, 0))
            ends.append(sock)
        self.a, self.b = ends
        self.a.connect(self.b.getsockname())
        self.b.connect(self.a.getsockname())
        for sock in (self.a, self.b):
            sock.settimeout(1.0)
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 << 20)
            # A sender whose own buffer is full waits for the fabric's queue, and nothing is lost in it.
            sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 16 << 20)
        # The first packets wait for ARP; a measurement must not.
        self.one_way(self.a, self.b, 1)
        self.one_way(self.b, self.a, 1)

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self.a.close()
        self.b.close()

    @property
    def source_port(self) -> int:
        """Of a."""
        return int(self.a.getsockname()[1])

    @property
    def destination_port(self) -> int:
        """Of b."""
        return int(self.b.getsockname()[1])

    def there(self, count: int = 100) -> int:
        """How many of `count` datagrams from a arrive at b."""
        return self.one_way(self.a, self.b, count)

    def back(self, count: int = 100) -> int:
        """How many of `count` datagrams from b arrive at a."""
        return self.one_way(self.b, self.a, count)

    @staticmethod
    def one_way(sender: socket.socket, receiver: socket.socket, count: int, size: int = 64) -> int:
        """Sends `count` datagrams; returns how many arrive before nothing more comes for a while."""
        _drain(receiver)
        for number in range(count):
            with suppress(OSError):
                sender.send(number.to_bytes(4, "big").ljust(size, b"."))
        received = 0
        receiver.settimeout(0.3)
        with suppress(TimeoutError):
            while received < count:
                receiver.recv(65_536)
                received += 1
        return received

    def until_through(self, seconds: float = 10.0) -> float:
        """Seconds until a datagram from a arrives at b again, of a machine that is not busy (see Patience)."""
        patience = Patience(seconds)
        self.b.settimeout(0.01)
        while patience.left():
            with suppress(OSError):
                self.a.send(b"x")
            with suppress(TimeoutError):
                self.b.recv(64)
                return patience.spent_s
        raise AssertionError(f"nothing has come through in {seconds} s")

    def marked(self, count: int = 50) -> int:
        """How many of `count` ECN-capable datagrams from a arrive at b marked CE."""
        self.a.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ECT0)
        self.b.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        _drain(self.b)
        self.b.settimeout(1.0)
        found = 0
        for _ in range(count):
            self.a.send(b"x")
            _, ancillary, _, _ = self.b.recvmsg(64, 64)
            found += any(data[0] & 3 == CE for _, _, data in ancillary)
        self.a.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0)
        return found

    def rate_mbit(self, megabytes: float, size: int = 8000) -> float:
        """The rate at which a burst from a comes out of the fabric at b, Mbit/s, by the kernel's receive stamps.

        The burst is offered at once; what the queue under test does not hold is lost. The median of three: a machine
        that is late as one begins to come lets what waits pass together.
        """
        return statistics.median(self._burst_mbit(megabytes, size) for _ in range(3))

    def _burst_mbit(self, megabytes: float, size: int) -> float:
        self.b.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        _drain(self.b)
        for _ in range(int(megabytes * 1e6 / size)):
            self.a.send(b"." * size)
        stamps = []
        self.b.settimeout(0.2)
        with suppress(TimeoutError):
            while True:
                stamps.append(self._received_ns())
        # The first packets find the bucket full and pass at line rate.
        steady = stamps[4:]
        return float((len(steady) - 1) * (size + 42) * 8e3 / (steady[-1] - steady[0]))

    def delay_s(self) -> float:
        """Seconds from just before a datagram is sent at a until b's kernel has it; 1 if it is lost."""
        self.b.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        _drain(self.b)
        self.b.settimeout(1.0)
        sent = time.time_ns()
        self.a.send(b"x")
        try:
            return (self._received_ns() - sent) / 1e9
        except TimeoutError:
            return 1.0

    def _received_ns(self) -> int:
        _, ancillary, _, _ = self.b.recvmsg(65_536, 64)
        seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
        return int(seconds * 10**9 + nanoseconds)


def _drain(sock: socket.socket) -> None:
    sock.setblocking(False)
    with suppress(BlockingIOError, OSError):
        while True:
            sock.recv(65_536)
    sock.setblocking(True)
