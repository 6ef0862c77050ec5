"""The agent's journal: the newest desired state of each NIC and the receiver's epoch.

With it the agent keeps jobs as they were last asked to be when the receiver is gone (fail static), covers jobs that
start meanwhile, and refuses a receiver that has come back from the past.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fabricpulse.core.errors import UserError
from fabricpulse.remediation.private_file import make_database_private
from fabricpulse.remediation.protocol import DesiredNic, end_of

# Whether an epoch was signed -> where it is kept. Versions before had the first one for both.
_FENCES = {False: "fence", True: "signed_fence"}


class JournalError(Exception):
    """The journal cannot be written now (disk full, read-only): nothing of it was, and it may work later."""


class NodeJournal:
    """One SQLite file, mode 0600; every write is durable when the method returns, or raises JournalError."""

    def __init__(self, path: Path, *, signed: bool = False) -> None:
        """signed : whether what is accepted was signed. Raises UserError when the file cannot be opened or is no
        journal."""
        db = None
        self._fence = _FENCES[signed]
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            make_database_private(path)
            self._db = db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS desired (device TEXT PRIMARY KEY, desired TEXT NOT NULL,"
                " generation INTEGER NOT NULL, op_id TEXT NOT NULL)"
            )
            # What somebody said who had not signed it is kept apart: it must not fence a receiver that signs.
            for table in _FENCES.values():
                self._db.execute(f"CREATE TABLE IF NOT EXISTS {table} (epoch INTEGER NOT NULL)")
            # What was accepted and not carried out yet, and until when it may be.
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS waiting (op_id TEXT PRIMARY KEY, not_after REAL NOT NULL)"
            )
        except (OSError, sqlite3.Error) as error:
            if db is not None:
                db.close()
            raise UserError(
                f"cannot open the journal {path}: {error}; set journal to a writable path"
            ) from error

    def epoch(self) -> int:
        """The epoch of the receiver that was accepted last, of those that sign or of those that do not."""
        query = f"SELECT COALESCE(MAX(epoch), 0) FROM {self._fence}"  # noqa: S608 - a constant of this file
        (epoch,) = self._db.execute(query).fetchone()
        return int(epoch)

    def desired(self) -> dict[str, DesiredNic]:
        """The newest desired state by device."""
        rows = self._db.execute("SELECT device, desired, generation, op_id FROM desired")
        return {row[0]: DesiredNic(*row) for row in rows}

    def waiting(self) -> dict[str, float]:
        """Operations that were accepted and not carried out: op_id -> the end of their validity."""
        return dict(self._db.execute("SELECT op_id, not_after FROM waiting"))

    def carried_out(self, op_id: str) -> None:
        """The operation is done: from now on it only has to be kept up."""
        with self._writing():
            self._db.execute("DELETE FROM waiting WHERE op_id = ?", (op_id,))

    def accept(self, epoch: int, nics: list[DesiredNic], not_after: float) -> None:
        """Writes down what was asked, before anything is done about it. not_after : see DesiredState."""
        with self._writing():
            self._db.execute(f"DELETE FROM {self._fence}")  # noqa: S608 - a constant of this file
            self._db.execute(f"INSERT INTO {self._fence} VALUES (?)", (epoch,))  # noqa: S608
            self._db.executemany(
                "INSERT INTO desired VALUES (?, ?, ?, ?) ON CONFLICT (device) DO UPDATE SET desired = excluded.desired,"
                " generation = excluded.generation, op_id = excluded.op_id WHERE excluded.generation > generation",
                [(nic.device, nic.desired, nic.generation, nic.op_id) for nic in nics],
            )
            self._db.executemany(
                "INSERT OR IGNORE INTO waiting VALUES (?, ?)",
                [(nic.op_id, end_of(nic, not_after)) for nic in nics],
            )
            self._db.execute("DELETE FROM waiting WHERE op_id NOT IN (SELECT op_id FROM desired)")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite has ended it itself after some errors
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise JournalError(f"the journal {self._path} cannot be written: {error}") from error

    def close(self) -> None:
        """Closes the file."""
        self._db.close()
