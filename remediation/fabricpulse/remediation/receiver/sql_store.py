"""The journal in a SQL database.

`transition` is append-only and hash-chained: the hash of each line covers the line before, so an edit of the past
shows. The state is kept beside it, changed rows only, in the same transaction as the lines that explain the change.
"""

import hashlib
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec

from fabricpulse.core.errors import UserError
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.receiver.database import Connection, Database
from fabricpulse.remediation.receiver.model import Action, Breaker, Bucket, Episode, Pause, State, TargetState
from fabricpulse.remediation.receiver.store import Batch, Delivery, StoreError

SCHEMA_VERSION = 2
_GENESIS = "0" * 64

_TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS delivery (id SERIAL, received_at REAL NOT NULL, sha256 TEXT NOT NULL,"
    " deflated INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS delivery_received_at ON delivery (received_at)",
    "CREATE TABLE IF NOT EXISTS dead_letter (id SERIAL, received_at REAL NOT NULL, reason TEXT NOT NULL,"
    " body BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS dead_letter_received_at ON dead_letter (received_at)",
    "CREATE TABLE IF NOT EXISTS transition (id SERIAL, at REAL NOT NULL, subject TEXT NOT NULL,"
    " event TEXT NOT NULL, detail TEXT NOT NULL, hash TEXT NOT NULL)",
)
# State.<collection> -> (table, type of a row's document). Agents are not kept: they report anew after a start.
_COLLECTIONS: dict[str, tuple[str, type]] = {
    "episodes": ("episode", Episode),
    "targets": ("target", TargetState),
    "actions": ("action", Action),
}
# State.<field> that is a row of `meta` -> its type.
_FIELDS: dict[str, Any] = {
    "epoch": int,
    "breakers": dict[str, Breaker],
    "buckets": dict[str, Bucket],
    "pause": Pause | None,
    "recent": tuple[tuple[float, str, str], ...],
    "watchdog": str,
    "resumed_at": float,
}


def _chain(previous: str, at: float, subject: str, event: str, detail: str) -> str:
    line = msgspec.json.encode([previous, at, subject, event, detail])
    return hashlib.sha256(line).hexdigest()


class SqlStore:
    """A journal in `database`, which it closes; see `Store`."""

    def __init__(self, database: Database) -> None:
        """Creates the tables. Raises UserError when the database cannot be used or has another schema."""
        self._database = database
        self._head = (0, _GENESIS)
        try:
            self._prepare()
        except StoreError as error:
            self.close()
            raise UserError(f"{error}; the journal cannot be used") from error
        except UserError:
            self.close()
            raise

    def _prepare(self) -> None:
        with self._database.write() as connection:
            tables = "; ".join(_TABLES)
            for name, dialect in self._database.types.items():
                tables = tables.replace(f" {name}", f" {dialect}")
            for statement in tables.split("; "):
                connection.execute(statement)
            for table, _ in _COLLECTIONS.values():
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {table} (key TEXT PRIMARY KEY, document TEXT NOT NULL)"
                )
            found = dict(connection.execute("SELECT key, value FROM meta WHERE key = 'schema'"))
            if not found:
                connection.execute(
                    "INSERT INTO meta (key, value) VALUES ('schema', ?)", (str(SCHEMA_VERSION),)
                )
            elif found["schema"] != str(SCHEMA_VERSION):
                raise UserError(
                    f"the journal {self._database.name} has schema {found['schema']}, this fabricpulse knows "
                    f"{SCHEMA_VERSION}; use the version that wrote it or move it away"
                )

    def load(self) -> State:
        """See Store.load. Raises StoreError when a row is not what this version wrote."""
        values: dict[str, Any] = {}
        try:
            with self._database.read() as connection:
                for field, (table, kind) in _COLLECTIONS.items():
                    rows = connection.execute(f"SELECT key, document FROM {table}")  # noqa: S608 - our name
                    values[field] = {key: msgspec.json.decode(document, type=kind) for key, document in rows}
                meta = dict(connection.execute("SELECT key, value FROM meta"))
                last = list(connection.execute("SELECT id, hash FROM transition ORDER BY id DESC LIMIT 1"))
            for field, kind in _FIELDS.items():
                if field in meta:
                    values[field] = msgspec.json.decode(meta[field], type=kind)
        except msgspec.DecodeError as error:
            # Malformed is not empty: a journal that cannot be decoded must not look like one with nothing in it.
            raise StoreError(
                f"the journal {self._database.name} has a row that cannot be read: {error}; restore a backup"
            ) from error
        self._head = (int(last[0][0]), str(last[0][1])) if last else (0, _GENESIS)
        return State(**values)

    def commit(self, batch: Batch) -> None:
        """See Store.commit."""
        number, digest = self._head
        lines = []
        for entry in batch.transaction.transitions:
            detail = msgspec.json.encode(entry.detail, order="sorted").decode()
            digest = _chain(digest, batch.at, entry.subject, entry.event, detail)
            number += 1
            lines.append((number, batch.at, entry.subject, entry.event, detail, digest))
        failpoints.reach("receiver.before_commit")
        with self._database.write() as connection:
            self._insert(connection, batch)
            connection.executemany(
                "INSERT INTO transition (id, at, subject, event, detail, hash) VALUES (?, ?, ?, ?, ?, ?)",
                lines,
            )
            self._save(connection, batch)
            failpoints.reach("receiver.in_commit")
        failpoints.reach("receiver.after_commit")
        self._head = (number, digest)

    @staticmethod
    def _insert(connection: Connection, batch: Batch) -> None:
        connection.executemany(
            "INSERT INTO delivery (received_at, sha256, deflated, body) VALUES (?, ?, ?, ?)",
            [(d.received_at, d.sha256, int(d.deflated), d.body) for d in batch.deliveries],
        )
        connection.executemany(
            "INSERT INTO dead_letter (received_at, reason, body) VALUES (?, ?, ?)",
            [(batch.at, d.reason, d.body) for d in batch.dead_letters],
        )

    @staticmethod
    def _save(connection: Connection, batch: Batch) -> None:
        # Table names are constants of this file, never input.
        for field, (table, _) in _COLLECTIONS.items():
            put, removed = batch.transaction.changed(field)
            entries = getattr(batch.transaction, field)
            for key in batch.unsaved.entries.get(field, ()):
                if key in entries:
                    put[key] = entries[key]
                elif key not in removed:
                    removed.append(key)
            connection.executemany(f"DELETE FROM {table} WHERE key = ?", [(key,) for key in removed])  # noqa: S608
            connection.executemany(
                f"INSERT INTO {table} (key, document) VALUES (?, ?)"  # noqa: S608
                " ON CONFLICT (key) DO UPDATE SET document = excluded.document",
                [(key, msgspec.json.encode(value).decode()) for key, value in put.items()],
            )
        connection.executemany(
            "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [
                (field, msgspec.json.encode(getattr(batch.transaction, field)).decode())
                for field in _FIELDS
                if field in batch.transaction.fields or field in batch.unsaved.fields
            ],
        )

    def last_commit_at(self) -> float:
        """See Store.last_commit_at."""
        with self._database.read() as connection:
            ((newest,),) = connection.execute("SELECT max(at) FROM transition")
        return float(newest or 0.0)

    def transitions(self, after: int, limit: int) -> list[dict[str, Any]]:
        """See Store.transitions."""
        columns = ("id", "at", "subject", "event", "detail", "hash")
        query = f"SELECT {', '.join(columns)} FROM transition WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608
        with self._database.read() as connection:
            rows = [dict(zip(columns, row, strict=True)) for row in connection.execute(query, (after, limit))]
        return [{**row, "detail": msgspec.json.decode(row["detail"])} for row in rows]

    def deliveries(self, after: int, limit: int) -> Iterator[tuple[int, Delivery]]:
        """See Store.deliveries."""
        query = (
            "SELECT id, received_at, sha256, deflated, body FROM delivery WHERE id > ? ORDER BY id LIMIT ?"
        )
        with self._database.read() as connection:
            for number, received_at, sha256, deflated, body in connection.execute(query, (after, limit)):
                yield (
                    number,
                    Delivery(received_at, sha256, zlib.decompress(body) if deflated else bytes(body)),
                )

    def dead_letters(self, limit: int) -> list[dict[str, Any]]:
        """See Store.dead_letters."""
        query = "SELECT id, received_at, reason, body FROM dead_letter ORDER BY id DESC LIMIT ?"
        with self._database.read() as connection:
            return [
                {
                    "id": number,
                    "received_at": received_at,
                    "reason": reason,
                    "body": bytes(body).decode("utf-8", "backslashreplace"),
                }
                for number, received_at, reason, body in connection.execute(query, (limit,))
            ]

    def head(self) -> tuple[int, str]:
        """See Store.head."""
        return self._head

    def verify(self) -> int:
        """See Store.verify."""
        head, count = _GENESIS, 0
        query = "SELECT id, at, subject, event, detail, hash FROM transition ORDER BY id"
        with self._database.read() as connection:
            for number, at, subject, event, detail, digest in connection.execute(query):
                head = _chain(head, at, subject, event, detail)
                count += 1
                if head != digest or number != count:
                    raise StoreError(
                        f"journal {self._database.name}: line {number} does not follow from the lines before it"
                    )
        return count

    def prune(self, before: float) -> None:
        """See Store.prune."""
        with self._database.write() as connection:
            for table in ("delivery", "dead_letter"):
                connection.execute(f"DELETE FROM {table} WHERE received_at < ?", (before,))  # noqa: S608

    def close(self) -> None:
        """See Store.close."""
        self._database.close()
