"""Worker threads of a daemon that never delay its shutdown.

The standard executor joins its threads when the loop closes and again when the interpreter ends. A name server that
does not answer blocks a thread in the resolver for many seconds, and with it the exit of the daemon.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Work = tuple[Future[Any], Callable[[], Any]]

MAX_THREADS = 32
EXIT_WAIT_S = 0.5


class DaemonThreads(ThreadPoolExecutor):
    """A default executor for asyncio whose threads are daemonic: those that still run at shutdown are left behind.

    It derives from ThreadPoolExecutor because asyncio takes no other; the pool is its own. `shutdown(wait=True)` waits
    for what runs, EXIT_WAIT_S at most.
    """

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        super().__init__(max_threads)
        self._max = max_threads
        self._guard = threading.Lock()
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._pool: list[threading.Thread] = []
        self._free = 0  # idle threads minus queued work
        self._closed = False

    def submit(self, fn: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        """Runs `fn` on a thread of the pool. Raises RuntimeError after `shutdown`."""
        future: Future[_R] = Future()
        with self._guard:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._free <= 0 and len(self._pool) < self._max:
                thread = threading.Thread(target=self._run, name=f"worker-{len(self._pool)}", daemon=True)
                thread.start()
                self._pool.append(thread)
            else:
                self._free -= 1
            self._work.put((future, lambda: fn(*args, **kwargs)))
        return future

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del item, future, call  # a result must not live until the next call
            with self._guard:
                self._free += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more work; what is queued is done unless cancelled. Waits EXIT_WAIT_S at most."""
        with self._guard:
            first, self._closed = not self._closed, True
            if cancel_futures:
                while not self._work.empty():
                    item = self._work.get()
                    if item is not None:
                        item[0].cancel()
            for _ in self._pool if first else ():
                self._work.put(None)
        deadline = time.monotonic() + EXIT_WAIT_S
        for thread in self._pool if wait else ():
            thread.join(max(0.0, deadline - time.monotonic()))
