"""The lifetime of a daemon: start, run until a stop signal, stop cleanly.

    async def run(life: Lifetime) -> None:
        ...
        life.ready()
        await life.stopped()

    run_daemon(run)

SIGTERM and SIGINT end it with exit code 0, SIGHUP calls the reload hooks. A daemon that is still starting is cancelled.
No thread that blocks, in the resolver say, delays the end. A second SIGTERM during shutdown does not wait for anybody.

Exit codes: 2 when it could not start for a reason that only a person can fix (UserError before `ready`: the units name
it in RestartPreventExitStatus), 1 for everything that a restart may fix.
"""

import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable

from fabricpulse.core.errors import EXHAUSTED, ConfigError, TemporaryError, UserError
from fabricpulse.core.log import get_logger
from fabricpulse.core.start import end_start
from fabricpulse.core.systemd import keep_alive, notify_systemd
from fabricpulse.core.threads import DaemonThreads

log = get_logger(__name__)

# Errors that a later attempt may not meet.
_TEMPORARY_ERRNOS = EXHAUSTED | {errno.ENOSPC, errno.EDQUOT, errno.EADDRINUSE, errno.EAGAIN}

ReloadHook = Callable[[], Awaitable[None]]


class Lifetime:
    """Signals to and from a running daemon: stop, reload, ready."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._reload_hooks: list[ReloadHook] = []
        self._reloading = asyncio.Lock()
        self._has_started = False
        self._failure = ""

    @property
    def has_started(self) -> bool:
        """True from `ready()` on."""
        return self._has_started

    @property
    def is_ready(self) -> bool:
        """True from `ready()` to the stop request or a failure; the state that `/-/ready` returns."""
        return not self.not_ready

    @property
    def not_ready(self) -> str:
        """Why the daemon is not ready, as a clause; "" if it is."""
        if self._failure:
            return self._failure
        if self._stop.is_set():
            return "it is stopping"
        return "" if self._has_started else "it is starting"

    def ready(self) -> None:
        """Declares the daemon ready, to `/-/ready` and to systemd (Type=notify)."""
        self._has_started = True
        notify_systemd("READY=1")

    def fail(self, reason: str) -> None:
        """Declares that the daemon cannot do its work any more: it is not ready from now on. The first reason stays."""
        self._failure = self._failure or reason
        notify_systemd(f"STATUS={self._failure}")

    def stop(self) -> None:
        """Requests the daemon to stop."""
        self._stop.set()

    async def stopped(self) -> None:
        """Returns once the daemon has been requested to stop."""
        await self._stop.wait()

    def on_reload(self, hook: ReloadHook) -> None:
        """Adds a hook for SIGHUP and `POST /-/reload`. A hook that fails leaves the old state in force."""
        self._reload_hooks.append(hook)

    async def reload(self) -> None:
        """Runs the reload hooks; the first failure is raised and the hooks after it are not run. Raises UserError where
        there is none: nobody is to believe that a changed file is in force.

        One reload at a time: SIGHUP and `POST /-/reload` may come together.
        """
        if self._has_started and not self._reload_hooks:
            raise UserError("this daemon reads its settings at its start only: restart it")
        async with self._reloading:
            for hook in self._reload_hooks:
                await hook()


def run_daemon(main: Callable[[Lifetime], Awaitable[None]]) -> None:
    """Runs `main` on a new event loop until it returns."""
    end_start()
    asyncio.run(_run(main))


async def _run(main: Callable[[Lifetime], Awaitable[None]]) -> None:
    life = Lifetime()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(DaemonThreads())
    reloads: set[asyncio.Task[None]] = set()
    running = asyncio.ensure_future(main(life))
    alive = asyncio.ensure_future(keep_alive())

    def terminate() -> None:
        if life._stop.is_set():
            os._exit(1)
        log.info("stopping")
        starting = not life.has_started
        life.stop()
        if starting:
            # It may be blocked, in a look-up of a name say, and does not wait for `stopped` yet.
            running.cancel()

    async def reload() -> None:
        try:
            await life.reload()
            log.info("reloaded")
        except Exception as error:
            log.error("reload failed, the old settings stay in force", error=str(error))

    def on_hangup() -> None:
        task = loop.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, terminate)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        await running
    except asyncio.CancelledError:
        if not life._stop.is_set():
            raise
    except UserError as error:
        if not life.has_started:
            error.exit_code = (UserError if _is_temporary(error) else ConfigError).exit_code
        raise
    finally:
        alive.cancel()
    notify_systemd("STOPPING=1")


def _is_temporary(error: BaseException | None) -> bool:
    """Whether the cause of a failed start may have passed when the daemon is started again."""
    while error is not None:
        if isinstance(error, TemporaryError) or (
            isinstance(error, OSError) and error.errno in _TEMPORARY_ERRNOS
        ):
            return True
        error = error.__cause__
    return False
