"""Whose turn it is: one of each client after the other, so that a client with a thousand waits behind its own. Pure."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """What waits and what is under way, by client; of one client what came first is next."""

    def __init__(self, at_once: int) -> None:
        """at_once : so much of one client is under way at most."""
        self._at_once = at_once
        # The client whose turn is next comes first.
        self._waiting: dict[str, dict[T, None]] = {}
        self._under_way: dict[str, int] = {}

    def add(self, client: str, item: T) -> None:
        """One more of `client`."""
        self._waiting.setdefault(client, {})[item] = None

    def remove(self, client: str, item: T) -> None:
        """It waits no more. Does nothing for one that does not wait."""
        waiting = self._waiting.get(client)
        if waiting is not None:
            waiting.pop(item, None)
            if not waiting:
                del self._waiting[client]

    def take(self) -> T | None:
        """The next one, which is under way now; None when there is none."""
        may_go = (c for c in self._waiting if self._under_way.get(c, 0) < self._at_once)
        client = next(may_go, None)
        if client is None:
            return None
        waiting = self._waiting.pop(client)
        item = next(iter(waiting))
        del waiting[item]
        if waiting:
            self._waiting[client] = waiting  # behind the others
        self._under_way[client] = self._under_way.get(client, 0) + 1
        return item

    def done(self, client: str) -> None:
        """What was taken is under way no more."""
        self._under_way[client] -= 1
        if not self._under_way[client]:
            del self._under_way[client]
