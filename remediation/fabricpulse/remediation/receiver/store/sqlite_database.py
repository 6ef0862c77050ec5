"""The receiver's database in SQLite: write-ahead log, synchronous=FULL, one process, one writer.

Readers have connections of their own: on the writer's, the end of a reader's transaction would end the writer's.
"""

import ctypes
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from urllib.parse import quote

from fabricpulse.core.errors import UserError
from fabricpulse.remediation.private_file import make_database_private, open_private
from fabricpulse.remediation.receiver.store.database import Connection
from fabricpulse.remediation.receiver.store.store import StoreError

# File systems on which locks or shared memory mappings of SQLite's log do not hold: NFS, CIFS, SMB2.
_REMOTE = {0x6969: "NFS", 0xFF534D42: "CIFS", 0xFE534D42: "SMB"}
_BUSY_TIMEOUT_S = 5.0


class SqliteDatabase:
    """One file, locked by this process and readable by its user alone; see `Database`."""

    types = {"BLOB": "BLOB", "REAL": "REAL", "SERIAL": "INTEGER PRIMARY KEY"}

    def __init__(self, path: Path) -> None:
        """Opens or creates `path`. Raises UserError when it is in use, damaged, remote, or cannot be written."""
        self.name = str(path)
        try:
            # By whatever name: the lock lies beside the file itself, or two receivers could hold one each.
            path = path.resolve()
            if path.is_symlink():  # a circle, which Python 3.13 leaves as it is
                path.stat()
        except (OSError, RuntimeError) as error:
            raise UserError(f"cannot open the journal {path}: its links lead nowhere ({error})") from error
        self._path = path
        lock = path.with_name(path.name + ".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = open_private(lock)
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
        self._writing = threading.Lock()
        try:
            self._writer = self._open()
            self._identities = {each: _identity(each) for each in (path, lock)}
        except (UserError, OSError):
            self._lock.close()
            raise

    def _open(self) -> sqlite3.Connection:
        if remote := _remote_kind(self._path.parent):
            raise UserError(
                f"the journal {self._path} is on {remote}, where SQLite's locks do not hold; use a local disk"
            )
        connection = None
        try:
            # SQLite gives its log and shared memory the mode of the file.
            make_database_private(self._path)
            connection = self._connect()
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            intact = connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        except (OSError, sqlite3.Error) as error:
            if connection is not None:
                connection.close()
            raise UserError(f"the journal {self._path} cannot be used: {error}") from error
        if not intact:
            connection.close()
            raise UserError(
                f"the journal {self._path} is damaged (integrity check failed); restore a backup or move it away"
            )
        return connection

    def _connect(self) -> sqlite3.Connection:
        # Never made here: a file that was removed must not come back as an empty one.
        return sqlite3.connect(
            f"file:{quote(str(self._path.absolute()))}?mode=rw",
            uri=True,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )

    def _check_files(self) -> None:
        """Raises OSError when journal or lock is no longer the file that was opened: what is written goes nowhere then,
        or another receiver may write as well."""
        for path, identity in self._identities.items():
            if _identity(path) != identity:
                raise OSError(f"{path.name} was replaced while in use: put it back, or restart the receiver")

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """See Database.write."""
        with self._writing:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield cast(Connection, self._writer)
                    self._check_files()
                    self._writer.execute("COMMIT")
                except BaseException:
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")
                    raise
            except (sqlite3.Error, OSError) as error:
                raise StoreError(f"journal {self._path}: {error}") from error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """See Database.read."""
        connection = None
        try:
            connection = self._connect()
            connection.execute("BEGIN")
            yield cast(Connection, connection)
        except sqlite3.Error as error:
            raise StoreError(f"journal {self._path}: {error}") from error
        finally:
            if connection is not None:
                connection.close()

    def now(self) -> float:
        """See Database.now."""
        return time.time()

    def lease_left_s(self) -> float:
        """Infinite: the file is locked."""
        return float("inf")

    def renew_lease(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """See Database.close. Waits for the transaction under way: one that a cancelled task began in a thread runs on,
        and SQLite crashes when its connection is closed meanwhile."""
        with self._writing:
            self._writer.close()
        self._lock.close()


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _remote_kind(folder: Path) -> str:
    """Kind of the network file system that `folder` is on, "" for a local one."""
    # struct statfs begins with the type as a word of the machine on every architecture that we run on.
    buffer = (ctypes.c_long * 64)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(folder), ctypes.byref(buffer)) != 0:
        return ""
    return _REMOTE.get(buffer[0] & 0xFFFFFFFF, "")
