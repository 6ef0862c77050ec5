"""What the kernel knows of its clock (adjtimex), as chronyd, ntpd and phc2sys maintain it."""

import ctypes
import os


class Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>, 64-bit Linux. maxerror : us. tai : TAI minus UTC, s; 0 = nobody has set it."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("others", ctypes.c_long * 5),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("counts", ctypes.c_long * 5),
        ("tai", ctypes.c_int),
        ("rest", ctypes.c_byte * 44),
    )


def read_timex() -> tuple[int, Timex]:
    """The clock's state, TIME_OK to TIME_ERROR, and the rest. Raises OSError where this process may not ask."""
    timex = Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(state), timex


def tai_minus_utc_s() -> int:
    """By the kernel, seconds; 0 = it does not know, or this process may not ask."""
    try:
        return int(read_timex()[1].tai)
    except OSError:
        return 0
