"""The event log of a daemon: one JSON object a line, and the newest events in memory for its HTTP interface.

Every line has `time` (RFC 3339, UTC, nanoseconds; when it happened by the host clock) and `event` first, then the
event's own fields. The file is rotated once by size: FILE and FILE.1 together hold at most twice `max_bytes`. It may
be moved away by logrotate as well: the next event makes a new one.
"""

import errno
import json
import os
from collections import deque
from pathlib import Path
from typing import Any

from fabricpulse.core.errors import UserError
from fabricpulse.core.files import file_identity, identity_of, open_regular
from fabricpulse.core.log import get_logger
from fabricpulse.core.rfc3339 import rfc3339

log = get_logger(__name__)


class EventLog:
    """Appends events. One process writes a file.

    path : None for memory only. max_bytes : of the file before it is rotated. keep : newest events kept in memory.
    `lost` counts events that the file has not taken.
    """

    def __init__(self, path: Path | None, max_bytes: int, keep: int = 0) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._recent: deque[dict[str, Any]] = deque(maxlen=keep)
        self._descriptor = -1
        self._size = 0
        self._identity = (0, 0)
        self._failing = False
        self.lost = 0

    def check(self, setting: str) -> None:
        """Makes the file if it is not there. setting : configuration key of the path, for the message.

        Raises UserError when it cannot be written.
        """
        if self._path is None:
            return
        try:
            self._open(self._path)
        except OSError as error:
            raise UserError(
                f"cannot write the event log {self._path}: {error.strerror}; set {setting} to a regular file in a "
                "folder that exists and is writable"
            ) from error

    def append(self, time_ns: int, event: str, /, **fields: Any) -> None:
        """Keeps one event and appends it to the file. Raises ValueError for fields called `time` or `event`.

        A full disk, or a file that cannot be opened, loses lines, which are counted, and never stops the daemon. A line
        is written completely or not at all.
        """
        if fields.keys() & {"time", "event"}:
            raise ValueError("an event has its own time and event")
        record = {"time": rfc3339(time_ns), "event": event, **fields}
        self._recent.append(record)
        if self._path is None:
            return
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        try:
            self._make_room(self._path, len(line))
            self._write(line)
        except OSError as error:
            self.lost += 1
            self.close()
            if not self._failing:
                log.error("event log cannot be written", file=str(self._path), reason=error.strerror)
            self._failing = True
        else:
            if self._failing:
                log.info("event log is written again", file=str(self._path), lost=self.lost)
            self._failing = False

    def recent(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The newest events, oldest first. limit : None for all that are kept."""
        events = list(self._recent)
        return events if limit is None else events[max(0, len(events) - limit) :]

    def close(self) -> None:
        """Closes the file; the next event opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, line: bytes) -> None:
        written = os.write(self._descriptor, line)
        if written < len(line):
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # what a short write to a file means
        self._size += written

    def _make_room(self, path: Path, more: int) -> None:
        """The file is open, is the one at the path, and has room for `more` bytes; it is rotated if not."""
        if self._descriptor < 0 or not self._is_current(path):
            self._open(path)
        if self._size and self._size + more > self._max_bytes:
            path.replace(path.with_name(f"{path.name}.1"))
            self._open(path)

    def _open(self, path: Path) -> None:
        self.close()
        self._descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        status = os.fstat(self._descriptor)
        self._size = status.st_size
        self._identity = identity_of(status)

    def _is_current(self, path: Path) -> bool:
        """Whether the path still names the open file."""
        return file_identity(path, follow_symlinks=False) == self._identity
