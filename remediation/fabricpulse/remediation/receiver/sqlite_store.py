"""The journal in SQLite: write-ahead log, synchronous=FULL, one process, one writer.

`transition` is append-only and hash-chained: each line's hash covers the line before, so an edit of the past shows. The
state is kept beside it, changed rows only, in the same transaction as the line that explains the change. Readers have a
connection of their own: on the writer's, the end of a reader's transaction would end the writer's.
"""

import fcntl
import hashlib
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.pool import NullPool, StaticPool

from fabricpulse.core.errors import UserError
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.receiver.model import Action, Breaker, Bucket, Episode, Pause, State, TargetState
from fabricpulse.remediation.receiver.store import Batch, Delivery, StoreError

SCHEMA_VERSION = 1
_GENESIS = "0" * 64
# File systems on which locks or shared memory mappings of SQLite's log do not hold: NFS, CIFS, SMB2.
_REMOTE = {0x6969: "NFS", 0xFF534D42: "CIFS", 0xFE534D42: "SMB"}

metadata = sa.MetaData()

meta = sa.Table(
    "meta", metadata, sa.Column("key", sa.String, primary_key=True), sa.Column("value", sa.String)
)
delivery = sa.Table(
    "delivery",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("received_at", sa.Float, nullable=False, index=True),
    sa.Column("sha256", sa.String, nullable=False),
    sa.Column("deflated", sa.Boolean, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
dead_letter = sa.Table(
    "dead_letter",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("received_at", sa.Float, nullable=False, index=True),
    sa.Column("reason", sa.String, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
transition = sa.Table(
    "transition",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("subject", sa.String, nullable=False),
    sa.Column("event", sa.String, nullable=False),
    sa.Column("detail", sa.String, nullable=False),
    sa.Column("hash", sa.String, nullable=False),
)


def _document(name: str) -> sa.Table:
    return sa.Table(
        name,
        metadata,
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("document", sa.String, nullable=False),
    )


# State.<field> -> (table, type of a row's document)
_COLLECTIONS: dict[str, tuple[sa.Table, type]] = {
    "episodes": (_document("episode"), Episode),
    "targets": (_document("target"), TargetState),
    "actions": (_document("action"), Action),
    "breakers": (_document("breaker"), Breaker),
    "buckets": (_document("bucket"), Bucket),
}
# State.<field> that is a row of `meta` -> its type. What the agents and Alertmanagers said last is asked anew at start.
_SCALARS: dict[str, Any] = {
    "epoch": int,
    "pause": Pause | None,
    "recent": tuple[tuple[float, str, str], ...],
    "watchdog": str,
}


def _chain(previous: str, at: float, subject: str, event: str, detail: str) -> str:
    line = msgspec.json.encode([previous, at, subject, event, detail])
    return hashlib.sha256(line).hexdigest()


class SqliteStore:
    """A journal file; see `Store`."""

    def __init__(self, path: Path) -> None:
        """Opens or creates `path`. Raises UserError when it is in use, damaged, remote, or cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = path.with_name(path.name + ".lock").open("w")
        except OSError as error:
            raise UserError(
                f"cannot open the journal {path}: {error.strerror}; set journal to a writable path"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UserError(
                f"the journal {path} is in use by another receiver; stop it or choose another journal"
            ) from error
        self._path = path
        if remote := _remote_kind(path.parent):
            self._lock.close()
            raise UserError(
                f"the journal {path} is on {remote}, where SQLite's locks do not hold; use a local disk"
            )
        url = f"sqlite:///{path}"
        options = {"check_same_thread": False, "timeout": 5}
        self._writer = sa.create_engine(url, poolclass=StaticPool, connect_args=options)
        self._reader = sa.create_engine(url, poolclass=NullPool, connect_args=options)
        sa.event.listen(self._writer, "connect", _configure)
        self._saved = State()
        self._head = (0, _GENESIS)
        self._writing = threading.Lock()
        try:
            self._prepare()
        except UserError:
            self.close()
            raise
        except sa.exc.SQLAlchemyError as error:
            self.close()
            raise UserError(f"the journal {path} cannot be used: {_cause(error)}") from error

    def _prepare(self) -> None:
        with self._writer.begin() as connection:
            if connection.exec_driver_sql("PRAGMA integrity_check").scalar() != "ok":
                raise UserError(
                    f"the journal {self._path} is damaged (integrity check failed); restore a backup or move it away"
                )
            metadata.create_all(connection)
            version = connection.execute(sa.select(meta.c.value).where(meta.c.key == "schema")).scalar()
            if version is None:
                connection.execute(meta.insert().values(key="schema", value=str(SCHEMA_VERSION)))
            elif version != str(SCHEMA_VERSION):
                raise UserError(
                    f"the journal {self._path} has schema {version}, this fabricpulse knows {SCHEMA_VERSION}; "
                    "use the version that wrote it or move the file away"
                )
        self._path.chmod(0o600)

    def load(self) -> State:
        """See Store.load. Raises StoreError when a row is not what this version wrote."""
        values: dict[str, Any] = {}
        try:
            with self._reader.connect() as connection:
                for field, (table, kind) in _COLLECTIONS.items():
                    rows = connection.execute(sa.select(table.c.key, table.c.document))
                    values[field] = {key: msgspec.json.decode(document, type=kind) for key, document in rows}
                found = dict(connection.execute(sa.select(meta.c.key, meta.c.value)).all())
                for field, kind in _SCALARS.items():
                    if field in found:
                        values[field] = msgspec.json.decode(found[field] or "null", type=kind)
                last = connection.execute(
                    sa.select(transition.c.id, transition.c.hash).order_by(transition.c.id.desc()).limit(1)
                ).first()
        except msgspec.DecodeError as error:
            # Malformed is not empty: a journal that cannot be understood must not look like one with nothing in it.
            raise StoreError(
                f"the journal {self._path} holds a row that cannot be read: {error}; restore a backup"
            ) from error
        except sa.exc.SQLAlchemyError as error:
            raise StoreError(f"the journal {self._path} cannot be read: {_cause(error)}") from error
        self._head = (last.id, last.hash) if last is not None else (0, _GENESIS)
        self._saved = State(**values)
        return self._saved

    def commit(self, batch: Batch) -> None:
        """See Store.commit."""
        number, digest = self._head
        lines = []
        for entry in batch.transitions:
            detail = msgspec.json.encode(entry.detail, order="sorted").decode()
            digest = _chain(digest, batch.at, entry.subject, entry.event, detail)
            number += 1
            lines.append((number, batch.at, entry.subject, entry.event, detail, digest))
        failpoints.reach("receiver.before_commit")
        try:
            with self._writing, self._writer.begin() as connection:
                self._insert(connection, batch)
                if lines:
                    connection.exec_driver_sql(
                        "INSERT INTO transition (id, at, subject, event, detail, hash) VALUES (?, ?, ?, ?, ?, ?)",
                        lines,
                    )
                self._save(connection, batch.state)
                failpoints.reach("receiver.in_commit")
        except (sa.exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise StoreError(f"journal {self._path}: {_cause(error)}") from error
        failpoints.reach("receiver.after_commit")
        self._head = (number, digest)
        self._saved = batch.state

    @staticmethod
    def _insert(connection: sa.Connection, batch: Batch) -> None:
        if batch.deliveries:
            connection.exec_driver_sql(
                "INSERT INTO delivery (received_at, sha256, deflated, body) VALUES (?, ?, ?, ?)",
                [(d.received_at, d.sha256, int(d.deflated), d.body) for d in batch.deliveries],
            )
        if batch.dead_letters:
            connection.exec_driver_sql(
                "INSERT INTO dead_letter (received_at, reason, body) VALUES (?, ?, ?)",
                [(batch.at, d.reason, d.body) for d in batch.dead_letters],
            )

    def _save(self, connection: sa.Connection, state: State) -> None:
        for field, (table, _) in _COLLECTIONS.items():
            old, new = getattr(self._saved, field), getattr(state, field)
            if old is new:
                continue
            gone = [(key,) for key in old if key not in new]
            changed = [
                (key, msgspec.json.encode(value).decode())
                for key, value in new.items()
                if old.get(key) is not value
            ]
            # Table names are ours, never input.
            if gone:
                connection.exec_driver_sql(f"DELETE FROM {table.name} WHERE key = ?", gone)  # noqa: S608
            if changed:
                connection.exec_driver_sql(
                    f"INSERT OR REPLACE INTO {table.name} (key, document) VALUES (?, ?)",  # noqa: S608
                    changed,
                )
        scalars = [
            (field, msgspec.json.encode(getattr(state, field)).decode())
            for field in _SCALARS
            if getattr(state, field) != getattr(self._saved, field)
        ]
        if scalars:
            connection.exec_driver_sql("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", scalars)

    def last_commit_at(self) -> float:
        """See Store.last_commit_at."""
        with self._reader.connect() as connection:
            return float(connection.execute(sa.select(sa.func.max(transition.c.at))).scalar() or 0.0)

    def transitions(self, after: int, limit: int) -> list[dict[str, Any]]:
        """See Store.transitions."""
        query = sa.select(transition).where(transition.c.id > after).order_by(transition.c.id).limit(limit)
        with self._reader.connect() as connection:
            return [
                {**row._asdict(), "detail": msgspec.json.decode(row.detail)}
                for row in connection.execute(query)
            ]

    def deliveries(self, after: int, limit: int) -> Iterator[tuple[int, Delivery]]:
        """See Store.deliveries."""
        query = sa.select(delivery).where(delivery.c.id > after).order_by(delivery.c.id).limit(limit)
        with self._reader.connect() as connection:
            for row in connection.execute(query):
                body = zlib.decompress(row.body) if row.deflated else row.body
                yield row.id, Delivery(row.received_at, row.sha256, body)

    def dead_letters(self, limit: int) -> list[dict[str, Any]]:
        """See Store.dead_letters."""
        query = sa.select(dead_letter).order_by(dead_letter.c.id.desc()).limit(limit)
        with self._reader.connect() as connection:
            return [
                {**row._asdict(), "body": row.body.decode("utf-8", "backslashreplace")}
                for row in connection.execute(query)
            ]

    def head(self) -> tuple[int, str]:
        """See Store.head."""
        return self._head

    def verify(self) -> int:
        """See Store.verify."""
        head, count = _GENESIS, 0
        with self._reader.connect() as connection:
            for row in connection.execute(sa.select(transition).order_by(transition.c.id)):
                head = _chain(head, row.at, row.subject, row.event, row.detail)
                count += 1
                if head != row.hash or row.id != count:
                    raise StoreError(
                        f"journal {self._path}: line {row.id} does not follow from the lines before it"
                    )
        return count

    def prune(self, before: float) -> None:
        """See Store.prune."""
        try:
            with self._writing, self._writer.begin() as connection:
                for table in (delivery, dead_letter):
                    connection.execute(table.delete().where(table.c.received_at < before))
        except sa.exc.SQLAlchemyError as error:
            raise StoreError(f"journal {self._path}: {_cause(error)}") from error

    def close(self) -> None:
        """See Store.close."""
        self._writer.dispose()
        self._reader.dispose()
        self._lock.close()


def _configure(connection: Any, _: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000"):
        connection.execute(f"PRAGMA {pragma}")


def _remote_kind(folder: Path) -> str:
    """Kind of the network file system that `folder` is on, "" for a local one."""
    import ctypes

    # struct statfs begins with the type as a word of the machine on every architecture that we run on.
    buffer = (ctypes.c_long * 64)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(folder), ctypes.byref(buffer)) != 0:
        return ""
    return _REMOTE.get(buffer[0] & 0xFFFFFFFF, "")


def _cause(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
