"""The file of FaultTimes: read at the start, replaced every few seconds while there is something to keep.

In the run directory, as others of this host's daemons; it outlives a reboot only where the setting names another place.
"""

import asyncio
import errno
import os
import stat
import time
from pathlib import Path

from fabricpulse.core.errors import UserError, is_exhausted
from fabricpulse.core.files import atomic_write, open_regular
from fabricpulse.core.log import get_logger
from fabricpulse.core.run_dir import ensure_run_dir
from fabricpulse.core.run_lock import RunLock
from fabricpulse.diagnosis.daemon.fault_times import MOST_BYTES, FaultTimes

log = get_logger(__name__)

_NAME = "fault-times.json"
_PAUSE_S = 5.0


class FaultTimesFile:
    """Of one coordinator. A file that cannot be used costs what it would have kept, and nothing else."""

    def __init__(self, times: FaultTimes, setting: str) -> None:
        """setting : path of the file, "" for its name in the run directory."""
        self._times = times
        self._setting = setting
        self._path: Path | None = None
        self._lock: RunLock | None = None
        self._written = b""
        self._fails = False

    def open(self) -> bool:
        """Reads what was kept. Returns whether it can be kept again: of two coordinators with a folder only the first
        one does so.
        """
        try:
            if self._setting:
                path = Path(self._setting)
                if path.is_dir():  # else the lock would be beside it: of /tmp in the root directory
                    raise UserError(f"fault_times: {path} is a directory; name a file in it")
                self._lock = RunLock(path.parent, "coordinator", "fault_times", path)
            else:
                path = ensure_run_dir() / _NAME
                self._lock = RunLock(path.parent, "fault-times")
        except UserError as error:
            log.warning("when faults began will not be known after a restart", error=str(error))
            return False
        try:
            self._times.load(read_own(path), time.monotonic(), time.time())
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            if not is_exhausted(error):
                return self._set_aside(path, error)
            # It may be good, and is to be there for the next start.
            log.warning(
                "when faults began is not known and will not be kept", file=str(path), error=str(error)
            )
            return False
        self._path = path
        return True

    def _set_aside(self, path: Path, error: Exception) -> bool:
        """Keeps what is no file of ours, or was one, under another name. Returns whether that was possible."""
        aside = path.with_name(f"{path.name}.old")
        try:
            # Not a rename, which would replace what is there; the link of a symbolic link is one itself.
            os.link(path, aside, follow_symlinks=False)
        except OSError as refused:
            log.error(
                "when faults began is not known and will not be kept: the file is of no use, and stays as it is;"
                " remove it, or name another one with fault_times",
                file=str(path),
                error=str(error),
                kept_as=f"{aside}: {refused.strerror}",
            )
            return False
        log.warning(
            "when faults began before this start is not known: the file is of no use",
            file=str(path),
            error=str(error),
            kept_as=str(aside),
        )
        self._path = path
        return True

    async def run(self) -> None:
        """Replaces it until cancelled."""
        while True:
            await asyncio.sleep(_PAUSE_S)
            if self._path is not None:
                await asyncio.to_thread(self._write, self._path, self._content())

    def close(self) -> None:
        """Writes what there is; once the task has ended."""
        if self._path is not None:
            self._write(self._path, self._content())
            self._path = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _content(self) -> bytes:
        return self._times.dump(time.monotonic(), time.time())

    def _write(self, path: Path, content: bytes) -> None:
        """Without waiting for the disk: what a power cut leaves is either whole or refused as it is read."""
        if content == self._written:
            return
        try:
            atomic_write(path, content, mode=0o600, durable=False)
        except OSError as error:
            if not self._fails:
                log.warning("when faults began cannot be kept", file=str(path), error=str(error))
            self._fails = True
            return
        self._written, self._fails = content, False


def read_own(path: Path) -> bytes:
    """The content of a regular file that nobody but this user or root can have written. Raises OSError."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(errno.EPERM, "others may write to it")
        if status.st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MOST_BYTES >> 20} MiB")
        return file.read(MOST_BYTES)
