"""Reads the host's clocks: CLOCK_REALTIME and CLOCK_MONOTONIC_RAW (both through the lab's virtual clock), as one
instant.
"""

import time

from fabricpulse.clocksync._cross_timestamp import cross_timestamp
from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.core.shm.virtual_clock import VirtualClock, open_virtual_clock


class HostClock:
    """The clocks of this host. Raises UserError when FABRICPULSE_VIRTUAL_CLOCK names no clock."""

    def __init__(self) -> None:
        self._virtual: VirtualClock | None = open_virtual_clock()

    def raw_now_ns(self) -> int:
        """CLOCK_MONOTONIC_RAW, ns."""
        raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        return raw_ns if self._virtual is None else self._virtual.raw_from_kernel(raw_ns)

    def cross_timestamp(self, tries: int = 40) -> CrossTimestamp:
        """Both clocks at one moment: the mean of those of `tries` readings that were hardly slower than the fastest,
        good to 0.3 ns on a quiet machine.

        The first pay for caches that went cold while the program slept. Raises ValueError when `tries` is not
        positive, RuntimeError when the raw clock ran backward in all of them.
        """
        real_ns, raw_ns, error_ns = cross_timestamp(tries)
        if self._virtual is not None:
            raw_ns = self._virtual.raw_from_kernel(raw_ns)
        return CrossTimestamp(self.from_kernel(real_ns), raw_ns, error_ns)

    def from_kernel(self, kernel_ns: int) -> int:
        """What the host clock shows when the kernel's CLOCK_REALTIME is `kernel_ns`."""
        return kernel_ns if self._virtual is None else self._virtual.from_kernel(kernel_ns)
