"""What happened, bounded: in memory for the HTTP interface, and as JSON lines in a file that is rotated once."""

import json
from collections import deque
from pathlib import Path
from typing import IO, Any

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
        self._file: IO[str] | None = None
        self._size = 0
        if path is not None:
            try:
                self._open(path)
            except OSError as error:
                raise UserError(
                    f"cannot write the event log {path}: {error.strerror}; choose another event_log.path"
                ) from error

    def _open(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._size = self._file.tell()

    def append(self, event: dict[str, Any]) -> None:
        """Keeps one event. A disk that is full costs the line in the file, never the daemon."""
        self._recent.append(event)
        if self._file is None or self._path is None:
            return
        line = json.dumps(event, separators=(",", ":")) + "\n"
        try:
            if self._size + len(line) > self._max_bytes:
                self._file.close()
                self._path.replace(f"{self._path}.1")
                self._open(self._path)
            self._file.write(line)
            self._size += len(line)
        except OSError as error:
            log.warning("cannot write to the event log", path=str(self._path), error=str(error))

    def recent(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The newest events, oldest first."""
        events = list(self._recent)
        return events if limit is None else events[-limit:]

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
