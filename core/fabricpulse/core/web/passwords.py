"""Passwords against bcrypt hashes, such that wrong guesses of one client do not delay others.

bcrypt takes tens of milliseconds on purpose. Known results come from a cache; the others are computed on a thread,
round-robin over clients, so that a client that guesses a thousand passwords delays only itself.
"""

import asyncio
import hashlib
import hmac
import os
from collections import OrderedDict, deque

from fabricpulse.core.threads import DaemonThreads

_CACHED = 256
_PENDING_PER_CLIENT = 8
_PENDING_CLIENTS = 256
# The hash of a discarded random password, cost 10: an unknown user takes as much time as a wrong password.
_DUMMY_HASH = "$2b$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
_LONGEST = 72  # bytes that bcrypt reads; newer versions refuse more

_Check = tuple[bytes, str, str, "asyncio.Future[bool]"]


class TooManyChecksError(Exception):
    """Too many passwords are queued; this one was not checked."""


class PasswordChecker:
    """Checks passwords for one event loop. Neither passwords nor hashes are kept: the cache has keyed digests."""

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._bad: OrderedDict[bytes, None] = OrderedDict()
        self._queues: OrderedDict[str, deque[_Check]] = OrderedDict()
        self._pending: dict[bytes, asyncio.Future[bool]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._thread: DaemonThreads | None = None

    async def check(self, client: str, user: str, password: str, hashed: str | None) -> bool:
        """Whether `password` is that of `user`. client : whose queue it waits in. hashed : None for an unknown user.

        The hash is part of what is cached: a password that was changed in the file does not count any longer. Raises
        TooManyChecksError when too many of this client, or of all clients, are queued.
        """
        digest = self._digest(user, password, hashed or "")
        if digest in self._good:
            self._good.move_to_end(digest)
            return True
        if digest in self._bad:
            self._bad.move_to_end(digest)
            return False
        if len(password.encode("utf-8", "surrogateescape")) > _LONGEST:
            return False
        found = self._pending.get(digest)
        if found is None:
            found = self._enqueue(client, digest, password, hashed or _DUMMY_HASH)
        return await asyncio.shield(found) and hashed is not None

    def _enqueue(self, client: str, digest: bytes, password: str, hashed: str) -> "asyncio.Future[bool]":
        queue = self._queues.get(client)
        if queue is None:
            if len(self._queues) >= _PENDING_CLIENTS:
                raise TooManyChecksError
            queue = self._queues[client] = deque()
        if len(queue) >= _PENDING_PER_CLIENT:
            raise TooManyChecksError
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending[digest] = future
        queue.append((digest, password, hashed, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return future

    async def _work(self) -> None:
        """Ends when nothing waits; the next check starts it anew."""
        if self._thread is None:
            self._thread = DaemonThreads(1)
        loop = asyncio.get_running_loop()
        while self._queues:
            client, queue = self._queues.popitem(last=False)
            digest, password, hashed, future = queue.popleft()
            if queue:
                self._queues[client] = queue  # behind the others
            good = False
            try:
                good = await loop.run_in_executor(self._thread, _matches, password, hashed)
            finally:
                self._pending.pop(digest, None)
                if not future.done():
                    future.set_result(good)
            cache = self._good if good and hashed != _DUMMY_HASH else self._bad
            cache[digest] = None
            if len(cache) > _CACHED:
                cache.popitem(last=False)

    def _digest(self, user: str, password: str, hashed: str) -> bytes:
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (user, password, hashed):
            data = part.encode("utf-8", "surrogateescape")
            mac.update(len(data).to_bytes(4, "little") + data)
        return mac.digest()


def _matches(password: str, hashed: str) -> bool:
    import bcrypt  # 1 MB that a daemon without passwords need not have

    try:
        return bcrypt.checkpw(password.encode(), hashed.encode())
    except ValueError:  # a NUL in the password, or a hash that bcrypt does not take
        return False
