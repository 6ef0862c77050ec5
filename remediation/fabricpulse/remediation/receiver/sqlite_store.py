"""The journal in SQLite: write-ahead log, synchronous=FULL, one process, one writer.

`transition` is append-only and hash-chained: each line's hash covers the line before, so an edit of the past shows. The
state is kept beside it, changed rows only, in the same transaction as the line that explains the change.
"""

import fcntl
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from fabricpulse.core.errors import UserError
from fabricpulse.remediation.receiver.model import Action, Breaker, Episode, Pause, State, TargetState
from fabricpulse.remediation.receiver.store import Batch, StoreError

SCHEMA_VERSION = 1
_GENESIS = "0" * 64

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
}


def _chain(previous: str, at: float, subject: str, event: str, detail: str) -> str:
    line = f"{previous}\n{at!r}\n{subject}\n{event}\n{detail}"
    return hashlib.sha256(line.encode()).hexdigest()


class SqliteStore:
    """A journal file; see `Store`."""

    def __init__(self, path: Path) -> None:
        """Opens or creates `path`. Raises UserError when it is in use, damaged, or cannot be written."""
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
        self._engine = sa.create_engine(
            f"sqlite:///{path}", poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": 5}
        )
        sa.event.listen(self._engine, "connect", _configure)
        self._saved = State()
        self._head = _GENESIS
        try:
            self._prepare()
        except sa.exc.SQLAlchemyError as error:
            self.close()
            raise UserError(f"the journal {path} cannot be used: {_cause(error)}") from error
        except UserError:
            self.close()
            raise

    def _prepare(self) -> None:
        with self._engine.begin() as connection:
            if connection.exec_driver_sql("PRAGMA integrity_check").scalar() != "ok":
                raise UserError(
                    f"the journal {self._path} is damaged (integrity check failed); restore a backup or move it away"
                )
            metadata.create_all(connection)
            version = connection.execute(sa.select(meta.c.value).where(meta.c.key == "schema")).scalar()
            if version is None:
                connection.execute(meta.insert().values(key="schema", value=str(SCHEMA_VERSION)))
            elif int(version) != SCHEMA_VERSION:
                raise UserError(
                    f"the journal {self._path} has schema {version}, this fabricpulse knows {SCHEMA_VERSION}; "
                    "use the version that wrote it or move the file away"
                )
        self._path.chmod(0o600)

    def load(self) -> State:
        """See Store.load."""
        values: dict[str, Any] = {}
        with self._engine.connect() as connection:
            for field, (table, kind) in _COLLECTIONS.items():
                rows = connection.execute(sa.select(table.c.key, table.c.document))
                values[field] = {key: msgspec.json.decode(document, type=kind) for key, document in rows}
            single = dict(connection.execute(sa.select(meta.c.key, meta.c.value)).all())
            values["epoch"] = int(single.get("epoch", "0"))
            values["pause"] = msgspec.json.decode(single.get("pause", "null"), type=Pause | None)
            values["recent"] = msgspec.json.decode(
                single.get("recent", "[]"), type=tuple[tuple[float, str, str], ...]
            )
            last = connection.execute(
                sa.select(transition.c.hash).order_by(transition.c.id.desc()).limit(1)
            ).scalar()
        self._head = last or _GENESIS
        self._saved = State(**values)
        return self._saved

    def commit(self, batch: Batch) -> None:
        """See Store.commit."""
        head = self._head
        try:
            with self._engine.begin() as connection:
                if batch.deliveries:
                    connection.execute(
                        delivery.insert(),
                        [
                            {"received_at": at, "sha256": digest, "body": body}
                            for at, digest, body in batch.deliveries
                        ],
                    )
                if batch.dead_letters:
                    connection.execute(
                        dead_letter.insert(),
                        [
                            {"received_at": batch.at, "reason": d.reason, "body": d.body}
                            for d in batch.dead_letters
                        ],
                    )
                lines = []
                for entry in batch.transitions:
                    detail = msgspec.json.encode(entry.detail, order="sorted").decode()
                    head = _chain(head, batch.at, entry.subject, entry.event, detail)
                    lines.append(
                        {
                            "at": batch.at,
                            "subject": entry.subject,
                            "event": entry.event,
                            "detail": detail,
                            "hash": head,
                        }
                    )
                if lines:
                    connection.execute(transition.insert(), lines)
                self._save(connection, batch.state)
        except sa.exc.SQLAlchemyError as error:
            raise StoreError(f"journal {self._path}: {_cause(error)}") from error
        self._head = head
        self._saved = batch.state

    def _save(self, connection: sa.Connection, state: State) -> None:
        for field, (table, _) in _COLLECTIONS.items():
            old, new = getattr(self._saved, field), getattr(state, field)
            if old is new:
                continue
            gone = [key for key in old if key not in new]
            if gone:
                connection.execute(
                    table.delete().where(table.c.key == sa.bindparam("k")), [{"k": key} for key in gone]
                )
            changed = [
                {"key": key, "document": msgspec.json.encode(value).decode()}
                for key, value in new.items()
                if old.get(key) is not value
            ]
            if changed:
                connection.execute(table.insert().prefix_with("OR REPLACE"), changed)
        for key, value in (("epoch", state.epoch), ("pause", state.pause), ("recent", state.recent)):
            if getattr(self._saved, key) != value:
                document = msgspec.json.encode(value).decode()
                connection.execute(meta.insert().prefix_with("OR REPLACE"), {"key": key, "value": document})

    def transitions(self, after: int, limit: int) -> list[dict[str, Any]]:
        """See Store.transitions."""
        query = sa.select(transition).where(transition.c.id > after).order_by(transition.c.id).limit(limit)
        with self._engine.connect() as connection:
            return [
                {**row._asdict(), "detail": msgspec.json.decode(row.detail)}
                for row in connection.execute(query)
            ]

    def verify(self) -> int:
        """See Store.verify."""
        head, count = _GENESIS, 0
        with self._engine.connect() as connection:
            for row in connection.execute(sa.select(transition).order_by(transition.c.id)):
                head = _chain(head, row.at, row.subject, row.event, row.detail)
                if head != row.hash:
                    raise StoreError(
                        f"journal {self._path}: line {row.id} does not follow from the lines before it"
                    )
                count += 1
        return count

    def prune(self, before: float) -> None:
        """See Store.prune."""
        try:
            with self._engine.begin() as connection:
                for table in (delivery, dead_letter):
                    connection.execute(table.delete().where(table.c.received_at < before))
        except sa.exc.SQLAlchemyError as error:
            raise StoreError(f"journal {self._path}: {_cause(error)}") from error

    def close(self) -> None:
        """See Store.close."""
        self._engine.dispose()
        self._lock.close()


def _configure(connection: Any, _: Any) -> None:
    cursor: Callable[[str], Any] = connection.execute
    cursor("PRAGMA journal_mode=WAL")
    cursor("PRAGMA synchronous=FULL")
    cursor("PRAGMA busy_timeout=5000")


def _cause(error: sa.exc.SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
