"""What the kernel knows of its own clock's error: `adjtimex`, as chronyd, ntpd and phc2sys maintain it."""

import ctypes
import os

from fabricpulse.clocksync.sidecar.config import AnchorConfig

_TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>, 64-bit Linux; only the first fields are read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def anchor_bound(config: AnchorConfig) -> int | None:
    """How far this host's clock may be from UTC, ns, or None when it is no anchor now.

    Raises OSError where this process may not ask the kernel.
    """
    if config.kind == "none":
        return None
    if config.kind == "reference":
        return config.uncertainty_ns
    timex = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if state == _TIME_ERROR:
        return None  # the kernel says "not synchronised"
    return max(config.uncertainty_ns, int(timex.maxerror) * 1000)
