"""What the store needs of a database, in the SQL that SQLite and PostgreSQL share.

Statements take `?` for parameters; `BLOB`, `REAL` and `SERIAL` in `CREATE TABLE` stand for the names in `types`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Connection(Protocol):
    """A connection inside a transaction."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of one statement."""

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """One statement for each row."""


class Database(Protocol):
    """A database that one receiver writes."""

    name: str
    # Names of the types BLOB, REAL (8 bytes) and SERIAL (a growing primary key).
    types: dict[str, str]

    def write(self) -> AbstractContextManager[Connection]:
        """A transaction: committed and durable at the end, rolled back on an exception. Raises StoreError."""

    def read(self) -> AbstractContextManager[Connection]:
        """A consistent view, concurrent with the writer. Raises StoreError."""

    def now(self) -> float:
        """The clock of the journal's times, seconds since 1970: of the database where several receivers share one."""

    def lease_left_s(self) -> float:
        """How long this receiver may speak for the fleet; infinite where there is no other one."""

    def renew_lease(self) -> None:
        """Lengthens that. Raises StoreError when it could not."""

    def close(self) -> None:
        """Releases it, once the transaction under way has ended."""
