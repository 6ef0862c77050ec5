"""Round-robin queueing by client: a client with a thousand items delays its own, not those of others. Pure."""

from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Waiting items and those in progress, by client: round-robin over clients, FIFO within one."""

    def __init__(self, limit: int) -> None:
        """limit : items of one client that may be in progress at a time."""
        self._limit = limit
        # The next client is first.
        self._waiting: dict[str, dict[T, None]] = {}
        self._in_progress: dict[str, int] = {}

    def add(self, client: str, item: T) -> None:
        """Queues an item of `client`."""
        self._waiting.setdefault(client, {})[item] = None

    def remove(self, client: str, item: T) -> None:
        """Removes a waiting item; no effect for one that does not wait."""
        waiting = self._waiting.get(client)
        if waiting is not None:
            waiting.pop(item, None)
            if not waiting:
                del self._waiting[client]

    def take(self) -> T | None:
        """The next item, which is in progress from now on; None when there is none."""
        eligible = (c for c in self._waiting if self._in_progress.get(c, 0) < self._limit)
        client = next(eligible, None)
        if client is None:
            return None
        waiting = self._waiting.pop(client)
        item = next(iter(waiting))
        del waiting[item]
        if waiting:
            self._waiting[client] = waiting  # behind the others
        self._in_progress[client] = self._in_progress.get(client, 0) + 1
        return item

    def done(self, client: str) -> None:
        """An item of `client` that was taken is finished."""
        self._in_progress[client] -= 1
        if not self._in_progress[client]:
            del self._in_progress[client]
