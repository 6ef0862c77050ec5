"""Two receivers that start together on an empty database: both want to make the table of the lease."""

from typing import Any

import psycopg
import pytest

from fabricpulse.remediation.receiver.store.postgres_database import PostgresDatabase


class Server:
    """A connection to a server on which another session has just made the table. error : what CREATE raises."""

    closed = False

    def __init__(self, error: type[psycopg.Error]) -> None:
        self.error = error
        self.row: tuple[Any, ...] | None = None

    def execute(self, statement: str, parameters: object = None) -> "Server":
        if statement.startswith("CREATE TABLE"):
            raise self.error('type "lease" already exists')
        self.row = ("the other",) if statement.startswith("SELECT") else None
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.row


@pytest.mark.parametrize(
    "error",
    [psycopg.errors.UniqueViolation, psycopg.errors.DuplicateObject, psycopg.errors.DuplicateTable],
)
def test_the_slower_one_stands_by(error: type[psycopg.Error], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever name PostgreSQL finds taken first: it sees who holds the lease, and does not end with an error."""
    database = PostgresDatabase("postgresql:///fleet", 60)
    monkeypatch.setattr(database, "_connect", lambda *, autocommit: Server(error))
    assert database.take_lease() == "the other"
