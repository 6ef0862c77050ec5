"""The kernel log as it is written, from /dev/kmsg."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

from fabricpulse.core.log import get_logger

log = get_logger(__name__)

_MAX_RECORD = 8192
_BATCH = 128


class KmsgReader:
    """Calls `on_record` with each record written from `start` on, `on_overrun` when records were lost."""

    def __init__(
        self, path: Path, on_record: Callable[[bytes], None], on_overrun: Callable[[], None]
    ) -> None:
        self._path = path
        self._on_record = on_record
        self._on_overrun = on_overrun
        self._descriptor = -1

    def start(self) -> None:
        """Raises OSError without the device or without permission (CAP_SYSLOG where dmesg_restrict is set)."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.lseek(descriptor, 0, os.SEEK_END)
            asyncio.get_running_loop().add_reader(descriptor, self._readable)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _readable(self) -> None:
        for _ in range(_BATCH):
            try:
                record = os.read(self._descriptor, _MAX_RECORD)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:
                    self._on_overrun()
                    continue
                if error.errno == errno.EINVAL:
                    # A record longer than the buffer; the kernel has gone past it.
                    continue
                log.error("the kernel log cannot be read any longer", error=str(error))
                self.stop()
                return
            if not record:
                self.stop()
                return
            self._on_record(record)

    def stop(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
