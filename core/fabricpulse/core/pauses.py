"""What this machine itself knows of pauses, after which CLOCK_MONOTONIC_RAW is behind what peers have counted: how long
it was suspended, and what its hypervisor says.

The C form is in core/include/fabricpulse/clock_page.h. A virtual machine that was stopped without a VMClock knows of
nothing.
"""

import mmap
import os
import struct
import time
from pathlib import Path

from fabricpulse.core._atomic import fence

VMCLOCK = Path("/dev/vmclock0")
# A suspend takes far longer than two clocks can be read apart.
SUSPEND_NS = 10_000_000
# struct vmclock_abi of <linux/vmclock-abi.h>: magic "VCLK", size, version, counter, time type, seq_count, marker.
_VMCLOCK = struct.Struct("<IIHBBIQ")
_VMCLOCK_MAGIC = 0x4B4C4356
_MARKER = struct.Struct("<Q")
_MARKER_OFFSET = 16


def suspended_ns() -> int:
    """How long the machine has been suspended since its boot; less where this thread lost its core amid the reading."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class VmClock:
    """The hypervisor's page at `path` that says when clocks were disrupted. Raises OSError or ValueError without
    one."""

    def __init__(self, path: Path = VMCLOCK) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._map = mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        magic, size, version, *_ = _VMCLOCK.unpack_from(self._map)
        if magic != _VMCLOCK_MAGIC or version != 1 or size < _VMCLOCK.size:
            self._map.close()
            raise ValueError(f"{path} is no VMClock of version 1")

    def marker(self) -> int:
        """Changes with each disruption of the clocks: migration, restore from a snapshot."""
        fence()
        return int(_MARKER.unpack_from(self._map, _MARKER_OFFSET)[0])


def marker_of(vmclock: VmClock | None) -> int:
    """Its disruption marker plus one, as the clock page has it; 0 = there is none."""
    return 0 if vmclock is None else (vmclock.marker() + 1) % 2**64


def open_vmclock() -> VmClock | None:
    """The VMClock of this machine; None where there is none, or this process may not read it."""
    try:
        return VmClock(VMCLOCK)
    except (OSError, ValueError):
        return None
