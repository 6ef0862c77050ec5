"""Offers fleet time to chronyd (or any daemon with NTP's SHM refclock), which may then steer the host clock.

fabricpulse never steers it. SOCK: datagrams to a socket that chronyd has made. SHM: NTP's shared-memory segment.
A sample says: when the system clock showed `kernel_ns`, the true time was `offset_ns` more.
"""

import ctypes
import os
import socket
import struct
from pathlib import Path

from fabricpulse.core._atomic import fence

SOCK_MAGIC = 0x534F434B
SOCK_SAMPLE = struct.Struct("@qq d iiii")
SHM_KEY = 0x4E545030
_IPC_CREAT = 0o1000
_NS = 10**9


class ChronySock:
    """Sends samples to chronyd's SOCK refclock. sent, failed : counters. reason : of the last failure."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.reason = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self.sent = self.failed = 0

    def feed(self, kernel_ns: int, offset_ns: int, bound_ns: int) -> None:
        """Sends a sample; a chronyd that is not there is counted, not an error. bound_ns : not part of the protocol."""
        seconds, ns = divmod(kernel_ns, _NS)
        # The time of the sample has microseconds only; the offset is meant at that time, and hardly changes in 1 us.
        sample = SOCK_SAMPLE.pack(seconds, ns // 1000, offset_ns * 1e-9, 0, 0, 0, SOCK_MAGIC)
        try:
            self._socket.sendto(sample, self.path)
        except OSError as error:
            self.failed += 1
            self.reason = error.strerror or str(error)
        else:
            self.sent += 1

    def close(self) -> None:
        """Closes our end."""
        self._socket.close()


class ShmTime(ctypes.Structure):
    """struct shmTime of NTP's SHM reference clock, 64-bit Linux."""

    _fields_ = (
        ("mode", ctypes.c_int),
        ("count", ctypes.c_int),
        ("clock_sec", ctypes.c_long),
        ("clock_us", ctypes.c_int),
        ("receive_sec", ctypes.c_long),
        ("receive_us", ctypes.c_int),
        ("leap", ctypes.c_int),
        ("precision", ctypes.c_int),
        ("samples", ctypes.c_int),
        ("valid", ctypes.c_int),
        ("clock_ns", ctypes.c_uint),
        ("receive_ns", ctypes.c_uint),
        ("reserved", ctypes.c_int * 8),
    )


class NtpShm:
    """Writes NTP's SHM unit `unit` in mode 1. sent, failed, reason : as of ChronySock; a write does not fail.

    The reader takes a sample that is `valid`, if `count` is the same before and after it has copied it. So a sample is
    invalid before the first count, and valid only after the second, in this order for other processors too: whatever
    part of two samples a reader copies, it finds no `valid` or two counts. Layout and protocol: ntpd's driver 28.
    """

    def __init__(self, unit: int) -> None:
        """Raises OSError when the segment cannot be had: other owner, other size."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.shmat.restype = ctypes.c_void_p
        # Units 0 and 1 are for root only, by convention of ntpd and chronyd.
        mode = 0o600 if unit < 2 else 0o666
        segment = self._libc.shmget(SHM_KEY + unit, ctypes.sizeof(ShmTime), _IPC_CREAT | mode)
        if segment < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        address = self._libc.shmat(segment, None, 0)
        if address is None or address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._address = address
        self._time = ShmTime.from_address(address)
        # What a sidecar before us left is of another time.
        self._time.valid = 0
        fence()
        self._time.mode = 1
        self._time.precision = -24
        self._time.samples = 3
        self.path, self.reason = f"unit {unit}", ""
        self.sent = self.failed = 0

    def feed(self, kernel_ns: int, offset_ns: int, bound_ns: int) -> None:
        """Publishes a sample. bound_ns : not part of the protocol."""
        t = self._time
        t.valid = 0
        fence()
        t.count += 1
        fence()
        true_s, true_ns = divmod(kernel_ns + offset_ns, _NS)
        host_s, host_ns = divmod(kernel_ns, _NS)
        t.clock_sec, t.clock_us, t.clock_ns = true_s, true_ns // 1000, true_ns
        t.receive_sec, t.receive_us, t.receive_ns = host_s, host_ns // 1000, host_ns
        t.leap = 0
        fence()
        t.count += 1
        fence()
        t.valid = 1
        self.sent += 1

    def close(self) -> None:
        """Detaches; the segment stays for its reader."""
        self._libc.shmdt(ctypes.c_void_p(self._address))
