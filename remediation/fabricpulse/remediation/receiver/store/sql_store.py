"""The journal in a SQL database.

`transition` is append-only and hash-chained: the hash of each line covers the line before, so an edit of the past
shows. The state is kept beside it, changed rows only, in the same transaction as the lines that explain the change, and
the seal covers both, so that what was removed or changed in the state shows as well. What was received has chains of
its own (`received`), whose ends are a part of what is sealed.
"""

import hashlib
import threading
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
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
from fabricpulse.remediation.receiver.store import received
from fabricpulse.remediation.receiver.store.database import Connection, Database
from fabricpulse.remediation.receiver.store.received import GENESIS, Chain, ChainError, Chains
from fabricpulse.remediation.receiver.store.seal import Seal, row_hash, sum_rows, with_row
from fabricpulse.remediation.receiver.store.store import Batch, Delivery, StoreError

SCHEMA_VERSION = 3
# Row of `meta` with the chains of what was received.
_CHAINS = "received"

_TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    *received.TABLES,
    "CREATE TABLE IF NOT EXISTS transition (id SERIAL, at REAL NOT NULL, subject TEXT NOT NULL,"
    " event TEXT NOT NULL, detail TEXT NOT NULL, hash TEXT NOT NULL)",
)
_SCHEMA_ROW = ("meta", "schema", str(SCHEMA_VERSION))
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
        self._most_bytes = {table: int(part * keep_bytes) for table, part in received.PARTS.items()}
        self.kept_bytes = dict.fromkeys(received.PARTS, 0)
        self.dropped = dict.fromkeys(received.PARTS, 0)
        self._seal = Seal(0, GENESIS, 0)
        self._rows: dict[tuple[str, str], int] = {}
        self._chains: Chains = {table: Chain() for table in received.PARTS}
        # Of a journal of an older version, before its tables were given chains.
        self._seal_before: Seal | None = None
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
                row = ("meta", _CHAINS, _document(self._chains))
                sealed = Seal(0, GENESIS, sum_rows([row]))
                _save(connection, [row, ("meta", "seal", sealed.digest), _SCHEMA_ROW])
            elif found["schema"] == "2":
                self._migrate(connection)
            elif found["schema"] != str(SCHEMA_VERSION):
                raise UserError(
                    f"the journal {self._database.name} has schema {found['schema']}, this fabricpulse reads "
                    f"{SCHEMA_VERSION}; use the version that wrote it or move it away"
                )
            self.kept_bytes = {table: received.bytes_in(connection, table) for table in received.PARTS}

    def _migrate(self, connection: Connection) -> None:
        """A journal of the version without chains. One that was edited before stays one that was edited."""
        rows = list(_state_rows(connection))
        length, head = _last_line(connection)
        before = Seal(length, head, sum_rows(rows))
        is_sealed = ("seal", before.digest) in set(connection.execute("SELECT key, value FROM meta"))
        row = ("meta", _CHAINS, _document(received.add_chains(connection)))
        sealed = [row, _SCHEMA_ROW]
        if is_sealed:
            self._seal_before = before
            sealed.append(("meta", "seal", Seal(length, head, sum_rows([*rows, row])).digest))
        _save(connection, sealed)

    def load(self) -> State:
        """See Store.load. Raises StoreError when a row is not what this version wrote."""
        values: dict[str, Any] = {}
        try:
            with self._database.read() as connection:
                rows = list(_state_rows(connection))
                meta = dict(connection.execute("SELECT key, value FROM meta"))
                length, head = _last_line(connection)
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
            if _CHAINS in meta:
                # Their names become a part of queries.
                chains = msgspec.json.decode(meta[_CHAINS], type=Chains)
                self._chains |= {table: chains[table] for table in received.PARTS if table in chains}
        except msgspec.DecodeError as error:
            # Malformed is not empty: a journal that cannot be decoded must not look like one with nothing in it.
            raise StoreError(
                f"the journal {self._database.name} has a row that cannot be read: {error}; restore a backup"
            ) from error
        self._rows = {(table, key): row_hash(table, key, document) for table, key, document in rows}
        self._seal = Seal(length, head, sum_rows(rows))
        self.seal_at_start = self._seal_before or self._seal
        if meta.get("seal") != self._seal.digest:
            self.edited = "lines or state are not those of the last commit"
        return State(**values)

    def commit(self, batch: Batch) -> None:
        """See Store.commit."""
        number, digest = self._seal.length, self._seal.head
        lines = []
        for entry in batch.transaction.transitions:
            detail = msgspec.json.encode(entry.detail, order="sorted").decode()
            digest = _chain(digest, batch.at, entry.subject, entry.event, detail)
            number += 1
            lines.append((number, batch.at, entry.subject, entry.event, detail, digest))
        rows: list[tuple[str, str, str | None]] = list(_changed_rows(batch))
        failpoints.reach("receiver.before_commit")
        with self._committing:
            with self._database.write() as connection:
                chains, kept, dropped = self._insert(connection, batch)
                if chains != self._chains:
                    rows.append(("meta", _CHAINS, _document(chains)))
                hashes = _hashes(rows)
                seal = Seal(number, digest, self._sum_with(hashes))
                connection.executemany(
                    "INSERT INTO transition (id, at, subject, event, detail, hash) VALUES (?, ?, ?, ?, ?, ?)",
                    lines,
                )
                _save(
                    connection,
                    [*rows, ("meta", "seal", seal.digest), ("meta", "committed_at", repr(batch.at))],
                )
                failpoints.reach("receiver.in_commit")
            self._sealed(seal, chains, kept)
            for table, count in dropped.items():
                self.dropped[table] += count
        failpoints.reach("receiver.after_commit")
        self._keep(hashes)

    def _sum_with(self, hashes: dict[tuple[str, str], int]) -> int:
        """The hash of the state with these rows in it; 0 for one that goes."""
        total = self._seal.state
        for row, added in hashes.items():
            total = with_row(total, self._rows.get(row, 0), added)
        return total

    def _sealed(self, seal: Seal, chains: Chains, kept: dict[str, int]) -> None:
        self._seal, self._chains, self.kept_bytes = seal, chains, kept

    def _keep(self, hashes: dict[tuple[str, str], int]) -> None:
        for row, added in hashes.items():
            if added:
                self._rows[row] = added
            else:
                self._rows.pop(row, None)

    def _insert(self, connection: Connection, batch: Batch) -> tuple[Chains, dict[str, int], dict[str, int]]:
        """Returns the chains and the bytes that are kept then, and how many rows made room."""
        chains, kept, dropped = dict(self._chains), dict(self.kept_bytes), dict.fromkeys(received.PARTS, 0)
        rows: dict[str, list[tuple[Any, ...]]] = {
            "delivery": [(d.received_at, d.sha256, int(d.deflated), d.body) for d in batch.deliveries],
            "dead_letter": [(batch.at, d.reason, d.body) for d in batch.dead_letters],
        }
        for table, new in rows.items():
            if new:
                chain = received.insert(connection, table, chains[table], new)
                chains[table], kept[table], dropped[table] = received.make_room(
                    connection, table, chain, kept[table] + received.size_of(new), self._most_bytes[table]
                )
        return chains, kept, dropped

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
        head, count = GENESIS, 0
        query = "SELECT id, at, subject, event, detail, hash FROM transition ORDER BY id"
        with self._database.read() as connection:
            with self._committing:
                # The first statement fixes what this connection sees.
                written = dict(connection.execute("SELECT key, value FROM meta WHERE key = 'seal'"))
                seal, chains = self._seal, self._chains
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
            try:
                received.check(connection, chains)
            except ChainError as error:
                raise StoreError(f"journal {name}: {error}") from error
        if written.get("seal") != seal.digest:
            raise StoreError(f"journal {name}: the seal was changed by another program")
        if self.edited:
            raise StoreError(f"journal {name}: found at the start: {self.edited}")
        return count

    def prune(self, before: float, now: float = float("inf")) -> None:
        """See Store.prune."""
        with self._committing:
            with self._database.write() as connection:
                chains = {
                    table: received.drop_old(connection, table, chain, before, now)
                    for table, chain in self._chains.items()
                }
                kept = {table: received.bytes_in(connection, table) for table in received.PARTS}
                rows: list[tuple[str, str, str | None]] = [("meta", _CHAINS, _document(chains))]
                hashes = _hashes(rows)
                seal = Seal(self._seal.length, self._seal.head, self._sum_with(hashes))
                if chains != self._chains:
                    _save(connection, [*rows, ("meta", "seal", seal.digest)])
            if chains != self._chains:
                self._keep(hashes)
                self._sealed(seal, chains, kept)

    def close(self) -> None:
        """See Store.close."""
        self._database.close()


def _document(chains: Chains) -> str:
    return msgspec.json.encode(chains, order="sorted").decode()


def _hashes(rows: Iterable[tuple[str, str, str | None]]) -> dict[tuple[str, str], int]:
    """Of each row, 0 of one that goes."""
    return {(table, key): row_hash(table, key, d) if d is not None else 0 for table, key, d in rows}


def _last_line(connection: Connection) -> tuple[int, str]:
    """Number and hash."""
    last = list(connection.execute("SELECT id, hash FROM transition ORDER BY id DESC LIMIT 1"))
    return (int(last[0][0]), str(last[0][1])) if last else (0, GENESIS)


def _state_rows(connection: Connection) -> Iterator[tuple[str, str, str]]:
    """All rows that are the state: (table, key, document)."""
    # Table names are constants of this file, never input.
    for table, _ in _COLLECTIONS.values():
        for key, document in connection.execute(f"SELECT key, document FROM {table}"):  # noqa: S608
            yield table, key, document
    for key, value in connection.execute("SELECT key, value FROM meta"):
        if key in _FIELDS or key == _CHAINS:
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


def _save(connection: Connection, rows: Sequence[tuple[str, str, str | None]]) -> None:
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
