"""Model of the host clock over CLOCK_MONOTONIC_RAW: a line through the last cross-timestamps, for stamps in logs.

Both clocks count the same oscillator, but the host clock is steered: chronyd, ntpd or a person may step it, or make it
run up to some 1,000 ppm faster or slower. How wrong the line was about the last readings says how wrong it may be about
stamps between them. Fleet time itself does not rest on it.

Pure: readings are passed in.
"""

from collections import deque
from dataclasses import dataclass, field

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.core.shm.clock_page import STEP_NS, WIDEST_NS, ClockLine

# Readings that tell of the rate, some 2 s of them, and those whose deviations tell of the bound, some 1 s.
_READINGS, _DEVIATIONS = 8, 4


@dataclass
class HostClockModel:
    """line : raw over host, for stamps from since_ns on, previous : before. bound_ns : how wrong `line` was lately.

    steps : clock steps seen since the start.
    """

    line: ClockLine
    previous: ClockLine
    since_ns: int
    bound_ns: int = 0
    steps: int = 0
    _readings: deque[CrossTimestamp] = field(default_factory=lambda: deque(maxlen=_READINGS))
    _deviations: deque[int] = field(default_factory=lambda: deque(maxlen=_DEVIATIONS))

    @classmethod
    def start(cls, now: CrossTimestamp) -> "HostClockModel":
        """The rate is not known yet."""
        line = ClockLine(now.host_ns, now.raw_ns, 0)
        made = cls(line, line, now.host_ns)
        made._readings.append(now)
        return made

    def observe(self, now: CrossTimestamp) -> bool:
        """Takes a reading. Returns whether the host clock was stepped."""
        last = self._readings[-1]
        elapsed = now.raw_ns - last.raw_ns
        if elapsed <= 0:
            return False
        deviation = abs(now.raw_ns - self.line.at(now.host_ns))
        known = len(self._readings) > 1
        # No daemon slews a clock by more than a tenth. At the start 500 ppm is as fast as a crystal and the kernel's
        # usual slew go together.
        unknown_ns = 0 if known else elapsed // (10 if self.steps else 2_000)
        stepped = deviation > STEP_NS + unknown_ns
        if stepped:
            self.steps += 1
            self.previous = self.line
            # Stamps from the interval in which it happened are nearer to what came after.
            self.since_ns = now.host_ns - elapsed
            self._readings.clear()
        self._readings.append(now)
        first = self._readings[0]
        rate_ppt = self.line.rate_ppt
        if now.host_ns > first.host_ns:
            span = now.host_ns - first.host_ns
            rate_ppt = (now.raw_ns - first.raw_ns - span) * 10**12 // span
        self.line = ClockLine(now.host_ns, now.raw_ns, rate_ppt)
        if known or stepped:
            self._deviations.append(deviation)
            # Twice: what is steered late in an interval shows in full only at the end of the next.
            self.bound_ns = min(2 * max(self._deviations), WIDEST_NS)
        return stepped
