"""How many bytes of input are worked on at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteGate:
    """Lets in at most `most` bytes together, in the order in which they came; what is larger is let in alone.

    What is made of a body takes several times its size for as long as it is worked on. A count of bodies would not
    bound that: they differ by five orders of magnitude.
    """

    def __init__(self, most: int) -> None:
        self.held = 0
        self._most = most
        self._next = asyncio.Lock()
        self._left = asyncio.Event()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Waits until there is room for `size` bytes, and keeps it."""
        async with self._next:
            while self.held and self.held + size > self._most:
                self._left.clear()
                await self._left.wait()
            self.held += size
        try:
            yield
        finally:
            self.held -= size
            self._left.set()
