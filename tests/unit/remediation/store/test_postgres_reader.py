"""How much of a long answer of PostgreSQL is in memory at once."""

from types import SimpleNamespace
from typing import Any

from fabricpulse.remediation.receiver.store.postgres_database import _Reader


class Server:
    """A connection whose cursors say how many rows they fetch at once."""

    def cursor(self, name: str) -> Any:
        cursor = SimpleNamespace(name=name, itersize=100)
        cursor.execute = lambda *_: cursor
        return cursor


def test_a_reader_fetches_few_rows_at_once() -> None:
    """Rows have bodies: 1,000 deliveries of a large fleet were hundreds of MB in the leader."""
    cursor: Any = _Reader(Server()).execute("SELECT body FROM delivery")  # type: ignore[arg-type]
    assert cursor.name
    assert 0 < cursor.itersize <= 50
