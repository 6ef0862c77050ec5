"""Files that only their owner may read: journals say which NICs fail, and what is done about them."""

import os
from contextlib import suppress
from pathlib import Path
from typing import IO


def open_private(path: Path) -> IO[bytes]:
    """Opens or creates a file without truncating it; whatever its mode was, it is 0600 then. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "r+b", buffering=0)


def make_database_private(path: Path) -> None:
    """Creates the file of an SQLite database with mode 0600, and takes what a crash has left of its log to the same.

    Files that SQLite makes beside it later have the mode of the database. Raises OSError.
    """
    # Never opened where they exist: to close a file ends all POSIX locks of the process on it, those of SQLite, too.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).chmod(0o600)
