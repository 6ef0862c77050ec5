"""Reads the host's clocks: CLOCK_REALTIME (through the lab's virtual clock) and CLOCK_MONOTONIC_RAW, as one
instant.
"""

import time

from fabricpulse.clocksync.sidecar.host_line import Instant
from fabricpulse.core.shm.virtual_clock import VirtualClock, open_virtual_clock

# What takes longer has met an interrupt, or a cold cache.
_HARDLY_SLOWER = 1.2


class HostClock:
    """The clocks of this host. Raises UserError when FABRICPULSE_VIRTUAL_CLOCK names no clock."""

    def __init__(self) -> None:
        self._virtual: VirtualClock | None = open_virtual_clock()

    def now_ns(self) -> int:
        """The host clock, ns since 1970."""
        return self.from_kernel(time.time_ns())

    def instant(self, tries: int = 100) -> Instant:
        """Both clocks at one moment, to some 2 ns: the mean of those of `tries` readings that were hardly slower than
        the fastest. All take some 40 us.

        The first dozen pay for caches that went cold while the program slept; they are slow, and wrong to one side. The
        fastest of five readings has an error of 10 to 30 ns (one standard deviation).
        """
        read, real_clock, raw_clock = time.clock_gettime_ns, time.CLOCK_REALTIME, time.CLOCK_MONOTONIC_RAW
        readings = []
        for _ in range(tries):
            before = read(raw_clock)
            real = read(real_clock)
            readings.append((read(raw_clock) - before, before, real))
        fastest_ns, raw, host = min(readings)
        # Of small differences: the raw clock in the middle of a reading minus the real one, as against the fastest.
        middles = [
            (before - raw) - (real - host) + took / 2
            for took, before, real in readings
            if took <= fastest_ns * _HARDLY_SLOWER
        ]
        # Others are of before, or after, a step of the host clock.
        alike = [middle for middle in middles if abs(middle - fastest_ns / 2) <= fastest_ns * _HARDLY_SLOWER]
        return Instant(self.from_kernel(host), raw + round(sum(alike) / len(alike)))

    def from_kernel(self, kernel_ns: int) -> int:
        """What the host clock shows when the kernel's CLOCK_REALTIME is `kernel_ns`."""
        return kernel_ns if self._virtual is None else self._virtual.from_kernel(kernel_ns)
