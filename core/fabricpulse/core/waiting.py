"""Waiting for an event with a timeout, without losing a cancellation."""

import asyncio


async def wait_with_timeout(event: asyncio.Event, seconds: float | None) -> bool:
    """True once `event` is set, False after `seconds`; None waits for ever.

    Not asyncio.wait_for: before Python 3.12 it swallows a cancellation that comes in the same moment as the event, and
    the cancelled task goes on for ever.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
