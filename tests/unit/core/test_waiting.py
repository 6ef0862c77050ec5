"""Waiting for an event with a limit never loses the order to stop."""

import asyncio

import pytest

from fabricpulse.core.waiting import wait_with_timeout


async def test_event_or_time() -> None:
    """True at once for a set event, True when it is set meanwhile, False when time is up."""
    event = asyncio.Event()
    assert not await wait_with_timeout(event, 0.01)
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await wait_with_timeout(event, 10)
    assert await wait_with_timeout(event, 0)


async def test_a_cancellation_that_comes_with_the_event_is_not_lost() -> None:
    """Event and cancellation in one iteration of the event loop: the task is cancelled."""
    event = asyncio.Event()

    async def loop_for_ever() -> None:
        while True:
            await wait_with_timeout(event, 10)
            event.clear()

    task = asyncio.create_task(loop_for_ever())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    event.set()
    await asyncio.sleep(0)  # the inner wait has its result, the outer task has not run yet
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=1)
    assert done
    with pytest.raises(asyncio.CancelledError):
        task.result()
