"""The tasks of a daemon under supervision: one that ends or raises unasked fails the daemon.

    async with supervised(life) as tasks:
        tasks.start("solver", self._solve_forever())
        life.ready()
        await life.stopped()

A background task that ends unnoticed leaves a daemon that reports ready and does nothing. Here its end makes the daemon
not ready at once, is logged with its traceback, cancels the body and the other tasks, and leaves the block as
TaskFailedError: exit code 1, so that systemd restarts the daemon.

Structured concurrency as in asyncio.TaskGroup, which this is made of; what it adds is that a task of a daemon must not
even return, and that the end of the body cancels the tasks instead of waiting for them.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger

log = get_logger(__name__)


class TaskFailedError(UserError):
    """A task that a daemon cannot do without has ended; the log has the traceback."""

    exit_code = 1


class SupervisedTasks:
    """The tasks of one `supervised` block."""

    def __init__(self, life: Lifetime, group: asyncio.TaskGroup) -> None:
        self._life = life
        self._group = group
        self._running: set[asyncio.Task[None]] = set()
        self._stopping = False

    def start(
        self, name: str, work: Coroutine[Any, Any, None], *, may_end: bool = False
    ) -> asyncio.Task[None]:
        """Starts a task. name : in the log. may_end : it may return, or be cancelled by its owner; it must not raise.

        Raises RuntimeError once the block is left.
        """
        if self._stopping:
            work.close()
            raise RuntimeError(f"task {name} cannot be started: the daemon is stopping")
        task = self._group.create_task(self._watch(name, work, may_end), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _watch(self, name: str, work: Coroutine[Any, Any, None], may_end: bool) -> None:
        try:
            await work
        except asyncio.CancelledError:
            if self._stopping or may_end:
                raise
            self._fail(name, "was cancelled")
        except Exception as error:
            self._fail(name, f"failed: {type(error).__name__}: {error}", error)
        if not may_end:
            self._fail(name, "ended by itself")

    def _fail(self, name: str, what: str, error: Exception | None = None) -> None:
        """Raises TaskFailedError."""
        message = f"task {name} of this daemon {what}"
        self._life.fail(message)
        if error is None:
            log.error("a task of this daemon has ended", task=name, reason=what)
        else:
            log.exception("a task of this daemon has failed", task=name)
        self._stopping = True
        raise TaskFailedError(message) from error

    def _stop(self) -> None:
        self._stopping = True
        for task in self._running:
            task.cancel()


@asynccontextmanager
async def supervised(life: Lifetime) -> AsyncIterator[SupervisedTasks]:
    """A block whose tasks live as long as its body, and whose body lives as long as its tasks.

    Leaving it cancels the tasks and waits until they have ended. Raises TaskFailedError when one of them ended or
    raised before; what the body raises passes unchanged.
    """
    first: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = SupervisedTasks(life, group)
            try:
                yield tasks
            finally:
                tasks._stop()
    except BaseExceptionGroup as failures:
        # The others follow from the first; the log has each task's own.
        first = failures.exceptions[0]
    if first is not None:
        try:
            raise first  # not in the handler, whose group would become its context
        finally:
            del first
