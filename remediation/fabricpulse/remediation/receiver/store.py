"""Where the receiver keeps what must survive it: the Store protocol, and what goes through it."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from fabricpulse.remediation.receiver.model import State
from fabricpulse.remediation.receiver.payload import DeadLetter
from fabricpulse.remediation.receiver.reconciler import Transition


class StoreError(Exception):
    """The journal cannot take it now (disk full, file gone): the sender must try again later."""


@dataclass
class Batch:
    """One commit: all of it or nothing. deliveries : (received_at, sha256, body). state : the state afterwards."""

    state: State
    at: float
    deliveries: list[tuple[float, str, bytes]] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)


class Store(Protocol):
    """A journal. The methods block; the receiver calls them off its event loop, `commit` from one thread only."""

    def load(self) -> State:
        """The state of the last commit, or an empty one."""

    def commit(self, batch: Batch) -> None:
        """Makes `batch` durable before it returns. Raises StoreError, and then nothing of it is kept."""

    def transitions(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Lines of the journal with an id above `after`, oldest first."""

    def verify(self) -> int:
        """Checks the hash chain of the journal; returns its length. Raises StoreError at the first broken link."""

    def prune(self, before: float) -> None:
        """Drops raw deliveries and dead letters that were received before; transitions stay."""

    def close(self) -> None:
        """Releases the file."""
