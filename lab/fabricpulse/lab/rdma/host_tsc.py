"""How fast this machine's time stamp counter counts.

QEMU hands the counter to the guest as it is, and the guest's kernel measures it as it boots: where a busy machine had
halted the guest meanwhile, its clock then ran ten times too fast.
"""

import ctypes
import mmap
import time
from collections.abc import Callable
from pathlib import Path

_SPAN_S = 0.02
_TRIES = 20
# rdtsc; shl $32, %rdx; or %rdx, %rax; ret
_READ_COUNTER = bytes.fromhex("0f31 48c1e220 4809d0 c3")


def tsc_khz() -> int | None:
    """Its rate; None where there is none, it is not constant, or this process may not run what reads it."""
    try:
        if "constant_tsc" not in Path("/proc/cpuinfo").read_text():
            return None
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    page.write(_READ_COUNTER)
    counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    first_count, first_ns = _together(counter)
    time.sleep(_SPAN_S)  # the span that is measured
    count, ns = _together(counter)
    return round((count - first_count) * 1e6 / (ns - first_ns))


def _together(counter: Callable[[], int]) -> tuple[int, int]:
    """The counter and the clock, as read with the least time between them."""
    readings = []
    for _ in range(_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        count = counter()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        readings.append((after - before, count, (before + after) // 2))
    _, count, at = min(readings)
    return count, at
