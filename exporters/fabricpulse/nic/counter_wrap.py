"""Widening 32-bit hardware counters to 64 bits.

A counter that wraps at 2^32 looks to Prometheus like one that was reset: what it counted between the last scrape and
the wrap is lost. Here a wrap is told from a reset, so that the exported counter goes on.

Pure: no I/O, no clock.
"""

from dataclasses import dataclass

WRAP = 1 << 32
# A step across the wrap is believed up to this multiple of the largest step seen, and always up to STEP_FLOOR.
# Judgement: load of a queue pair changes by tens between scrapes, a reset from the upper half of the range looks like
# a step of up to 2^31.
STEP_FACTOR = 16
STEP_FLOOR = 1 << 20


@dataclass
class WrappingCounter:
    """State of one counter. raw : last value read, -1 before the first. base : what wraps have added."""

    raw: int = -1
    base: int = 0
    largest_step: int = 0

    def update(self, raw: int, *, reset_likely: bool = False) -> int:
        """The widened value after `raw` was read.

        reset_likely : something happened since the last reading that is known to reset counters (the port flapped).
        A fall is a wrap if the step across 2^32 is no larger than the steps seen so far make plausible; otherwise it
        is a reset, and the exported value falls with it, as Prometheus expects of a reset.
        """
        if self.raw < 0:
            self.raw = raw
            return raw + self.base
        step = raw - self.raw
        if step < 0:
            across = step + WRAP
            plausible = max(STEP_FLOOR, STEP_FACTOR * self.largest_step)
            if not reset_likely and self.raw < WRAP and across <= plausible:
                self.base += WRAP
                step = across
            else:
                self.base = 0
                step = 0
        self.raw = raw
        self.largest_step = max(self.largest_step, step)
        return raw + self.base
