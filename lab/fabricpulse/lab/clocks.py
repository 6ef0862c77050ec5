"""The clocks of lab hosts: wrong on purpose, and known exactly.

Each host has a page of segments (core/include/fabricpulse/virtual_clock.h) that its daemons apply to every kernel
stamp and every reading of a clock. The error of its oscillator is on CLOCK_REALTIME and CLOCK_MONOTONIC_RAW alike; what
steps and steers a clock is on CLOCK_REALTIME only. Only this module writes it. A change is published LEAD_NS before it
holds, so that no reader can have read a stamp of after the change without it; `late` counts the changes where the
machine stalled for longer than that.
"""

import heapq
import random
import threading
import time
from pathlib import Path

from fabricpulse.core.shm.virtual_clock import VirtualClock, VirtualClockWriter

# Judgement: wake-up delays of up to 90 ms were seen on idle virtual machines.
LEAD_NS = 150_000_000


class HostClock:
    """The virtual clock of one host. Offsets: host minus kernel, ns. Rates: positive = the host is fast."""

    def __init__(self, path: Path, driver: "WanderDriver", capacity: int = 65_536) -> None:
        self.path = path
        self._driver = driver
        self._writer = VirtualClockWriter(path, capacity)
        self._lock = threading.RLock()
        self._rate_ppt = self._steered_ppt = 0
        self._in_use = False
        self._wander: random.Random | None = None
        self._wander_ppb = 0.0
        self._start_ns = time.time_ns()
        self._raw_start_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        self._writer.append(self._start_ns, 0, 0)
        self._writer.append_raw(self._raw_start_ns, 0, 0)
        self._reader = VirtualClock(path)
        self.late = 0

    def mark_in_use(self) -> None:
        """From now on programs read the page: changes hold only LEAD_NS after they were published."""
        with self._lock:
            self._in_use = True

    def truth(self, kernel_ns: int) -> int:
        """Host clock minus kernel clock, ns, when the kernel's CLOCK_REALTIME was `kernel_ns`. Exact."""
        return self._reader.from_kernel(kernel_ns) - kernel_ns

    def from_kernel(self, kernel_ns: int) -> int:
        """What this host's clock showed at `kernel_ns`."""
        return self._reader.from_kernel(kernel_ns)

    def raw_from_kernel(self, kernel_ns: int) -> int:
        """CLOCK_MONOTONIC_RAW of this host when the kernel's was `kernel_ns`."""
        return self._reader.raw_from_kernel(kernel_ns)

    def kernel_raw(self, raw_ns: int) -> int:
        """CLOCK_MONOTONIC_RAW of the kernel when this host's was `raw_ns`: the inverse of `raw_from_kernel`."""
        kernel_ns = raw_ns
        for _ in range(4):
            kernel_ns -= self.raw_from_kernel(kernel_ns) - raw_ns
        return kernel_ns

    @property
    def drift_ppm(self) -> float:
        """The rate of the newest segment, without what steers the clock."""
        return self._rate_ppt / 1e6

    def set(
        self,
        offset_ns: int | None = None,
        drift_ppm: float | None = None,
        wander_ppb: float | None = None,
        seed: int = 1,
        interval_s: float = 1.0,
    ) -> int:
        """Gives the clock a new offset, its oscillator a new rate and wander; what is None stays.

        Returns the kernel ns from which it holds.
        wander_ppb : the rate's random walk, standard deviation after one second, ppb; 0 ends it. Seeded; a new rate
        is drawn every `interval_s` seconds.
        """
        with self._lock:
            start = self._change(offset_ns, None if drift_ppm is None else round(drift_ppm * 1e6))
            if wander_ppb is not None:
                self._wander_ppb = wander_ppb
                self._wander = random.Random(seed) if wander_ppb > 0 else None  # noqa: S311 - a clock, no secret
                if self._wander is not None:
                    self._driver.add(self, interval_s)
            return start

    def step(self, delta_ns: int) -> int:
        """The clock jumps by `delta_ns` (positive = forward). Returns the kernel ns of the jump, shortly ahead."""
        with self._lock:
            return self._change(None, None, delta_ns)

    def steer(self, ppm: float) -> int:
        """The clock is made to run `ppm` faster than its oscillator, as daemons do. Returns as `set`."""
        with self._lock:
            self._steered_ppt = round(ppm * 1e6)
            return self._change(None, None)

    def pause(self, lost_ns: int) -> int:
        """The machine is paused: both clocks lose `lost_ns`. Returns as `set`."""
        with self._lock:
            return self._change(None, None, -lost_ns, -lost_ns)

    def _change(
        self, offset_ns: int | None, rate_ppt: int | None, delta_ns: int = 0, raw_delta_ns: int = 0
    ) -> int:
        now, raw_now = time.time_ns(), time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        # Before the host's first process nobody can have read the page: the change may hold at once.
        start = max(now + LEAD_NS if self._in_use else now, self._start_ns)
        offset = self.truth(start) + delta_ns if offset_ns is None else offset_ns
        rate = self._rate_ppt if rate_ppt is None else rate_ppt
        self._writer.append(start, offset, rate + self._steered_ppt)
        if rate != self._rate_ppt or raw_delta_ns:
            raw_start = max(raw_now + start - now, self._raw_start_ns)
            raw_offset = self.raw_from_kernel(raw_start) - raw_start + raw_delta_ns
            self._writer.append_raw(raw_start, raw_offset, rate)
            self._raw_start_ns = raw_start
        self._rate_ppt = rate
        self._start_ns = start
        if self._in_use and time.time_ns() > start:
            self.late += 1
        return start

    def _walk(self, elapsed_s: float) -> bool:
        """One step of the random walk; False when the wander has ended."""
        with self._lock:
            if self._wander is None:
                return False
            step_ppb = self._wander.gauss(0, self._wander_ppb) * elapsed_s**0.5
            try:
                self._change(None, self._rate_ppt + round(step_ppb * 1000))
            except (
                ValueError
            ):  # the page is full, after 18 hours at a step a second: the clock keeps its last rate
                self._wander = None
                return False
            return True


class WanderDriver:
    """One thread that draws the next rate of every wandering clock."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._due: list[tuple[float, int, HostClock, float]] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, clock: HostClock, interval_s: float) -> None:
        """Walks `clock` every `interval_s` seconds until its wander ends."""
        with self._condition:
            self._due = [entry for entry in self._due if entry[2] is not clock]
            heapq.heapify(self._due)
            heapq.heappush(self._due, (time.monotonic() + interval_s, id(clock), clock, interval_s))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lab-clocks", daemon=True)
                self._thread.start()
            self._condition.notify()

    def close(self) -> None:
        """Ends the thread."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._closed and (not self._due or self._due[0][0] > time.monotonic()):
                    self._condition.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._closed:
                    return
                at, _, clock, interval_s = heapq.heappop(self._due)
            # Without the condition: a thread that changes a clock holds that clock's lock while it calls `add`.
            if clock._walk(interval_s):
                with self._condition:
                    if not any(entry[2] is clock for entry in self._due):
                        # After a stall the next step is one interval from now, not a burst of those missed.
                        due = max(at, time.monotonic() - interval_s) + interval_s
                        heapq.heappush(self._due, (due, id(clock), clock, interval_s))
