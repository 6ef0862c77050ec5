"""Runs in a guest with an igb: exchanges frames with the other guest that both NICs stamp, and writes all stamps down.

The emulated igb stamps each packet that leaves, and of those that arrive only PTP over Ethernet, one at a time. So
these are such frames. The engine's PhcLine puts the stamps on the raw clock.

Arguments: seconds, file for the result (JSON), library of tests/native/clocks/host_time.c.
"""

import ctypes
import fcntl
import json
import mmap
import os
import random
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fabricpulse.mesh._probe_engine import PhcLine

_S = 10**9
_ETHERTYPE = 0x88F7
# <linux/sockios.h>, <linux/net_tstamp.h>, <linux/ptp_clock.h>.
_SIOCSHWTSTAMP, _PTP_SYS_OFFSET_EXTENDED = 0x89B0, 0xC4C03D09
_FILTERS = {"all": 1, "NTP": 15, "PTP event": 12}
_SO_TIMESTAMPING, _STAMPS = 37, 0b100_0000_0101_1111  # TX, RX, both kinds, TX_SWHW
_HEADER, _PTP_SIZE = 14, 44
_IVSHMEM = ("0x1af4", "0x1110")
# TSYNCRXCTL of the 82576, and its bit "a receive stamp waits". Hardware clears it when the driver reads the stamp; the
# emulation does not, and stamps nothing more.
_TSYNCRXCTL, _WAITS = 0xB620, 1


def _raw_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class Phc:
    """/dev/ptp0 and its line. readings : (PHC, raw clock before, after)."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/ptp0", os.O_RDONLY)
        self.line = PhcLine()
        self.readings: list[tuple[int, int, int]] = []
        self.lost = 0

    def read(self) -> None:
        data = bytearray(16 + 25 * 48)
        struct.pack_into("<Ii", data, 0, 3, time.CLOCK_MONOTONIC_RAW)
        fcntl.ioctl(self._fd, _PTP_SYS_OFFSET_EXTENDED, data)
        found = []
        for sample in range(3):
            times = [struct.unpack_from("<qI", data, 16 + 48 * sample + 16 * k) for k in range(3)]
            low, phc, high = (seconds * _S + ns for seconds, ns in times)
            found.append((phc, low, high))
        best = min(found, key=lambda one: one[2] - one[1])
        self.readings.append(best)
        self.lost += not self.line.observe(*best)


class Nic:
    """The one NIC of the guest. sent, received : (number, kernel's stamp, raw clock by the NIC's stamp, its error)."""

    def __init__(self, phc: Phc) -> None:
        [self.device] = [path.name for path in Path("/sys/class/net").iterdir() if path.name != "lo"]
        self._phc = phc
        self._folder = Path("/sys/class/net") / self.device
        self.sent: list[tuple[int, ...]] = []
        self.received: list[tuple[int, ...]] = []
        subprocess.run(["ip", "link", "set", self.device, "up"], check=True)
        while (self._folder / "operstate").read_text().strip() != "up":
            time.sleep(0.05)  # the guest has no event of it
        self.filters = {name: self._set_up(number) for name, number in _FILTERS.items()}
        self._source = bytes.fromhex((self._folder / "address").read_text().strip().replace(":", ""))
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETHERTYPE))
        self._socket.bind((self.device, _ETHERTYPE))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _STAMPS)
        self._registers = mmap.mmap(os.open(self._folder / "device" / "resource0", os.O_RDWR), 0x20000)
        self._control = ctypes.c_uint32.from_buffer(self._registers, _TSYNCRXCTL)

    def _set_up(self, receive_filter: int) -> str:
        """Asks for stamps of what leaves and what arrives; what the driver says."""
        config = ctypes.create_string_buffer(struct.pack("<iii", 0, 1, receive_filter), 12)
        name = self.device.encode().ljust(16, b"\0")
        request = ctypes.create_string_buffer(
            name + struct.pack("P", ctypes.addressof(config)) + bytes(16), 40
        )
        try:
            fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), _SIOCSHWTSTAMP, request)
        except OSError as error:
            return str(error.strerror)
        return "taken"

    def send(self, number: int) -> None:
        identity = self._source + bytes(4)
        ptp = struct.pack(">BBH16x10s10x", 0, 2, _PTP_SIZE, identity).ljust(_PTP_SIZE, b"\0")
        head = b"\xff" * 6 + self._source + struct.pack(">H", _ETHERTYPE)
        self._socket.send(head + ptp[:_PTP_SIZE] + struct.pack(">I", number))

    def drain(self) -> None:
        """Takes in stamps of what has left, and what has arrived."""
        with suppress(BlockingIOError):
            while True:
                # The kernel's stamp and the NIC's come in a message of their own each, with the frame.
                data, more, *_ = self._socket.recvmsg(256, 256, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
                self._add(self.sent, data, more)
        with suppress(BlockingIOError):
            while True:
                data, more, _, address = self._socket.recvmsg(256, 256, socket.MSG_DONTWAIT)
                if address[2] != socket.PACKET_OUTGOING:
                    self._add(self.received, data, more)
                if self._control.value & _WAITS:
                    self._control.value &= ~_WAITS

    def _add(self, to: list[tuple[int, ...]], data: bytes, more: list[Any]) -> None:
        at = _HEADER + _PTP_SIZE
        for level, kind, value in more:
            if (level, kind) != (socket.SOL_SOCKET, _SO_TIMESTAMPING) or len(data) < at + 4:
                continue
            seconds, ns, _, _, nic_s, nic_ns = struct.unpack("<6q", value[:48])
            by_nic = self._phc.line.from_phc(nic_s * _S + nic_ns) if nic_s else (0, 0)
            to.append((int.from_bytes(data[at : at + 4], "big"), seconds * _S + ns, *by_nic))


def _both_clocks() -> tuple[int, int]:
    """CLOCK_REALTIME and the raw clock, of the quickest of some readings."""
    found = [(_raw_ns(), time.time_ns(), _raw_ns()) for _ in range(8)]
    before, real, after = min(found, key=lambda one: one[2] - one[0])
    return real, (before + after) // 2


def _host_time(library: str) -> tuple[Any, ctypes.c_int64]:
    """The reader of the host's time, and that."""
    for place in Path("/sys/bus/pci/devices").iterdir():
        if tuple((place / name).read_text().strip() for name in ("vendor", "device")) == _IVSHMEM:
            page = mmap.mmap(os.open(place / "resource2", os.O_RDWR), 4096)
            return ctypes.CDLL(library).read_host, ctypes.c_int64.from_buffer(page)
    raise SystemExit("there is no memory of the host's")


def main(seconds: float, result: Path, library: str) -> None:
    """Until `seconds` of this guest are over."""
    phc = Phc()
    nic = Nic(phc)
    read_host, page = _host_time(library)
    rows = (ctypes.c_int64 * 3000)()
    truth: list[list[int]] = []
    clocks: list[tuple[int, int]] = []  # CLOCK_REALTIME and the raw clock
    begin = asked = _raw_ns()
    number = 0
    while _raw_ns() - begin < seconds * _S:
        clocks.append(_both_clocks())
        phc.read()
        nic.drain()
        nic.send(number)
        number += 1
        time.sleep(0.002)  # so long a stamp of the NIC takes to come; readings lie on both sides of it
        phc.read()
        nic.drain()
        if _raw_ns() - asked > _S // 2:
            count = read_host(ctypes.byref(page), rows, 1000, ctypes.c_int64(110_000_000))
            truth += [list(rows[3 * k : 3 * k + 3]) for k in range(0, count, max(1, count // 100))]
            asked = _raw_ns()
        time.sleep(0.002 + 0.004 * random.random())  # frames of both guests in no fixed order
    data: dict[str, Any] = {"filters": nic.filters, "sent": nic.sent, "received": nic.received}
    data |= {"readings": phc.readings, "lost": phc.lost, "truth": truth, "clocks": clocks}
    result.write_text(json.dumps(data))


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
