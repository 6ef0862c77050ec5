"""A port that sends each packet later by a fixed time. No queueing discipline that delays is needed, which not every
kernel has: nftables hands what is about to leave the port to a TAP device, which a process of the node reads,
`python -m fabricpulse.lab.delay_line`; it sends each frame out of the port when its time has come. Nothing is dropped,
reordered or slowed down, up to what one Python process can carry (thousands of packets a second).
"""

import fcntl
import json
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from fabricpulse.core.errors import UserError
from fabricpulse.lab.process import LabProcess
from fabricpulse.lab.runtime import LabRuntime

# <linux/if_tun.h>
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_TAP, _IFF_NO_PI = 0x0001, 0x0002, 0x1000

# Of the frames that have been held: these leave. A veth takes the mark off at the other network namespace.
MARK = 0x5AFE
# Packets that may be held at once, as a queue has an end.
_HELD = 4096
_READY_S = 10.0


def open_tun(device: str, ethernet: bool = False) -> int:
    """A new TUN device of the network that this process is in. Returns its descriptor, which does not block. ethernet :
    a TAP, which carries frames and not packets.
    """
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    kind = _IFF_TAP if ethernet else _IFF_TUN
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), kind | _IFF_NO_PI))
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


def start(lab: LabRuntime, node: str, name: str, module: str, order: Mapping[str, object]) -> LabProcess:
    """Starts a process of the node that carries packets, and returns once it does. name : of the device, which no other
    of the lab has: the process' output goes by it. Raises UserError if it does not.
    """
    command = [sys.executable, "-P", "-m", module, json.dumps(order)]
    process = lab.popen(node, command, name=name)
    due = time.monotonic() + _READY_S
    try:
        while "ready" not in process.output():
            if process.returncode is not None or time.monotonic() > due:
                raise UserError(f"packets at {node} are not delayed: {process.tail()}")
            time.sleep(0.02)  # the pace of a poll with a limit
    except BaseException:
        process.kill()
        raise
    return process


def carry(source: int, line: DelayLine, room: int, send: Callable[[bytes], object]) -> None:
    """Takes packets from a TUN device and sends each when its time has come, for ever."""
    while True:
        readable, _, _ = select.select([source], [], [], line.wait_s(time.monotonic()))
        while readable:
            try:
                line.put(os.read(source, room), time.monotonic())
            except BlockingIOError:
                break
            except OSError:  # not up yet
                time.sleep(0.01)
                break
        for packet in line.due(time.monotonic()):
            send(packet)


def main() -> None:
    """Carries frames until it is killed."""
    order = json.loads(sys.argv[1])
    tap = open_tun(order["tap"], ethernet=True)
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
    out.bind((order["device"], 0))
    sys.stdout.write("ready\n")
    sys.stdout.flush()

    def send(frame: bytes) -> None:
        with suppress(OSError):  # the port is down: the frame is lost
            out.send(frame)

    carry(tap, DelayLine(order["delay_s"]), order["mtu"] + 64, send)


if __name__ == "__main__":
    main()
