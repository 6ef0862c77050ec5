"""How this host learns that the machine was paused, and its raw clock has lost time that its peers did not lose.

A virtual machine that is paused, migrated or restored from a snapshot goes on with all its clocks behind; a suspended
one with CLOCK_MONOTONIC_RAW behind. Nothing on the host contradicts the other then, so fleet time would be wrong by the
pause while it says synchronized.
"""

import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from fabricpulse.core._atomic import fence

VMCLOCK = Path("/dev/vmclock0")
_NS = 1_000_000_000
# struct vmclock_abi of <linux/vmclock-abi.h>: magic "VCLK", size, version, counter, time type, seq_count, marker.
_VMCLOCK = struct.Struct("<IIHBBIQ")
_VMCLOCK_MAGIC = 0x4B4C4356
_MARKER = struct.Struct("<Q")
_MARKER_OFFSET = 16
# A suspend takes far longer than both clocks can be read apart.
_SUSPEND_NS = 10_000_000


def majority_stepped(step_peers: int, fitted_peers: int) -> bool:
    """Whether edges tell that it is this host's clocks that jumped, and not a peer's.

    More than half of the peers, two at least: with one peer nobody can tell whose clocks it were.
    """
    return step_peers >= 2 and 2 * step_peers > fitted_peers


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


class PauseWatch:
    """Asks what the host itself knows of pauses. vmclock : None where the hypervisor offers none."""

    def __init__(self, vmclock: VmClock | None, suspended_ns: Callable[[], int]) -> None:
        """suspended_ns : time spent suspended since the boot."""
        self._vmclock, self._suspended_ns = vmclock, suspended_ns
        self._marker = vmclock.marker() if vmclock is not None else 0
        self._suspended = suspended_ns()

    def poll(self) -> str:
        """ "suspend" or "vmclock" when the machine was paused since the last call, else ""."""
        suspended = self._suspended_ns()
        if suspended - self._suspended > _SUSPEND_NS:
            self._suspended = suspended
            return "suspend"
        self._suspended = min(suspended, self._suspended)
        if self._vmclock is not None and (marker := self._vmclock.marker()) != self._marker:
            self._marker = marker
            return "vmclock"
        return ""


def pause_watch() -> PauseWatch:
    """Of this machine."""
    try:
        vmclock: VmClock | None = VmClock()
    except (OSError, ValueError):
        vmclock = None
    return PauseWatch(vmclock, suspended_ns)


def suspended_ns() -> int:
    """How long the machine has been suspended since its boot, to some us."""
    # Of several readings the one between whose clocks the least was lost to the scheduler.
    return min(
        -time.clock_gettime_ns(time.CLOCK_MONOTONIC) + time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for _ in range(4)
    )
