"""Which connections of a server may stay: a pure state machine over (connection, event, now).

Phases of a connection:

    HANDSHAKE ─▶ HEAD ─▶ BODY ─▶ ACTIVE ─▶ IDLE ─▶ HEAD ...

In all but ACTIVE (the request is complete, its response is pending) the server waits for the client: there the
connection may time out, or be dropped to make room for another. Clients are compared by their number of connections, so
that a client with a thousand of them only ever drops its own.

Prior art: nginx's reset of reusable connections when worker_connections run out; RFC 9110 section 15.5.9 (408).
"""

from collections.abc import Iterator
from enum import Enum
from typing import Protocol

from fabricpulse.core.web.limits import Limits


class Phase(Enum):
    """What a connection is waiting for."""

    HANDSHAKE = "handshake"
    HEAD = "head"
    BODY = "body"
    ACTIVE = "active"
    IDLE = "idle"


# The order in which connections are dropped for room: those without a request so far before those that had responses.
_DROP_ORDER = (Phase.HANDSHAKE, Phase.HEAD, Phase.BODY, Phase.IDLE)


class Closer(Protocol):
    """What the table requires of a connection."""

    def drop(self, reason: str) -> None:
        """Ends the connection now. reason : label of the metric."""

    def unsent(self) -> int:
        """Bytes of the answer that the client has not taken yet."""


class Entry:
    """One connection in the table.

    since : when its phase began. received : bytes of the request so far. pipelined : bytes received while it is
    processed.
    """

    __slots__ = ("client", "closer", "phase", "pipelined", "received", "since")

    def __init__(self, client: str, closer: Closer, now: float) -> None:
        self.client = client
        self.closer = closer
        self.phase = Phase.HANDSHAKE
        self.since = now
        self.received = 0
        self.pipelined = 0


# In the order of their `since`, oldest first: a dict keeps the order of insertion.
_Queue = dict[Entry, None]


class ConnectionTable:
    """All connections of one server. `now` is monotonic seconds. `buffered`: bytes of requests in work."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.buffered = 0
        self._phases: dict[Phase, _Queue] = {phase: {} for phase in Phase}
        self._clients: dict[str, dict[Phase, _Queue]] = {}
        self._sizes: dict[str, int] = {}
        self._stalled: dict[Entry, tuple[float, int]] = {}

    def __len__(self) -> int:
        return sum(self._sizes.values())

    def count(self, phase: Phase) -> int:
        """Connections in a phase."""
        return len(self._phases[phase])

    def admit(self, client: str, closer: Closer, now: float) -> Entry | None:
        """Takes a new connection, if need be in place of another; None when there is no room for it."""
        limits = self.limits
        if self._sizes.get(client, 0) >= limits.per_client and not self._drop_of(client, "client_limit"):
            return None
        if len(self) >= limits.connections and not self.make_room():
            return None
        entry = Entry(client, closer, now)
        self._sizes[client] = self._sizes.get(client, 0) + 1
        self._clients.setdefault(client, {phase: {} for phase in Phase})
        self._insert(entry)
        return entry

    def make_room(self, reason: str = "server_limit") -> bool:
        """Drops one connection of the largest client that has one to drop; False when none is waiting."""
        largest = max(self._sizes, key=self._sizes.__getitem__, default=None)
        if largest is not None and self._drop_of(largest, reason):
            return True
        by_size = sorted(self._sizes, key=self._sizes.__getitem__, reverse=True)
        return any(self._drop_of(client, reason) for client in by_size)

    def remove(self, entry: Entry) -> None:
        """The connection is gone. Does nothing for one that is no longer in the table."""
        queue = self._phases[entry.phase]
        if entry not in queue:
            return
        self._stalled.pop(entry, None)
        self.buffered -= entry.received
        del queue[entry], self._clients[entry.client][entry.phase][entry]
        self._sizes[entry.client] -= 1
        if not self._sizes[entry.client]:
            del self._sizes[entry.client], self._clients[entry.client]

    def enter(self, entry: Entry, phase: Phase, now: float) -> None:
        """The connection has come to another phase."""
        if entry not in self._phases[entry.phase]:
            return
        del self._phases[entry.phase][entry], self._clients[entry.client][entry.phase][entry]
        if phase is Phase.IDLE:
            self.buffered -= entry.received
            entry.received = entry.pipelined = 0
        entry.phase, entry.since = phase, now
        self._insert(entry)

    def receive(self, entry: Entry, size: int, now: float) -> None:
        """The client has sent `size` bytes."""
        limits = self.limits
        if entry not in self._phases[entry.phase]:
            return
        if entry.phase is Phase.IDLE:
            self.enter(entry, Phase.HEAD, now)
        entry.received += size
        self.buffered += size
        if entry.phase is Phase.ACTIVE:
            entry.pipelined += size
        in_heads = entry.received if entry.phase is Phase.HEAD else entry.pipelined
        if in_heads > limits.head_bytes:
            # A head of that size, or pipelined requests while one is processed.
            self._drop(entry, "head_too_large")
        elif self.buffered > limits.buffered_bytes:
            self._drop_largest_request(0)
        elif self.buffered > limits.buffered_bytes - limits.buffered_bytes // 8:
            self._drop_largest_request(limits.small_bytes)

    def stall(self, entry: Entry, now: float) -> None:
        """The client does not take its answer as fast as it is written."""
        if entry not in self._phases[entry.phase]:
            return
        self._stalled[entry] = (now, entry.closer.unsent())
        self._bound_unsent()

    def flow(self, entry: Entry) -> None:
        """The client has caught up."""
        self._stalled.pop(entry, None)

    def sweep(self, now: float, late_s: float = 0.0) -> None:
        """Drops connections past their limit. late_s : how long this process itself did not run; it does not count."""
        limits = self.limits
        if late_s > 0:
            for queue in self._phases.values():
                for entry in queue:
                    entry.since += late_s
        allowed = {
            Phase.HANDSHAKE: limits.handshake_s,
            Phase.HEAD: limits.head_s,
            Phase.IDLE: limits.idle_s,
        }
        for phase, seconds in allowed.items():
            for entry in _overdue(self._phases[phase], now - seconds):
                self._drop(entry, f"{phase.value}_timeout")
        bodies = self._phases[Phase.BODY]
        slow = [e for e in bodies if now - e.since > limits.body_s + e.received / limits.min_rate]
        for entry in slow:
            self._drop(entry, "body_timeout")
        for entry, (since, unsent) in list(self._stalled.items()):
            if now - since - late_s < limits.write_s:
                continue
            left = entry.closer.unsent()
            if unsent - left < limits.min_rate * limits.write_s and left:
                self._drop(entry, "write_timeout")
            else:
                self._stalled[entry] = (now, left)

    def _insert(self, entry: Entry) -> None:
        self._phases[entry.phase][entry] = None
        self._clients[entry.client][entry.phase][entry] = None

    def _drop(self, entry: Entry, reason: str) -> None:
        self.remove(entry)
        entry.closer.drop(reason)

    def _drop_of(self, client: str, reason: str) -> bool:
        """Drops the connection of `client` that has waited longest in the first phase that has one."""
        queues = self._clients[client]
        for phase in _DROP_ORDER:
            for entry in queues[phase]:
                self._drop(entry, reason)
                return True
        return False

    def _drop_largest_request(self, above: int) -> None:
        """Of the client with most bytes in incomplete requests that have more than `above` bytes; complete ones are
        being answered."""
        phases = (self._phases[Phase.BODY], self._phases[Phase.HEAD])
        waiting = [entry for phase in phases for entry in phase if entry.received > above]
        totals: dict[str, int] = {}
        for entry in waiting:
            totals[entry.client] = totals.get(entry.client, 0) + entry.received
        worst = max(waiting, key=lambda entry: (totals[entry.client], entry.received), default=None)
        if worst is not None:
            self._drop(worst, "buffer_limit")

    def _bound_unsent(self) -> None:
        """Drops the answer that has waited longest of the client with most of them in memory, until they are few
        enough. The only one of a client stays: it is as large as what was asked for, and has its time like others.
        """
        unsent = {entry: entry.closer.unsent() for entry in self._stalled}
        total = sum(unsent.values())
        while total > self.limits.unsent_bytes:
            totals: dict[str, int] = {}
            several: set[str] = set()
            for entry, left in unsent.items():
                if entry.client in totals:
                    several.add(entry.client)
                totals[entry.client] = totals.get(entry.client, 0) + left
            worst = max(several, key=totals.__getitem__, default=None)
            if worst is None:
                return
            oldest = next(entry for entry in unsent if entry.client == worst)
            total -= unsent.pop(oldest)
            self._drop(oldest, "unsent_limit")


def _overdue(queue: _Queue, before: float) -> Iterator[Entry]:
    """Those whose phase began before `before`; the queue is in that order."""
    overdue = []
    for entry in queue:
        if entry.since > before:
            break
        overdue.append(entry)
    yield from overdue
