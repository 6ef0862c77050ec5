"""Background traffic: UDP at a steady rate between two NICs, on the path that is asked for.

The sender is a process of the source host, `python -m fabricpulse.lab.load`, so that its work is not done under the
interpreter lock of the test or demo. The receiver is a socket that is never read: the kernel drops what it gets, at no
cost and without ICMP.
"""

import json
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from fabricpulse.core.errors import UserError
from fabricpulse.lab.faults import Fault
from fabricpulse.lab.network import LabNetwork
from fabricpulse.lab.node import Host, Nic

SINK_PORT = 9
FIRST_SOURCE_PORT = 40_000
PORTS_TRIED = 256

# Judgement: packets go out in groups this far apart, and a sender that was held up makes good this much.
TICK_S = 0.001
CATCH_UP_S = 0.02


class Load(Fault):
    """Running background traffic; `undo()` ends it."""

    def __init__(
        self,
        lab: LabNetwork,
        what: str,
        source: tuple[Host, Nic],
        destination: tuple[Host, Nic],
        mbit: float,
        source_ports: Sequence[int],
    ) -> None:
        """source_ports : one for each flow. Raises UserError."""
        if mbit <= 0:
            raise UserError(f"a load of {mbit} Mbit/s is not possible: it must be above 0")
        (host, nic), (target_host, target) = source, destination
        self.source_ports = list(source_ports)
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
        super().__init__(lab, what, self._end)

    def _end(self) -> None:
        self.process.kill()
        self._sink.close()
        self.process.wait(10)


def choose_ports(flows: int, path: tuple[str, Callable[[int], str]] | None) -> list[int] | None:
    """Source ports for `flows` flows; None when too few take the path.

    path : the spine that all must cross and a function that says which one a source port crosses; None = any.
    Raises UserError without a flow.
    """
    if flows < 1:
        raise UserError(f"a load in {flows} flows is not possible: it must be above 0")
    ports = range(FIRST_SOURCE_PORT, FIRST_SOURCE_PORT + PORTS_TRIED)
    if path is None:
        return list(ports[:flows])
    wanted, path_of = path
    found = []
    for port in ports:
        if path_of(port) == wanted:
            found.append(port)
            if len(found) == flows:
                return found
    return None


class Pacer:
    """How many packets are due, at a steady rate. Pure: the time is passed in.

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
