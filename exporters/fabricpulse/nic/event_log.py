"""The event log: one JSON object a line, written as the event is taken in.

Fields: ts (RFC 3339, host clock), event, device, rdma_device, port, source, and what the event has (down_s, count,
message). The file is rotated by size: `NAME` and `NAME.1` together hold at most twice `max_bytes`.
"""

import errno
import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger

log = get_logger(__name__)


class EventLog:
    """path : the file, None for no log. It is opened on the first event and again after it was moved away.

    `check` tells before the first event whether it can be.
    """

    def __init__(self, path: Path | None, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._descriptor = -1
        self._size = 0
        self._identity = (0, 0)
        self._told = False

    def check(self) -> None:
        """Makes the file if it is not there. Raises UserError when it cannot be written."""
        if self._path is None:
            return
        try:
            self._open(self._path, 0)
        except OSError as error:
            raise UserError(
                f"cannot write the event log {self._path}: {error.strerror}; set flaps.event_log to a file in a"
                ' folder that exists and is writable, or to "none" for no log'
            ) from error
        finally:
            self.close()

    def write(self, time_s: float, event: str, labels: tuple[str, str, str], **fields: object) -> None:
        """Appends one event. A file that cannot be written is logged once and does not stop the exporter."""
        if self._path is None:
            return
        device, rdma_device, port = labels
        stamp = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        record = {
            "ts": stamp,
            "event": event,
            "device": device,
            "rdma_device": rdma_device,
            "port": port,
            **fields,
        }
        line = json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        try:
            self._open(self._path, len(line))
            os.write(self._descriptor, line)
            self._size += len(line)
            self._told = False
        except OSError as error:
            self.close()
            if not self._told:
                self._told = True
                log.error("event log cannot be written", file=str(self._path), error=error.strerror)

    def _open(self, path: Path, more: int) -> None:
        if self._descriptor >= 0:
            if self._size + more <= self._max_bytes and self._is_current(path):
                return
            if self._size + more > self._max_bytes and self._is_current(path):
                path.replace(path.with_name(f"{path.name}.1"))
            self.close()
        # O_NONBLOCK: a FIFO that nobody reads is refused in place of waited for.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(path, flags, 0o644)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            # Rotation would rename /dev/null.
            raise OSError(errno.EINVAL, "not a regular file")
        self._size = status.st_size
        self._identity = (status.st_dev, status.st_ino)

    def _is_current(self, path: Path) -> bool:
        """Whether the open file is still the one at the path (logrotate may have moved it)."""
        try:
            status = path.lstat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
