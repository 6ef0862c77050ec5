"""Reads how late this machine runs the fleet's processes, into `Observed.lateness`."""

import json
import time
from collections.abc import Callable, Mapping

from fabricpulse.lab import LabProcess
from fabricpulse.lab.demo.lateness import run_queue_waits
from fabricpulse.lab.demo.observed import Observed
from fabricpulse.lab.demo.watch import Watch


class RunQueueWatch(Watch):
    """The run-queue delays of some processes."""

    def __init__(self, name: str, pids: Callable[[], Mapping[str, int]], interval_s: float) -> None:
        """pids : process name -> its PID as this process sees it, asked at each reading."""
        self.name = name
        self.interval_s = interval_s
        self._pids = pids

    async def poll(self, observed: Observed) -> None:
        for process, pid in self._pids().items():
            waits = run_queue_waits(pid)
            if waits is not None:
                observed.lateness.add_waits(process, time.monotonic(), waits)


class HeartbeatWatch(Watch):
    """What a process of fabricpulse.lab.heartbeat has written to its log."""

    name = "heartbeat"
    interval_s = 0.1

    def __init__(self, process: LabProcess) -> None:
        self._process = process
        self._read = 0

    async def poll(self, observed: Observed) -> None:
        if self._process.log is None:
            return
        with self._process.log.open("rb") as log:
            log.seek(self._read)
            data = log.read()
        whole, newline, _ = data.rpartition(b"\n")
        self._read += len(whole) + len(newline)
        for line in whole.splitlines():
            beat = json.loads(line)
            observed.lateness.add_heartbeat(beat["at"], beat["late_s"])
