"""The receiver's database in PostgreSQL, for several receivers: one leads by a lease, the others stand by.

The lease is a row with a holder, an epoch that rises with each change of the holder, and an end by the database's
clock. Every write locks the row for the length of its transaction and goes on only while the lease is ours: who takes
the lease over waits for the transaction under way, and a receiver that was stopped and has come back cannot write
(fencing). A transaction that hangs with its leader, stopped by SIGSTOP or cut off, is ended by the server after IDLE_S
where the server waits for the next statement; where it waits for the rest of one, which it does without a limit, by the
receiver that wants the lease.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import psycopg
from psycopg import IsolationLevel, sql
from psycopg.conninfo import conninfo_to_dict

from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.receiver.store.database import Connection
from fabricpulse.remediation.receiver.store.store import StoreError

log = get_logger(__name__)

# A session that is silent within a transaction for so long is ended by the server, and its locks with it.
IDLE_S = 3.0
_STATEMENT_S = 8.0
_CONNECT_S = 5
_LEASE = (
    "CREATE TABLE IF NOT EXISTS lease (name TEXT PRIMARY KEY, holder TEXT NOT NULL, epoch BIGINT NOT NULL,"
    " expires TIMESTAMPTZ NOT NULL)"
)
_TAKE = (
    "INSERT INTO lease VALUES ('receiver', %s, 1, clock_timestamp() + make_interval(secs => %s))"
    " ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, epoch = lease.epoch + 1, expires = excluded.expires"
    " WHERE lease.expires < clock_timestamp() RETURNING epoch"
)
_OURS = "name = 'receiver' AND holder = %s AND epoch = %s"
_RENEW = f"UPDATE lease SET expires = clock_timestamp() + make_interval(secs => %s) WHERE {_OURS} RETURNING 1"  # noqa: S608
_RELEASE = f"UPDATE lease SET expires = clock_timestamp() - interval '1 s' WHERE {_OURS}"  # noqa: S608
_FENCE = f"SELECT 1 FROM lease WHERE {_OURS} AND expires > clock_timestamp() FOR SHARE"  # noqa: S608

# Sessions of a leader whose lease has ended: one may hold the row for ever.
_END_HOLDER = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity, lease WHERE lease.name = 'receiver'"
    " AND lease.expires < clock_timestamp() AND datname = current_database() AND usename = current_user"
    " AND application_name = 'fabricpulse ' || split_part(lease.holder, '/', 3)"
)

_ALREADY_MADE = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateObject,
    psycopg.errors.DuplicateTable,
)


class PostgresDatabase:
    """One database; see `Database`. It can be written while its lease is held: `take_lease`, `renew_lease`."""

    types = {"BLOB": "BYTEA", "REAL": "DOUBLE PRECISION", "SERIAL": "BIGSERIAL PRIMARY KEY"}

    def __init__(self, url: str, lease_s: float) -> None:
        """url : postgresql://…, as libpq reads it. lease_s : how long a lease is good without renewal.

        Raises UserError for a URL that is none. Connects when it is used first.
        """
        try:
            known = conninfo_to_dict(url)
        except psycopg.Error as error:
            raise UserError(f"journal is not a PostgreSQL URL: {str(error).strip()}") from error
        self.name = f"postgresql://{known.get('host', '')}/{known.get('dbname', '')}"
        self._url = url
        self._lease_s = lease_s
        self._holder = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._epoch = 0
        self._until = 0.0
        self._lost = ""
        self._writing = threading.Lock()
        self._writer: psycopg.Connection[tuple[Any, ...]] | None = None
        self._leasing = threading.Lock()
        self._leaser: psycopg.Connection[tuple[Any, ...]] | None = None

    # --- the lease -----------------------------------------------------------------------------------------------

    def take_lease(self) -> str:
        """Takes the lease if it is free: "" then, else who holds it. Raises StoreError."""
        begun = time.monotonic()
        with self._leasing, self._errors():
            connection = self._lease_connection()
            try:
                row = connection.execute(_TAKE, (self._holder, self._lease_s)).fetchone()
            except psycopg.errors.LockNotAvailable:
                connection.execute(_END_HOLDER)
                raise
            if row is None:
                found = connection.execute("SELECT holder FROM lease WHERE name = 'receiver'").fetchone()
                return str(found[0]) if found is not None else "somebody"
            self._epoch, self._until, self._lost = int(row[0]), begun + self._lease_s, ""
            failpoints.reach("receiver.after_lease")
            return ""

    def renew_lease(self) -> None:
        """Holds the lease for another lease_s. Raises StoreError; once `lease_left_s` is 0 it is gone for good."""
        begun = time.monotonic()
        with self._leasing, self._errors():
            ours = (self._lease_s, self._holder, self._epoch)
            if self._lease_connection().execute(_RENEW, ours).fetchone() is None:
                self._lost = "another receiver has taken the lease"
            else:
                self._until = begun + self._lease_s
        self._check_lease()

    def lease_left_s(self) -> float:
        """How long the lease is certainly ours, by the monotonic clock since before the request; 0 for not at all."""
        return 0.0 if self._lost else max(0.0, self._until - time.monotonic())

    def _check_lease(self) -> None:
        if not self._lost and self.lease_left_s() <= 0:
            self._lost = "the lease could not be renewed in time"
        if self._lost:
            raise StoreError(f"{self.name}: {self._lost}")

    def _lease_connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._leaser is None or self._leaser.closed:
            self._leaser = self._connect(autocommit=True)
            self._leaser.execute("SET lock_timeout = '2s'")
            # Two receivers that start together may both want to make it: IF NOT EXISTS does not see what is not
            # committed, and whether the name of the table or of its type is then found taken is chance.
            with suppress(*_ALREADY_MADE):
                self._leaser.execute(_LEASE)
        return self._leaser

    # --- Database ------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The database's clock, seconds since 1970. Raises StoreError."""
        with self._errors(), self._connect(autocommit=True) as connection:
            (now,) = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(now[0])

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """See Database.write. Raises StoreError also when the lease is another's.

        A connection that breaks may have committed or not: the state in memory is then of no use, and the lease counts
        as lost.
        """
        with self._writing, self._errors():
            self._check_lease()
            try:
                if self._writer is None:
                    self._writer = self._connect(autocommit=True)
                with self._writer.transaction():
                    if self._writer.execute(_FENCE, (self._holder, self._epoch)).fetchone() is None:
                        self._lost = "the lease has ended, or another receiver has taken it"
                        raise StoreError(f"{self.name}: {self._lost}")
                    yield cast(Connection, _Statements(self._writer))
            except psycopg.Error:
                if self._writer is None or self._writer.broken or self._writer.closed:
                    self._lost = self._lost or "the connection broke in a transaction"
                raise

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """See Database.read."""
        with self._errors(), self._connect(autocommit=False) as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            reader = _Reader(connection)
            try:
                yield cast(Connection, reader)
            finally:
                reader.close()

    def close(self) -> None:
        """Gives the lease back, so that another receiver need not wait for its end, and disconnects.

        Waits for the transaction under way."""
        with self._leasing, suppress(psycopg.Error):
            if self._leaser is not None and not self._leaser.closed:
                if self._epoch:
                    self._leaser.execute(_RELEASE, (self._holder, self._epoch))
                self._leaser.close()
        self._lost = self._lost or "closed"
        with self._writing:
            if self._writer is not None:
                self._writer.close()

    def _connect(self, *, autocommit: bool) -> psycopg.Connection[tuple[Any, ...]]:
        connection = psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=_CONNECT_S,
            application_name=f"fabricpulse {self._holder.rpartition('/')[2]}",
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=int(_STATEMENT_S * 1000),
        )
        for setting, limit_s in (
            ("idle_in_transaction_session_timeout", IDLE_S),
            ("statement_timeout", _STATEMENT_S),
        ):
            connection.execute(sql.SQL("SET {} = {}").format(sql.Identifier(setting), int(limit_s * 1000)))
        durable = connection.execute("SHOW synchronous_commit").fetchone()
        if durable == ("off",):
            connection.execute("SET synchronous_commit = on")
        connection.autocommit = autocommit
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise StoreError(f"journal {self.name}: {reason}") from error


class _Statements:
    """Statements with `?` for parameters on a connection of psycopg."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]:
        """See Connection.execute."""
        return self._connection.execute(_translated(statement), parameters or None)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """See Connection.executemany."""
        with self._connection.cursor() as cursor:
            cursor.executemany(_translated(statement), [_storable(row) for row in rows])


class _Reader:
    """Queries whose rows come in parts: the journal is longer than memory."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection
        self._cursors: list[psycopg.ServerCursor[tuple[Any, ...]]] = []

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]:
        """See Connection.execute."""
        cursor = self._connection.cursor(name=f"query{len(self._cursors)}")
        self._cursors.append(cursor)
        # A delivery may be megabytes, and `verify` reads them in the leader: a thousand at once are too much for it.
        cursor.itersize = 50
        return cursor.execute(_translated(statement), parameters or None)

    def close(self) -> None:
        """Ends the queries. A closed connection has ended them already."""
        for cursor in self._cursors:
            with suppress(psycopg.Error):
                cursor.close()


def _translated(statement: str) -> Any:
    return statement.replace("?", "%s")


def _storable(row: Sequence[Any]) -> list[Any]:
    """PostgreSQL's text holds no NUL."""
    return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in row]
