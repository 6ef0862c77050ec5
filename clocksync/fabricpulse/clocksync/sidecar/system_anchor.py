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


def system_anchor(config: AnchorConfig) -> tuple[int, int] | None:
    """(UTC minus host clock = 0, its error bound in ns), or None when this host is no anchor now.

    Raises OSError where this process may not ask the kernel.
    """
    if config.kind == "none":
        return None
    if config.kind == "reference":
        return 0, config.uncertainty_ns
    timex = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if state == _TIME_ERROR:
        return None  # the kernel says "not synchronised"
    return 0, max(config.uncertainty_ns, timex.maxerror * 1000)
