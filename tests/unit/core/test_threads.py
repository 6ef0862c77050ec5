"""The worker threads of a daemon: results, errors, reuse, an end that waits for nobody for long."""

import asyncio
import threading
import time

import pytest

from fabricpulse.core.threads import EXIT_WAIT_S, DaemonThreads


def test_results_errors_and_reuse() -> None:
    """Results and errors come back; one thread does one call after another, and all of them are daemonic."""
    pool = DaemonThreads()
    seen = set()
    for number in range(20):
        thread = pool.submit(threading.current_thread).result(60)
        seen.add(thread)
        assert thread.daemon
        assert pool.submit(divmod, number, 7).result(60) == divmod(number, 7)
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(60)
    assert len(seen) <= 3  # a call may come before the thread of the last one waits again
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(int)


def test_calls_run_beside_each_other_up_to_the_limit() -> None:
    """As many at a time as there may be threads; the next one waits for a free one."""
    pool, barrier, leave = DaemonThreads(3), threading.Barrier(4), threading.Event()

    def work() -> None:
        barrier.wait(60)
        leave.wait(60)

    running = [pool.submit(work) for _ in range(3)]
    barrier.wait(60)
    late = pool.submit(int, "7")
    assert not late.done()
    leave.set()
    assert late.result(60) == 7
    assert [future.result(60) for future in running] == [None] * 3
    pool.shutdown()


def hold(began: threading.Event, leave: threading.Event) -> bool:
    began.set()
    return leave.wait(60)


def test_queued_work_is_done_or_cancelled() -> None:
    """What is queued when the pool ends is done, or cancelled if that is wished."""
    for cancel in (False, True):
        pool, began, leave = DaemonThreads(1), threading.Event(), threading.Event()
        first = pool.submit(hold, began, leave)
        began.wait(60)
        queued = pool.submit(int, "7")
        pool.shutdown(wait=False, cancel_futures=cancel)
        leave.set()
        assert first.result(60) is True
        if cancel:
            assert queued.cancelled()
        else:
            assert queued.result(60) == 7


def test_shutdown_does_not_wait_for_threads_that_hang() -> None:
    """asyncio closes its loop after EXIT_WAIT_S though a thread hangs."""
    leave, hangs = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        leave.wait()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(DaemonThreads())
        hung = loop.run_in_executor(None, hang)
        # One that has not begun yet would be cancelled, and is not waited for.
        assert await loop.run_in_executor(None, hangs.wait, 60)
        hung.cancel()

    began = time.monotonic()
    asyncio.run(main())
    took = time.monotonic() - began
    leave.set()

    assert EXIT_WAIT_S <= took < 60, "it hangs until the interpreter ends it"
