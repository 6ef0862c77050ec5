"""Model of the host clock over CLOCK_MONOTONIC_RAW: a line through the last cross-timestamps, and where it broke.

Both clocks count the same oscillator, but the host clock is steered: chronyd, ntpd or a person may step it, or make it
run up to some 1,000 ppm faster or slower. Readings of both at one moment agree within some 10 ns with a straight line
until that happens.

Pure: readings are passed in.
"""

import enum
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.core.shm.clock_page import STEP_NS, WIDEST_NS, ClockLine

_NS = 1_000_000_000
# A reading this far from the line tells of a turn; noise of a reading is some 10 ns, on a busy machine 100 ns.
TURN_NS = 400
# No daemon slews a clock faster: chronyd's limit.
_FASTEST_PPM = 100_000
# Maximum number of cross-timestamps in the regression (2 s). More would average the noise of readings better, which is
# 0.3 ns on a quiet machine, but follow worse what chronyd, or the wander of a virtual clock in the lab, does to the
# rate.
_READINGS = 8
# So many of them and it has been right about the last.
_SETTLED = 3
# A rate is that of so long: in less, noise would tell it.
_SPAN_NS = _NS
# Readings so close to the last tell of breaks, but nothing of the rate.
_APART_NS = 50_000_000


class HostChange(enum.Enum):
    """What a reading tells. STEP : also a turn that is so large that the next reading only can tell it from one."""

    NONE = 0
    TURN = 1
    BIG_TURN = 2
    STEP = 3


@dataclass(frozen=True)
class Bend:
    """How far the host clock went from a straight line: by ns in all, and by rate_ppb at most."""

    ns: int
    rate_ppb: int


@dataclass
class HostClockModel:
    """line : raw over host, for stamps from since_ns on, previous : before. bound_ns : how wrong `line` was lately.

    lookback_ns : how far back `bend` looks.
    """

    line: ClockLine
    previous: ClockLine
    since_ns: int
    last: CrossTimestamp
    lookback_ns: int
    bound_ns: int = 0
    _rest_ns: float = 0.0  # of line.to_ns, below whole ns
    _rate: float = 0.0
    _readings: int = 1
    _known: bool = False  # the rate is
    _stepped: bool = False  # the last reading told of a step
    _deviations: deque[int] = field(default_factory=lambda: deque(maxlen=4))
    _history: deque[CrossTimestamp] = field(default_factory=deque)

    @classmethod
    def start(cls, now: CrossTimestamp, lookback_ns: int) -> "HostClockModel":
        """The rate is not known yet."""
        line = ClockLine(now.host_ns, now.raw_ns, 0)
        made = cls(line, line, now.host_ns, now, lookback_ns)
        made._history.append(now)
        return made

    @property
    def settled(self) -> bool:
        """True once the rate has held for an interval: that of one in which the clock turned is a mixture."""
        return self._readings >= _SETTLED

    def raw_ns(self, host_ns: int) -> int:
        """What the raw clock showed when the host clock showed `host_ns`."""
        return (self.line if host_ns >= self.since_ns else self.previous).at(host_ns)

    def observe(self, now: CrossTimestamp) -> HostChange:
        """Takes a reading."""
        elapsed = now.raw_ns - self.last.raw_ns
        if elapsed <= 0:
            return HostChange.NONE
        deviation = now.raw_ns - self.line.at(now.host_ns)
        change = self._change(deviation, elapsed)
        if change == HostChange.NONE and elapsed < _APART_NS:
            return change
        if change == HostChange.NONE:
            self._refine(now, deviation, elapsed)
        else:
            self._break(now, change, elapsed)
        if change in (HostChange.STEP, HostChange.BIG_TURN):
            self._history.clear()
        if self._known:
            self._deviations.append(abs(deviation))
            # Twice: a turn late in an interval shows in full only at the end of the next.
            self.bound_ns = min(2 * max(self._deviations), WIDEST_NS)
        self._known = True
        self._stepped = change == HostChange.STEP
        self.last = now
        self._history.append(now)
        while self._history[0].raw_ns < now.raw_ns - self.lookback_ns:
            self._history.popleft()
        return change

    def bend(self) -> Bend:
        """How far the host clock went from any straight line that it was on, since `lookback_ns` ago or the last step.

        What was measured meanwhile, as if it had gone straight on, is wrong by that much.
        """
        first = self._history[0]
        raw = np.array([h.raw_ns - first.raw_ns for h in self._history], np.float64)
        if len(raw) < 3:
            return Bend(0, 0)
        host = np.array([h.host_ns - first.host_ns for h in self._history], np.float64) - raw
        end = np.searchsorted(raw, raw + min(_SPAN_NS, raw[-1] / 2))
        begin = np.flatnonzero(end < len(raw))
        end = end[begin]
        slope = (host[end] - host[begin]) / (raw[end] - raw[begin])
        ahead = raw - raw[begin][:, None]
        away = np.abs(host - host[begin][:, None] - slope[:, None] * ahead)[ahead >= 0]
        steepest = max(float(np.ptp(slope)), float(away.max() / raw[-1]))
        return Bend(round(float(away.max())), round(steepest * 1e9))

    def _change(self, deviation: int, elapsed: int) -> HostChange:
        if not self._known:
            # 500 ppm is as fast as a crystal and the kernel's usual slew go together.
            return HostChange.NONE if abs(deviation) <= STEP_NS + elapsed // 2_000 else HostChange.STEP
        if abs(deviation) <= TURN_NS:
            return HostChange.NONE
        if abs(deviation) <= STEP_NS:
            return HostChange.TURN
        # After a step the rate is as before. If the same seems to happen again, it was a turn, or is one now.
        turned = self._stepped and abs(deviation) <= elapsed * _FASTEST_PPM // 10**6
        return HostChange.BIG_TURN if turned else HostChange.STEP

    def _break(self, now: CrossTimestamp, change: HostChange, elapsed: int) -> None:
        self.previous = self.line
        # Stamps from the interval in which it happened are nearer to what came after.
        self.since_ns = now.host_ns - elapsed
        if change != HostChange.STEP:
            self._rate = elapsed / (now.host_ns - self.last.host_ns) - 1.0
        self._readings = 1 if change == HostChange.STEP else 2
        self._rest_ns = 0.0
        self.line = ClockLine(now.host_ns, now.raw_ns, round(self._rate * 1e12))

    def _refine(self, now: CrossTimestamp, deviation: int, elapsed: int) -> None:
        """The line of least squares through the readings since the last break, then a fading memory of them."""
        self._readings = n = min(self._readings + 1, _READINGS)
        exact = deviation - self._rest_ns
        self._rest_ns += 2 * (2 * n - 1) / (n * (n + 1)) * exact
        self._rate += 6 / (n * (n + 1)) * exact / elapsed
        whole = round(self._rest_ns)
        self._rest_ns -= whole
        self.line = ClockLine(now.host_ns, self.line.at(now.host_ns) + whole, round(self._rate * 1e12))
