"""The journal in a SQL database.

`transition` is append-only and hash-chained: the hash of each line covers the line before, so an edit of the past
shows. The state is kept beside it, changed rows only, in the same transaction as the lines that explain the change, and
the seal covers both, so that what was removed or changed in the state shows as well.
"""

import hashlib
import threading
import zlib
from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from fabricpulse.core.errors import UserError
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.receiver.state.model import (
    Action,
    Breaker,
    Bucket,
    Drain,
    Episode,
    Pause,
    Rebalance,
    State,
    TargetState,
)
from fabricpulse.remediation.receiver.store.database import Connection, Database
from fabricpulse.remediation.receiver.store.seal import Seal, row_hash, sum_rows, with_row
from fabricpulse.remediation.receiver.store.store import Batch, Delivery, StoreError

SCHEMA_VERSION = 2
_GENESIS = "0" * 64
# What was received, by table, with its part of the bytes that are kept.
_RECEIVED = {"delivery": 1.0, "dead_letter": 0.125}
# Of a row, besides its body.
_ROW_BYTES = 150
_PAGE = 1_000

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
    "rebalances": ("rebalance", Rebalance),
    "drains": ("drain", Drain),
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
    "notified": dict[str, int],
    "drains_blocked": dict[str, str],
    "lanes_blocked": dict[str, str],
}


def _chain(previous: str, at: float, subject: str, event: str, detail: str) -> str:
    line = msgspec.json.encode([previous, at, subject, event, detail])
    return hashlib.sha256(line).hexdigest()


class SqlStore:
    """A journal in `database`, which it closes; see `Store`."""

    def __init__(self, database: Database, keep_bytes: int = 1 << 30) -> None:
        """Creates the tables. Raises UserError when the database cannot be used or has another schema.

        keep_bytes : of raw deliveries that are kept; the oldest go first. Of dead letters an eighth of it.
        """
        self._database = database
        self._most_bytes = {table: int(part * keep_bytes) for table, part in _RECEIVED.items()}
        self.kept_bytes = dict.fromkeys(_RECEIVED, 0)
        self.dropped = dict.fromkeys(_RECEIVED, 0)
        self._seal = Seal(0, _GENESIS, 0)
        self._rows: dict[tuple[str, str], int] = {}
        self._committing = threading.Lock()
        self.seal_at_start = self._seal
        self.edited = ""
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
                # Sealed from the beginning: a journal without a seal is one that somebody took it from.
                connection.executemany(
                    "INSERT INTO meta (key, value) VALUES (?, ?)",
                    [("schema", str(SCHEMA_VERSION)), ("seal", self._seal.digest)],
                )
            elif found["schema"] != str(SCHEMA_VERSION):
                raise UserError(
                    f"the journal {self._database.name} has schema {found['schema']}, this fabricpulse reads "
                    f"{SCHEMA_VERSION}; use the version that wrote it or move it away"
                )
            self.kept_bytes = {table: _bytes_in(connection, table) for table in _RECEIVED}

    def load(self) -> State:
        """See Store.load. Raises StoreError when a row is not what this version wrote."""
        values: dict[str, Any] = {}
        try:
            with self._database.read() as connection:
                rows = list(_state_rows(connection))
                meta = dict(connection.execute("SELECT key, value FROM meta"))
                last = list(connection.execute("SELECT id, hash FROM transition ORDER BY id DESC LIMIT 1"))
            documents: dict[str, dict[str, str]] = {table: {} for table, _ in _COLLECTIONS.values()}
            for table, key, document in rows:
                if table != "meta":
                    documents[table][key] = document
            for field, (table, kind) in _COLLECTIONS.items():
                values[field] = {
                    key: msgspec.json.decode(document, type=kind)
                    for key, document in documents[table].items()
                }
            for field, kind in _FIELDS.items():
                if field in meta:
                    values[field] = msgspec.json.decode(meta[field], type=kind)
        except msgspec.DecodeError as error:
            # Malformed is not empty: a journal that cannot be decoded must not look like one with nothing in it.
            raise StoreError(
                f"the journal {self._database.name} has a row that cannot be read: {error}; restore a backup"
            ) from error
        self._rows = {(table, key): row_hash(table, key, document) for table, key, document in rows}
        length, head = (int(last[0][0]), str(last[0][1])) if last else (0, _GENESIS)
        self._seal = self.seal_at_start = Seal(length, head, sum_rows(rows))
        if meta.get("seal") != self._seal.digest:
            self.edited = "lines or state are not those of the last commit"
        return State(**values)

    def commit(self, batch: Batch) -> None:
        """See Store.commit."""
        number, digest, total = self._seal.length, self._seal.head, self._seal.state
        lines = []
        for entry in batch.transaction.transitions:
            detail = msgspec.json.encode(entry.detail, order="sorted").decode()
            digest = _chain(digest, batch.at, entry.subject, entry.event, detail)
            number += 1
            lines.append((number, batch.at, entry.subject, entry.event, detail, digest))
        rows = list(_changed_rows(batch))
        hashes = {(table, key): row_hash(table, key, d) if d is not None else 0 for table, key, d in rows}
        for row, added in hashes.items():
            total = with_row(total, self._rows.get(row, 0), added)
        seal = Seal(number, digest, total)
        failpoints.reach("receiver.before_commit")
        with self._committing:
            with self._database.write() as connection:
                kept, dropped = self._insert(connection, batch)
                connection.executemany(
                    "INSERT INTO transition (id, at, subject, event, detail, hash) VALUES (?, ?, ?, ?, ?, ?)",
                    lines,
                )
                _save(
                    connection,
                    [*rows, ("meta", "seal", seal.digest), ("meta", "committed_at", repr(batch.at))],
                )
                failpoints.reach("receiver.in_commit")
            self._seal = seal
            self.kept_bytes = kept
            for table, count in dropped.items():
                self.dropped[table] += count
        failpoints.reach("receiver.after_commit")
        for row, added in hashes.items():
            if added:
                self._rows[row] = added
            else:
                self._rows.pop(row, None)

    def _insert(self, connection: Connection, batch: Batch) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the bytes that are kept then, and how many rows made room."""
        connection.executemany(
            "INSERT INTO delivery (received_at, sha256, deflated, body) VALUES (?, ?, ?, ?)",
            [(d.received_at, d.sha256, int(d.deflated), d.body) for d in batch.deliveries],
        )
        connection.executemany(
            "INSERT INTO dead_letter (received_at, reason, body) VALUES (?, ?, ?)",
            [(batch.at, d.reason, d.body) for d in batch.dead_letters],
        )
        kept, dropped = dict(self.kept_bytes), dict.fromkeys(_RECEIVED, 0)
        for table, rows in (("delivery", batch.deliveries), ("dead_letter", batch.dead_letters)):
            kept[table] += sum(len(row.body) + _ROW_BYTES for row in rows)
            while kept[table] > self._most_bytes[table]:
                oldest = connection.execute(
                    f"SELECT id, length(body) FROM {table} ORDER BY id LIMIT ?",  # noqa: S608
                    (_PAGE,),
                )
                last = 0
                for number, size in oldest:
                    last = number
                    dropped[table] += 1
                    kept[table] -= size + _ROW_BYTES
                    if kept[table] <= self._most_bytes[table]:
                        break
                if not last:
                    kept[table] = 0  # the table is empty
                connection.execute(f"DELETE FROM {table} WHERE id <= ?", (last,))  # noqa: S608
        return kept, dropped

    def last_commit_at(self) -> float:
        """See Store.last_commit_at."""
        with self._database.read() as connection:
            ((newest,),) = connection.execute("SELECT max(at) FROM transition")
        return float(newest or 0.0)

    def transitions(self, after: int, limit: int) -> list[dict[str, Any]]:
        """See Store.transitions."""
        return self._lines("WHERE id > ? ORDER BY id LIMIT ?", (after, limit))

    def lines_of(self, subject: str, limit: int) -> list[dict[str, Any]]:
        """See Store.lines_of."""
        return self._lines("WHERE subject = ? ORDER BY id DESC LIMIT ?", (subject, limit))[::-1]

    def _lines(self, which: str, parameters: tuple[Any, ...]) -> list[dict[str, Any]]:
        columns = ("id", "at", "subject", "event", "detail", "hash")
        query = f"SELECT {', '.join(columns)} FROM transition {which}"  # noqa: S608 - constants of this file
        with self._database.read() as connection:
            rows = [dict(zip(columns, row, strict=True)) for row in connection.execute(query, parameters)]
        return [{**row, "detail": msgspec.json.decode(row["detail"])} for row in rows]

    def deliveries(self, after: int, limit: int) -> Generator[tuple[int, Delivery], None, None]:
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

    def seal(self) -> Seal:
        """See Store.seal."""
        return self._seal

    def verify(self) -> int:
        """See Store.verify."""
        name = self._database.name
        head, count = _GENESIS, 0
        query = "SELECT id, at, subject, event, detail, hash FROM transition ORDER BY id"
        with self._database.read() as connection:
            with self._committing:
                # The first statement fixes what this connection sees.
                written = dict(connection.execute("SELECT key, value FROM meta WHERE key = 'seal'"))
                seal = self._seal
            for number, at, subject, event, detail, digest in connection.execute(query):
                head = _chain(head, at, subject, event, detail)
                count += 1
                if head != digest or number != count:
                    raise StoreError(
                        f"journal {name}: line {number} does not follow from the lines before it"
                    )
            if (count, head) != (seal.length, seal.head):
                raise StoreError(f"journal {name}: {count} lines, {seal.length} were written")
            if sum_rows(_state_rows(connection)) != seal.state:
                raise StoreError(f"journal {name}: the state was changed by another program")
        if written.get("seal") != seal.digest:
            raise StoreError(f"journal {name}: the seal was changed by another program")
        if self.edited:
            raise StoreError(f"journal {name}: found at the start: {self.edited}")
        return count

    def prune(self, before: float) -> None:
        """See Store.prune."""
        with self._database.write() as connection:
            for table in _RECEIVED:
                connection.execute(f"DELETE FROM {table} WHERE received_at < ?", (before,))  # noqa: S608
            kept = {table: _bytes_in(connection, table) for table in _RECEIVED}
        self.kept_bytes = kept

    def close(self) -> None:
        """See Store.close."""
        self._database.close()


def _bytes_in(connection: Connection, table: str) -> int:
    query = f"SELECT count(*), coalesce(sum(length(body)), 0) FROM {table}"  # noqa: S608 - a constant of this file
    ((count, size),) = connection.execute(query)
    return int(size) + int(count) * _ROW_BYTES


def _state_rows(connection: Connection) -> Iterator[tuple[str, str, str]]:
    """All rows that are the state: (table, key, document)."""
    # Table names are constants of this file, never input.
    for table, _ in _COLLECTIONS.values():
        for key, document in connection.execute(f"SELECT key, document FROM {table}"):  # noqa: S608
            yield table, key, document
    for key, value in connection.execute("SELECT key, value FROM meta"):
        if key in _FIELDS:
            yield "meta", key, value


def _changed_rows(batch: Batch) -> Iterator[tuple[str, str, str | None]]:
    """Rows that a commit changes; None for one that goes."""
    transaction = batch.transaction
    for field, (table, _) in _COLLECTIONS.items():
        put, removed = transaction.changed(field)
        entries = getattr(transaction, field)
        for key in {*put, *removed, *batch.unsaved.entries.get(field, ())}:
            value = entries.get(key)
            yield table, key, msgspec.json.encode(value).decode() if value is not None else None
    for field in _FIELDS:
        if field in transaction.fields or field in batch.unsaved.fields:
            yield "meta", field, msgspec.json.encode(getattr(transaction, field)).decode()


def _save(connection: Connection, rows: list[tuple[str, str, str | None]]) -> None:
    for table in {table for table, _, _ in rows}:
        column = "value" if table == "meta" else "document"
        connection.executemany(
            f"DELETE FROM {table} WHERE key = ?",  # noqa: S608
            [(key,) for name, key, document in rows if name == table and document is None],
        )
        connection.executemany(
            f"INSERT INTO {table} (key, {column}) VALUES (?, ?)"  # noqa: S608
            f" ON CONFLICT (key) DO UPDATE SET {column} = excluded.{column}",
            [(key, document) for name, key, document in rows if name == table and document is not None],
        )
