"""What happened, bounded: in memory for the HTTP interface, and as JSON lines in a file that is rotated once."""

import json
from collections import deque
from io import FileIO
from pathlib import Path
from typing import Any

from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger

log = get_logger(__name__)


class EventLogWriter:
    """path : None = memory only. The file holds max_bytes at most, and as much again in `<path>.1`."""

    def __init__(self, path: Path | None, max_bytes: int, keep: int) -> None:
        """Raises UserError when the file cannot be opened."""
        self._path = path
        self._max_bytes = max_bytes
        self._recent: deque[dict[str, Any]] = deque(maxlen=keep)
        self._file: FileIO | None = None
        self._size = 0
        if path is not None:
            try:
                self._open(path)
            except OSError as error:
                raise UserError(
                    f"cannot write the event log {path}: {error.strerror}; choose another event_log.path"
                ) from error

    def _open(self, path: Path) -> FileIO:
        # Unbuffered: what a full disk has refused is gone, and does not come back as an error of the next line.
        self._file = FileIO(path, "a")
        self._size = self._file.tell()
        return self._file

    def append(self, event: dict[str, Any]) -> None:
        """Keeps one event. A disk that is full, a file that cannot be rotated: a line is lost, never the daemon."""
        self._recent.append(event)
        if self._path is None:
            return
        line = (json.dumps(event, separators=(",", ":")) + "\n").encode()
        try:
            self._writable(self._path, len(line)).write(line)
            self._size += len(line)
        except OSError as error:
            log.warning("cannot write to the event log", path=str(self._path), error=str(error))

    def _writable(self, path: Path, size: int) -> FileIO:
        """The file, rotated if it has no room for `size` bytes more. Raises OSError; the next line tries again."""
        file = self._file or self._open(path)
        if self._size + size <= self._max_bytes:
            return file
        self.close()
        path.replace(f"{path}.1")
        return self._open(path)

    def recent(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The newest events, oldest first."""
        events = list(self._recent)
        return events if limit is None else events[-limit:]

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
