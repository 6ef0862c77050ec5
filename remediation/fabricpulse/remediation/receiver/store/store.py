"""The Store protocol: what must survive the receiver, and what goes through it."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from fabricpulse.remediation.receiver.payload import DeadLetter
from fabricpulse.remediation.receiver.state.model import State
from fabricpulse.remediation.receiver.state.transaction import COLLECTIONS, Transaction
from fabricpulse.remediation.receiver.store.seal import Seal


class StoreError(Exception):
    """The journal cannot be written or read now (disk full, file gone): the sender must try again later."""


@dataclass(frozen=True)
class Delivery:
    """A webhook body as received. body : deflated (zlib) when `deflated`."""

    received_at: float
    sha256: str
    body: bytes
    deflated: bool = False


@dataclass
class Unsaved:
    """Keys of entries, and fields, that changed since the last commit without a line in the journal."""

    entries: dict[str, set[str]] = field(default_factory=dict)
    fields: set[str] = field(default_factory=set)
    since: float = 0.0

    def add(self, transaction: Transaction, now: float) -> None:
        """Remembers the changes of a transaction that is applied and not committed. Agents are never saved."""
        for name in COLLECTIONS:
            put, removed = transaction.changed(name)
            if name != "agents" and (put or removed):
                self.entries.setdefault(name, set()).update(put, removed)
        self.fields |= transaction.fields.keys()
        if self and not self.since:
            self.since = now

    def __bool__(self) -> bool:
        return bool(self.entries or self.fields)


@dataclass
class Batch:
    """One commit: all of it or nothing. unsaved : what earlier transactions changed and did not commit."""

    transaction: Transaction
    at: float
    unsaved: Unsaved = field(default_factory=Unsaved)
    deliveries: list[Delivery] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)


class Store(Protocol):
    """A journal. The methods block; `commit` and `prune` are called from one thread at a time, the rest from any."""

    def load(self) -> State:
        """The state of the last commit, or an empty one."""

    def commit(self, batch: Batch) -> None:
        """Makes `batch` durable before it returns. Raises StoreError, and then nothing of it is kept."""

    def last_commit_at(self) -> float:
        """When the newest line of the journal was written, 0 for an empty one."""

    def transitions(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Lines of the journal with an id above `after`, oldest first."""

    def lines_of(self, subject: str, limit: int) -> list[dict[str, Any]]:
        """The newest lines of the journal about a subject, oldest first."""

    def deliveries(self, after: int, limit: int) -> Generator[tuple[int, Delivery], None, None]:
        """Raw deliveries with an id above `after`, oldest first, bodies inflated."""

    def dead_letters(self, limit: int) -> list[dict[str, Any]]:
        """The newest dead letters."""

    # What was found at `load`: the seal, and how the journal differs from what was committed last, "" if it does not.
    seal_at_start: Seal
    edited: str
    # Of raw deliveries and dead letters, by table: bytes that are kept, and rows so far that had to make room.
    kept_bytes: dict[str, int]
    dropped: dict[str, int]

    def seal(self) -> Seal:
        """Of the last commit; a copy kept elsewhere shows whether the journal was rewritten."""

    def verify(self) -> int:
        """Checks chains and seal; returns the number of lines.

        Raises StoreError for a line, a delivery or a dead letter that does not follow from those before it, for those
        that are missing, and for a state that is not the committed one.
        """

    def prune(self, before: float, now: float = ...) -> None:
        """Drops raw deliveries and dead letters that were received before; transitions stay. now : what is from later
        than that keeps no other one."""

    def close(self) -> None:
        """Releases the database."""
