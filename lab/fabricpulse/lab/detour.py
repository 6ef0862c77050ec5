"""A longer way for some packets: the first leaf's routes send them through a device that holds each for a fixed time.

No queueing discipline that delays is needed, which not every kernel has: the device is a TUN that a process of the leaf
reads and writes, `python -m fabricpulse.lab.detour`. What it writes goes on by the leaf's usual routes. Nothing is
dropped or slowed down, up to what one Python process can carry (thousands of packets a second).
"""

import fcntl
import json
import os
import select
import struct
import sys
import time
from collections import deque

from fabricpulse.core.errors import UserError
from fabricpulse.lab.fabric import BRIDGE
from fabricpulse.lab.faults import Fault
from fabricpulse.lab.network import LabNetwork
from fabricpulse.lab.node import Nic

# <linux/if_tun.h>
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000

# Before the leaf's main table.
_PRIORITY = 500
_FIRST_TABLE = 200
# Packets that may be held at once, as a queue has an end.
_HELD = 4096
_READY_S = 10.0


class Detour(Fault):
    """TCP from one NIC to another takes the longer way; `undo()` ends it."""

    def __init__(self, lab: LabNetwork, what: str, source: Nic, destination: str, delay_ms: float) -> None:
        """destination : its IPv4 address. Raises UserError where that cannot be."""
        if delay_ms <= 0:
            raise UserError(f"a detour of {delay_ms} ms is not possible: it must be above 0")
        number = lab.next_number()
        device, table = f"detour{number}", _FIRST_TABLE + number
        order = {"device": device, "delay_s": delay_ms / 1e3, "mtu": lab.fabric.mtu}
        self._lab_network = lab
        self._leaf = source.leaf
        way = f"from {source.address} to {destination}"
        self._rule = f"priority {_PRIORITY} iif {BRIDGE} {way} ipproto tcp lookup {table}"
        self.process = lab.popen(
            self._leaf,
            [sys.executable, "-P", "-m", "fabricpulse.lab.detour", json.dumps(order)],
            name="detour",
        )
        try:
            self._wait_ready()
            lab.batch(
                self._leaf,
                "ip",
                [
                    f"link set dev {device} mtu {lab.fabric.mtu} up",
                    f"route add default dev {device} table {table}",
                    f"rule add {self._rule}",
                ],
            )
        except BaseException:
            self.process.kill()
            raise
        super().__init__(lab, what, self._end)

    def _wait_ready(self) -> None:
        due = time.monotonic() + _READY_S
        while "ready" not in self.process.output():
            if self.process.returncode is not None or time.monotonic() > due:
                raise UserError(f"a detour at {self._leaf} has not begun: {self.process.tail()}")
            time.sleep(0.02)

    def _end(self) -> None:
        """The device and its routes go with the process."""
        self._lab_network.batch(self._leaf, "ip", [f"rule del {self._rule}"])
        self.process.kill()
        self.process.wait(10)


def open_tun(device: str) -> int:
    """A new TUN device of the network that this process is in. Returns its descriptor, which does not block."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
    return descriptor


class DelayLine:
    """Packets that are held for a fixed time. Pure: the time is passed in. A packet beyond `_HELD` is dropped."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._held: deque[tuple[float, bytes]] = deque()

    def put(self, packet: bytes, now_s: float) -> None:
        """Takes a packet."""
        if len(self._held) < _HELD:
            self._held.append((now_s + self._delay_s, packet))

    def due(self, now_s: float) -> list[bytes]:
        """The packets whose time has come, in order."""
        packets = []
        while self._held and self._held[0][0] <= now_s:
            packets.append(self._held.popleft()[1])
        return packets

    def wait_s(self, now_s: float) -> float | None:
        """How long until the next one is due, at least 0; None when none is held."""
        return max(0.0, self._held[0][0] - now_s) if self._held else None


def main() -> None:
    """Carries packets until it is killed."""
    order = json.loads(sys.argv[1])
    tun = open_tun(order["device"])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    line = DelayLine(order["delay_s"])
    room = order["mtu"] + 64
    while True:
        readable, _, _ = select.select([tun], [], [], line.wait_s(time.monotonic()))
        while readable:
            try:
                line.put(os.read(tun, room), time.monotonic())
            except BlockingIOError:
                break
            except OSError:  # not up yet
                time.sleep(0.01)
                break
        for packet in line.due(time.monotonic()):
            os.write(tun, packet)


if __name__ == "__main__":
    main()
