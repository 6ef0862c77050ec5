"""Isolates collectors: a target that raises or hangs does not affect the others.

A read of a NIC whose firmware has died can hang for a minute in the kernel, where no signal reaches it. So targets are
collected on a worker thread that the caller watches: when one target takes longer than `read_timeout_s`, the thread is
left to itself, a new one goes on with the next target, and the stuck target is not tried again before its thread is
back. A dead NIC hangs in several collectors, and NICs die by the switch: each target that hangs halves what the next
one may take in the same run, so that all of them together stay within the 10 s that Prometheus waits.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from fabricpulse.core.log import get_logger
from fabricpulse.nic.collectors.base import Context, Sink

log = get_logger(__name__)

# The least that a target may take, as a part of read_timeout_s: more than any read of a device that answers.
LEAST_PATIENCE = 1 / 20


class Target(Protocol):
    """What the runner needs of a collector."""

    @property
    def name(self) -> str: ...

    def collect(self, target: str, context: Context) -> None: ...


Task = tuple[Target, str]


@dataclass
class Outcome:
    """What a run has given. duration_s, success : by collector."""

    sinks: list[Sink] = field(default_factory=list)
    duration_s: dict[str, float] = field(default_factory=dict)
    success: dict[str, bool] = field(default_factory=dict)
    failed_targets: list[tuple[str, str]] = field(default_factory=list)


Plan = Callable[[], Sequence[Task]]


class _Job:
    """A list of tasks on its way: worked at by the worker, given up by the watcher.

    plan : makes the tasks that follow the first one, on the worker. stuck : tasks that are not to be tried.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        context: Context,
        plan: Plan | None,
        stuck: frozenset[tuple[str, str]],
        wake: Callable[[], None],
    ) -> None:
        self.tasks = list(tasks)
        self.context = context
        self.plan = plan
        self.began = time.monotonic()
        self.done = threading.Event()
        self.durations: list[tuple[str, float]] = []
        self.failures: list[tuple[Task, str]] = []
        self._stuck = stuck
        self._wake = wake
        self._position = 0
        self._abandoned = False
        # Between going on to the next task and giving up this one: with both, the next would be collected twice.
        self._handover = threading.Lock()

    def run(self) -> None:
        while True:
            task = self.tasks[self._position]
            failure = self._collect(*task)
            seconds = time.monotonic() - self.began
            more = self.plan() if self.plan is not None else ()
            if not self._go_on(task, failure, seconds, more):
                return

    def _collect(self, collector: Target, target: str) -> tuple[str, str] | None:
        """What went wrong, and the reason to count, empty if it is counted; None if all is well."""
        if (collector.name, target) in self._stuck:
            return "does not answer", "hung"
        before = self.context.errors.now.total()
        found_before = len(self.context.errors.found)
        try:
            collector.collect(target, self.context)
        except Exception as error:  # one target must not cost another, whatever its driver does
            return f"{type(error).__name__}: {error}", "error"
        count = self.context.errors.now.total() - before
        return (_described(self.context.errors.found[found_before:], count), "") if count else None

    def _go_on(
        self, task: Task, failure: tuple[str, str] | None, seconds: float, more: Sequence[Task]
    ) -> bool:
        """Takes the result of a task in; returns whether there is a next one. The result of one given up is dropped."""
        with self._handover:
            if self._abandoned:
                return False
            collector, target = task
            if failure is not None:
                message, reason = failure
                self.failures.append((task, message))
                if reason:
                    self.context.errors.add(target, collector.name, reason)
            if (collector.name, target) not in self._stuck:
                self.durations.append((collector.name, seconds))
            self.plan = None
            self.tasks.extend(more)
            self._position += 1
            self.began = time.monotonic()
            if self._position < len(self.tasks):
                return True
            self.done.set()
        self._wake()
        return False

    def give_up(self, read_timeout_s: float) -> int | None:
        """Ends the job if its task has taken `read_timeout_s`; returns that task's position, None if it has gone on."""
        with self._handover:
            if self.done.is_set() or time.monotonic() - self.began < read_timeout_s:
                return None
            self._abandoned = True
            return self._position


def _described(found: Sequence[tuple[str, str, str]], count: int) -> str:
    """What could not be read, for the log: the first file with its reason, and how many others."""
    if not found:
        return f"{count} files"
    _, path, reason = found[0]
    return f"{path}: {reason}" + (f", and {count - 1} more" if count > 1 else "")


class _Worker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="nic-collect", daemon=True)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.idle = threading.Event()
        self.start()

    def run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            self.idle.set()

    def submit(self, work: Callable[[], None]) -> None:
        self.idle.clear()
        self._work.put(work)

    def end(self) -> None:
        self._work.put(None)


class Runner:
    """read_timeout_s : how long one target may take; less after others have hung in the same run. One run at a time."""

    def __init__(self, read_timeout_s: float = 2.0) -> None:
        self._read_timeout_s = read_timeout_s
        self._worker = _Worker()
        self._stuck: dict[tuple[str, str], _Worker] = {}
        self._logged_failing: dict[tuple[str, str], str] = {}

    def run(self, tasks: Sequence[Task], context: Context, plan: Plan | None = None) -> Outcome:
        """Runs the tasks, then those that `plan` makes after the first; blocks until each is done or given up."""
        drive = self._drive(tasks, context, plan, lambda: None)
        try:
            while True:
                job, left_s = next(drive)
                job.done.wait(left_s)
        except StopIteration as end:
            return cast(Outcome, end.value)

    async def run_async(self, tasks: Sequence[Task], context: Context, plan: Plan | None = None) -> Outcome:
        """As `run`, on an event loop, which stays free meanwhile."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            # The loop may be closed by the time a job of a cancelled scrape ends.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(woken.set)

        drive = self._drive(tasks, context, plan, wake)
        try:
            while True:
                _, left_s = next(drive)
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await woken.wait()
                woken.clear()
        except StopIteration as end:
            return cast(Outcome, end.value)

    def _drive(
        self, tasks: Sequence[Task], context: Context, plan: Plan | None, wake: Callable[[], None]
    ) -> Generator[tuple[_Job, float], None, Outcome]:
        """Yields a job and for how long at most to wait until it wakes."""
        outcome = Outcome(sinks=[context.sink])
        read_timeout_s = self._read_timeout_s
        self._take_back()
        left = list(tasks)
        while left:
            job = _Job(left, context, plan, frozenset(self._stuck), wake)
            self._worker.submit(job.run)
            left = []
            while not job.done.is_set():
                left_s = job.began + read_timeout_s - time.monotonic()
                if left_s > 0:
                    yield job, left_s
                    continue
                position = job.give_up(read_timeout_s)
                if position is None:
                    continue
                left = self._give_up(job, position, outcome, read_timeout_s)
                read_timeout_s = max(read_timeout_s / 2, self._read_timeout_s * LEAST_PATIENCE)
                if job.plan is not None:
                    left = [*left, *job.plan()]
                context = replace(context, sink=Sink())
                outcome.sinks.append(context.sink)
                break
            plan = None
            self._account(job, outcome)
        return outcome

    def _take_back(self) -> None:
        for key, worker in list(self._stuck.items()):
            if worker.idle.is_set():
                worker.end()
                del self._stuck[key]
                log.info("device answers again", collector=key[0], target=key[1])

    def _give_up(self, job: _Job, position: int, outcome: Outcome, waited_s: float) -> list[Task]:
        collector, target = job.tasks[position]
        log.error("device does not answer, going on without it", collector=collector.name, target=target)
        self._stuck[(collector.name, target)] = self._worker
        self._worker = _Worker()
        outcome.success[collector.name] = False
        outcome.duration_s[collector.name] = outcome.duration_s.get(collector.name, 0.0) + waited_s
        outcome.failed_targets.append((collector.name, target))
        job.context.errors.add(target, collector.name, "hung")
        return job.tasks[position + 1 :]

    def _account(self, job: _Job, outcome: Outcome) -> None:
        for collector, _ in job.tasks:
            outcome.success.setdefault(collector.name, True)
        for name, seconds in job.durations:
            outcome.duration_s[name] = outcome.duration_s.get(name, 0.0) + seconds
        failing: dict[tuple[str, str], str] = {}
        for (collector, target), message in job.failures:
            outcome.success[collector.name] = False
            outcome.failed_targets.append((collector.name, target))
            failing[(collector.name, target)] = message
        self._log_transition(failing, job.tasks)

    def _log_transition(self, failing: dict[tuple[str, str], str], tasks: Iterable[Task]) -> None:
        """Logs a target when it begins to fail and when it has recovered, not on each scrape between."""
        for collector, target in tasks:
            key = (collector.name, target)
            message = failing.get(key)
            if message is None:
                if self._logged_failing.pop(key, None) is not None:
                    log.info("device is readable again", collector=key[0], target=key[1])
            elif self._logged_failing.get(key) != message:
                self._logged_failing[key] = message
                log.warning("device cannot be read in full", collector=key[0], target=key[1], error=message)

    def close(self, clean_up: Callable[[], None] = lambda: None) -> None:
        """Runs `clean_up` after what the worker is at, and ends it. A target that hangs is not waited for."""
        cleaned = threading.Event()

        def last() -> None:
            clean_up()
            cleaned.set()

        self._worker.submit(last)
        self._worker.end()
        cleaned.wait(self._read_timeout_s)
