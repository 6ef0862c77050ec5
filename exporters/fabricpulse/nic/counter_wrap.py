"""Widening 32-bit hardware counters to 64 bits.

A counter that wraps at 2^32 looks to Prometheus like one that was reset: what it counted between the last scrape and
the wrap is lost. Here a wrap is distinguished from a reset, so that the exported counter goes on.

Pure: no I/O, no clock.
"""

from dataclasses import dataclass

WRAP = 1 << 32
# An increment across the wrap is accepted up to this multiple of the largest increment seen, and always up to
# INCREMENT_FLOOR. Judgement: load of a queue pair changes by tens between scrapes, a reset from the upper half of the
# range looks like an increment of up to 2^31.
INCREMENT_FACTOR = 16
INCREMENT_FLOOR = 1 << 20


@dataclass
class WrappingCounter:
    """State of one counter. raw : last value read, -1 before the first. base : what wraps have added."""

    raw: int = -1
    base: int = 0
    largest_increment: int = 0

    def update(self, raw: int, *, reset_likely: bool = False) -> int:
        """The widened value after `raw` was read.

        reset_likely : something happened since the last reading that is known to reset counters (the port flapped).
        A fall is a wrap if the increment across 2^32 is no larger than those seen so far make plausible; otherwise it
        is a reset, and the exported value falls with it, as Prometheus expects of a reset.
        """
        if self.raw < 0:
            self.raw = raw
            return raw + self.base
        increment = raw - self.raw
        if increment < 0:
            across = increment + WRAP
            plausible = max(INCREMENT_FLOOR, INCREMENT_FACTOR * self.largest_increment)
            if not reset_likely and self.raw < WRAP and across <= plausible:
                self.base += WRAP
                increment = across
            else:
                self.base = 0
                increment = 0
        self.raw = raw
        self.largest_increment = max(self.largest_increment, increment)
        return raw + self.base
