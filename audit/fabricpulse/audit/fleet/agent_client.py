"""Requests to agents that may take minutes, without minutes of waiting for a host that is dead.

An agent answers `/-/healthy` at once whatever else it does: its tests are threads. One that does not is frozen, without
power or cut off, and what it was asked for will not come. An agent behind a proxy seems alive as long as the proxy is;
then the time limit of the request holds.
"""

import asyncio
import errno
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.client_config import HttpClientConfig

# How long after a request it is asked first whether the agent is alive, how long it has to answer that, until when it
# is asked again, and how often in succession it has to stay silent: a host is given up after some 10 s.
FIRST_S, ALIVE_S, AGAIN_S, MOST_MISSED = 2.0, 4.0, 0.5, 2
# While it is alive it is asked so seldom.
SELDOM_S = 3.0
# For so long a miss counts for the next request, too: one that ended before the second had not to wait for nothing.
REMEMBERED_S = 5.0
# How long one that had fallen silent has to say that it is back.
BACK_S = 2.0
_CHECKS_AT_ONCE = 64
T = TypeVar("T")


class DeadAgentError(Exception):
    """It does not even say that it is alive."""


class AgentClient(HttpClient):
    """A pool of connections to agents. Those by which they are asked whether they are alive are apart: one that waits
    for its turn behind requests would seem dead.
    """

    def __init__(self, config: HttpClientConfig, *, connections: int) -> None:
        super().__init__(config, connections=connections)
        self._checks = HttpClient(
            msgspec.structs.replace(config, timeout_s=ALIVE_S), connections=_CHECKS_AT_ONCE
        )
        self._turns = asyncio.Semaphore(_CHECKS_AT_ONCE)
        # Of each agent: how often in succession it was silent, and when it was asked last, seconds of the loop.
        self._missed: dict[str, tuple[int, float]] = {}

    async def close(self) -> None:
        await self._checks.close()
        await super().close()

    async def while_alive(self, url: str, request: Coroutine[Any, Any, T]) -> T:
        """What the request gives, or raises. url : of the agent, with any path. Raises DeadAgentError."""
        asked = asyncio.ensure_future(request)
        watch = asyncio.ensure_future(self._until_dead(url))
        try:
            await asyncio.wait({asked, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                watch.result()
                raise DeadAgentError
        finally:
            asked.cancel()
            watch.cancel()
            await asyncio.gather(asked, watch, return_exceptions=True)
        return asked.result()

    async def _until_dead(self, url: str) -> None:
        clock = asyncio.get_running_loop().time
        agent = _healthy(url)
        missed, at = self._missed.get(agent, (0, 0.0))
        if not missed or clock() - at > REMEMBERED_S:
            missed = 0
            await asyncio.sleep(FIRST_S)
        while missed < MOST_MISSED:
            missed = 0 if await self.is_alive(url) else missed + 1
            self._missed[agent] = missed, clock()
            await asyncio.sleep(AGAIN_S if missed else SELDOM_S)

    async def is_alive(self, url: str, within_s: float | None = None) -> bool:
        """Whether it answers, whatever that is, as far as is known. url : of the agent, with any path. within_s :
        ALIVE_S if None."""
        async with self._turns:
            try:
                async with asyncio.timeout(within_s), self._checks.get(_healthy(url), allow_redirects=False):
                    return True
            except (aiohttp.ClientError, OSError) as error:
                # That this process has no descriptor left says nothing of the agent.
                return getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)


def _healthy(url: str) -> str:
    return urlsplit(url)._replace(path="/-/healthy", query="", fragment="").geturl()
