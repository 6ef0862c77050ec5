"""How late this machine let processes run: what a figure of the demo owes to the machine and not to the fleet.

Two sources. The kernel counts for each thread how long it was ready and waited for a CPU (the run-queue delay, second
number of /proc/PID/task/TID/schedstat). What happens to the whole machine, a hypervisor that stops it, does not show
there but in a heartbeat: a process that sleeps for HEARTBEAT_S and says how much later than that it was woken
(lab/heartbeat.py).
"""

import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Every reading of this long, before that one in COARSE_S.
KEEP_S = 300.0
COARSE_S = 1.0
_COARSE_KEPT = 3600
_THIN_EVERY_S = 10.0

# Thread -> nanoseconds that it has waited for a CPU since its start.
Waits = Mapping[int, int]


def run_queue_waits(pid: int) -> dict[int, int] | None:
    """The waits of a process's threads so far; None when it is gone or the kernel does not count them."""
    waits: dict[int, int] = {}
    # Plain calls of the kernel: the demo reads a hundred threads many times a second.
    tasks = f"/proc/{pid}/task"
    try:
        threads = [entry.name for entry in os.scandir(tasks)]
    except OSError:
        return None
    for thread in threads:
        try:
            descriptor = os.open(f"{tasks}/{thread}/schedstat", os.O_RDONLY)
            try:
                waits[int(thread)] = int(os.read(descriptor, 200).split()[1])
            finally:
                os.close(descriptor)
        except (OSError, IndexError, ValueError):
            continue  # this thread has ended meanwhile
    return waits or None


def longest_wait_s(before: Waits, after: Waits) -> float:
    """Growth of the wait of the thread that waited longest; a thread that was not there before began at 0."""
    return max((wait - before.get(thread, 0) for thread, wait in after.items()), default=0) * 1e-9


@dataclass
class _Readings:
    """In order of time; `times` and `waits` go together. The scenarios ask many times a second."""

    times: list[float] = field(default_factory=list)
    waits: list[Waits] = field(default_factory=list)
    _thinned_at: float = 0.0

    def add(self, now: float, waits: Waits) -> None:
        self.times.append(now)
        self.waits.append(waits)
        if now - self._thinned_at > _THIN_EVERY_S:
            self._thin(now)

    def _thin(self, now: float) -> None:
        self._thinned_at = now
        old = bisect_left(self.times, now - KEEP_S)
        kept: list[int] = []
        for index in range(old):
            if not kept or self.times[index] - self.times[kept[-1]] >= COARSE_S:
                kept.append(index)
        kept = kept[-_COARSE_KEPT:]
        self.times[:old] = [self.times[index] for index in kept]
        self.waits[:old] = [self.waits[index] for index in kept]

    def around(self, start: float, end: float) -> tuple[Waits, Waits]:
        """The last reading until `start` and the first from `end` on, or the nearest that there are."""
        before = max(bisect_right(self.times, start) - 1, 0)
        after = min(bisect_left(self.times, end), len(self.times) - 1)
        return self.waits[before], self.waits[after]


@dataclass
class Lateness:
    """What has been read so far. Times are monotonic seconds. A pure log: readers add, judges ask."""

    waits: dict[str, _Readings] = field(default_factory=dict)
    heartbeats: deque[tuple[float, float]] = field(default_factory=deque)

    def add_waits(self, process: str, now: float, waits: Waits) -> None:
        """The waits of `process`, such as "ring on h0", read at `now`."""
        self.waits.setdefault(process, _Readings()).add(now, waits)

    def add_heartbeat(self, now: float, late_s: float) -> None:
        """A heartbeat of `now` was `late_s` late."""
        self.heartbeats.append((now, late_s))
        while self.heartbeats[0][0] < now - KEEP_S:
            self.heartbeats.popleft()

    def of_process(self, process: str, start: float, end: float) -> float:
        """Seconds for which the worst thread of `process` waited for a CPU in a span of time; 0 if not known.

        The span is widened to the readings around it.
        """
        readings = self.waits.get(process)
        return 0.0 if readings is None else longest_wait_s(*readings.around(start, end))

    def of_path(self, processes: Iterable[str], start: float, end: float) -> float:
        """By how much the machine can have delayed, in a span of time, what passed through each of `processes` once.

        The sum of what each waited for a CPU, or the largest lateness of a heartbeat if that is more; not more than
        the span itself.
        """
        waits = sum(self.of_process(process, start, end) for process in processes)
        return min(max(self._of_heartbeats(start, end), waits), end - start)

    def worst(self, start: float, end: float) -> float:
        """The largest lateness of any one process, or of a heartbeat; not more than the span."""
        waits = max((self.of_process(process, start, end) for process in self.waits), default=0.0)
        return min(max(self._of_heartbeats(start, end), waits), end - start)

    def _of_heartbeats(self, start: float, end: float) -> float:
        return max(
            (late for at, late in self.heartbeats if start <= at - late and at <= end + late), default=0.0
        )
