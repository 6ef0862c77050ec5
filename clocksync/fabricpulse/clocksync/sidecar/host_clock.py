"""Reads the host's clocks: CLOCK_REALTIME (through the lab's virtual clock) and CLOCK_MONOTONIC_RAW, as one
instant.
"""

import time

from fabricpulse.clocksync.sidecar.host_line import Instant
from fabricpulse.core.shm.virtual_clock import VirtualClock, open_virtual_clock


class HostClock:
    """The clocks of this host. Raises UserError when FABRICPULSE_VIRTUAL_CLOCK names no clock."""

    def __init__(self) -> None:
        self._virtual: VirtualClock | None = open_virtual_clock()

    def now_ns(self) -> int:
        """The host clock, ns since 1970."""
        return self.from_kernel(time.time_ns())

    def instant(self, tries: int = 5) -> Instant:
        """Both clocks at one moment: the closest of `tries` readings, usually within 100 ns."""
        best: tuple[int, int, int] | None = None
        for _ in range(tries):
            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            real = time.time_ns()
            after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            if best is None or after - before < best[0]:
                best = (after - before, real, (before + after) // 2)
        if best is None:
            raise ValueError("at least one reading is needed")
        return Instant(self.from_kernel(best[1]), best[2])

    def from_kernel(self, kernel_ns: int) -> int:
        """What the host clock shows when the kernel's CLOCK_REALTIME is `kernel_ns`."""
        return kernel_ns if self._virtual is None else self._virtual.from_kernel(kernel_ns)
