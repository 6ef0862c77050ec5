"""Background traffic: UDP at a steady rate between two NICs, on the path that is asked for.

The sender is a process of the source host, `python -m fabricpulse.lab.load`, so that its work is not done under the
interpreter lock of the test or demo. The receiver is a socket that nobody reads: the kernel drops what it gets, at no
cost and without ICMP.
"""

import json
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from fabricpulse.core.errors import UserError
from fabricpulse.lab.faults import Fault

if TYPE_CHECKING:
    from fabricpulse.lab.lab import Lab

SINK_PORT = 9
FIRST_SOURCE_PORT = 40_000
PORTS_TRIED = 256

# Judgement: packets go out in groups this far apart, and a sender that was held up makes good this much.
TICK_S = 0.001
CATCH_UP_S = 0.02


class Load(Fault):
    """Running background traffic; `undo()` ends it."""

    def __init__(
        self, lab: "Lab", source: str, destination: str, mbit: float, path: str | None, flows: int
    ) -> None:
        """source, destination : "h0-rail0". path : the spine to cross, or None for whatever the ports hash to."""
        if mbit <= 0 or flows < 1:
            raise UserError(f"a load of {mbit} Mbit/s in {flows} flows is not possible: both must be above 0")
        host, nic = lab.nic(source)
        target_host, target = lab.nic(destination)
        if path is not None and path not in lab.fabric.spine_names:
            raise UserError(f"the lab has no path {path!r}; it has {', '.join(lab.fabric.spine_names)}")
        self.source_ports = _ports(lab, source, destination, path, flows)
        self._sink = lab.socket(target_host.name, socket.SOCK_DGRAM)
        try:
            self._sink.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
            self._sink.bind((target.address, SINK_PORT))
            order = {
                "source": nic.address,
                "ports": self.source_ports,
                "target": target.address,
                "mbit": mbit,
                "size": lab.fabric.mtu - 28,
            }
            self.process = host.popen([sys.executable, "-P", "-m", "fabricpulse.lab.load", json.dumps(order)])
        except BaseException:
            self._sink.close()
            raise
        super().__init__(
            lab, f"load {source} to {destination} {mbit:g} Mbit/s {path or ''}".rstrip(), self._end
        )

    def _end(self) -> None:
        self.process.kill()
        self._sink.close()
        self.process.wait(10)


def _ports(lab: "Lab", source: str, destination: str, path: str | None, flows: int) -> list[int]:
    ports = range(FIRST_SOURCE_PORT, FIRST_SOURCE_PORT + PORTS_TRIED)
    if path is None:
        return list(ports[:flows])
    found = []
    for port in ports:
        if lab.path(source, destination, port, SINK_PORT) == path:
            found.append(port)
            if len(found) == flows:
                return found
    raise UserError(
        f"traffic from {source} to {destination} does not cross {path}: they share a leaf, or it is down"
    )


class Pacer:
    """How many packets are due, at a steady rate. Pure: it is told the time.

    After a stall at most CATCH_UP_S of traffic is made good; the rest is given up, not sent as one burst.
    """

    def __init__(self, mbit: float, size: int, now_s: float) -> None:
        """mbit : with IP and UDP headers. size : of the payload, bytes."""
        self._interval_s = (size + 28) * 8 / (mbit * 1e6)
        self._next_s = now_s

    def due(self, now_s: float) -> int:
        """Packets to send at `now_s`."""
        self._next_s = max(self._next_s, now_s - max(CATCH_UP_S, self._interval_s))
        count = max(0, int((now_s - self._next_s) / self._interval_s))
        self._next_s += count * self._interval_s
        return count


def main() -> None:
    """Sends until it is killed."""
    order = json.loads(sys.argv[1])
    socks = []
    for port in order["ports"]:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((order["source"], port))
        sock.connect((order["target"], SINK_PORT))
        sock.setblocking(False)
        socks.append(sock)
    payload = bytes(order["size"])
    pacer = Pacer(order["mbit"], order["size"], time.monotonic())
    turn = 0
    while True:
        for _ in range(pacer.due(time.monotonic())):
            turn = (turn + 1) % len(socks)
            with suppress(OSError):  # a full queue or a link that is down loses packets, as in life
                socks[turn].send(payload)
        time.sleep(TICK_S)


if __name__ == "__main__":
    main()
