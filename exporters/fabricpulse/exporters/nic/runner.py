"""Runs collectors so that a target that raises or hangs costs itself and nothing else.

A read of a NIC whose firmware has died can hang for a minute in the kernel, where no signal reaches it. So targets are
collected on a worker thread that the caller watches: when one target takes longer than `stall_s`, the thread is left
to itself, a new one goes on with the next target, and the stuck target is not tried again before its thread is back.
"""

import queue
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fabricpulse.core.log import get_logger
from fabricpulse.exporters.nic.collectors.contract import Collector, Context, Sink

log = get_logger(__name__)

Step = tuple[Collector, str]


@dataclass
class Outcome:
    """What a run has given. duration_s, success : by collector."""

    sinks: list[Sink] = field(default_factory=list)
    duration_s: dict[str, float] = field(default_factory=dict)
    success: dict[str, bool] = field(default_factory=dict)
    failed_targets: list[tuple[str, str]] = field(default_factory=list)


class _Job:
    """A list of steps on its way. The worker writes, the watcher reads; `position` only grows."""

    def __init__(self, steps: Sequence[Step], context: Context) -> None:
        self.steps = steps
        self.context = context
        self.position = 0
        self.began = time.monotonic()
        self.abandoned = False
        self.done = threading.Event()
        self.durations: list[tuple[str, float]] = []
        self.failures: list[tuple[Step, str]] = []

    def run(self) -> None:
        steps, context, faults = self.steps, self.context, self.context.faults
        for position, (collector, target) in enumerate(steps):
            self.began = time.monotonic()
            self.position = position
            before = faults.now.total()
            try:
                collector.collect(target, context)
            except Exception as error:  # one target must not cost another, whatever its driver does
                faults.add(target, collector.name, "error")
                self.failures.append(((collector, target), f"{type(error).__name__}: {error}"))
            else:
                if faults.now.total() != before:
                    self.failures.append(((collector, target), ""))
            if self.abandoned:
                return
            self.durations.append((collector.name, time.monotonic() - self.began))
        self.done.set()


class _Worker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="nic-collect", daemon=True)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.idle = threading.Event()
        self.start()

    def run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            self.idle.set()

    def submit(self, job: _Job) -> None:
        self.idle.clear()
        self._jobs.put(job)

    def end(self) -> None:
        self._jobs.put(None)


class Runner:
    """stall_s : how long one target may take. Call `run` from one thread at a time."""

    def __init__(self, stall_s: float = 2.0) -> None:
        self._stall_s = stall_s
        self._worker = _Worker()
        self._stuck: dict[tuple[str, str], _Worker] = {}
        self._told: dict[tuple[str, str], str] = {}

    def run(self, steps: Sequence[Step], context: Context) -> Outcome:
        """Runs the steps in order; blocks until each is done or given up."""
        outcome = Outcome(sinks=[context.sink])
        for collector, _ in steps:
            outcome.duration_s.setdefault(collector.name, 0.0)
            outcome.success.setdefault(collector.name, True)
        left = self._without_stuck(steps, context, outcome)
        while left:
            job = _Job(left, context)
            self._worker.submit(job)
            left = []
            while not job.done.wait(max(0.001, job.began + self._stall_s - time.monotonic())):
                position = job.position
                if time.monotonic() - job.began >= self._stall_s:
                    job.abandoned = True
                    left = self._give_up(job, position, outcome)
                    context = Context(context.now, context.inventory, context.faults)
                    outcome.sinks.append(context.sink)
                    break
            self._account(job, outcome)
        return outcome

    def _without_stuck(self, steps: Sequence[Step], context: Context, outcome: Outcome) -> list[Step]:
        for key, worker in list(self._stuck.items()):
            if worker.idle.is_set():
                worker.end()
                del self._stuck[key]
                log.info("device answers again", collector=key[0], target=key[1])
        kept = []
        for collector, target in steps:
            if (collector.name, target) in self._stuck:
                outcome.success[collector.name] = False
                outcome.failed_targets.append((collector.name, target))
                context.faults.add(target, collector.name, "hung")
            else:
                kept.append((collector, target))
        return kept

    def _give_up(self, job: _Job, position: int, outcome: Outcome) -> list[Step]:
        collector, target = job.steps[position]
        log.error("device does not answer, going on without it", collector=collector.name, target=target)
        self._stuck[(collector.name, target)] = self._worker
        self._worker = _Worker()
        outcome.success[collector.name] = False
        outcome.duration_s[collector.name] += self._stall_s
        outcome.failed_targets.append((collector.name, target))
        job.context.faults.add(target, collector.name, "hung")
        return list(job.steps[position + 1 :])

    def _account(self, job: _Job, outcome: Outcome) -> None:
        for name, seconds in job.durations:
            outcome.duration_s[name] += seconds
        failing: dict[tuple[str, str], str] = {}
        for (collector, target), message in job.failures:
            outcome.success[collector.name] = False
            outcome.failed_targets.append((collector.name, target))
            failing[(collector.name, target)] = message
        self._tell(failing, job.steps)

    def _tell(self, failing: dict[tuple[str, str], str], steps: Iterable[Step]) -> None:
        """Logs a target when it begins to fail and when it has recovered, not on each scrape between."""
        for collector, target in steps:
            key = (collector.name, target)
            message = failing.get(key)
            if message is None:
                if self._told.pop(key, None) is not None:
                    log.info("device is readable again", collector=key[0], target=key[1])
            elif self._told.get(key) != message:
                self._told[key] = message
                log.warning("device cannot be read in full", collector=key[0], target=key[1], error=message)

    def close(self) -> None:
        self._worker.end()
