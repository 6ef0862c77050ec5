"""The file of the clock page: taken over from the previous sidecar, and recreated when it was deleted."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync._heartbeat import Heartbeat
from fabricpulse.core.log import get_logger
from fabricpulse.core.run_dir import write_refused
from fabricpulse.core.shm.clock_page import ClockPage, ClockPageWriter, ClockStatus

log = get_logger(__name__)


class PageFile:
    """The clock page at `path`. shown : what readers see there, at first what the previous sidecar has left.

    Raises UserError when it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._writer = ClockPageWriter(path)
        except OSError as error:
            raise write_refused("the clock page", path, error) from error
        self._refused = ""
        self.shown = self._writer.in_force
        self._heartbeat, self._granted = Heartbeat(self._writer.watched_until_ns), (1, 0)
        self._followed: tuple[NDArray[np.uint64], int] | None = None

    @property
    def contradictions(self) -> int:
        """How often the engine that is followed has contradicted the page."""
        return int(self._followed[0][1]) if self._followed is not None else 0

    def watch_until(self, raw_ns: int, contradictions: int) -> None:
        """Until then, and while this process lives, the page may be synchronized; but not if there are now more than
        these `contradictions`, which have been handled.
        """
        self._granted = raw_ns, contradictions
        self._heartbeat.go_on_until(raw_ns, contradictions)

    def follow(self, counts: NDArray[np.uint64], interval_ns: int) -> None:
        """And only while an engine measures, and contradicts nothing (Heartbeat.follow)."""
        self._followed = counts, interval_ns
        self._heartbeat.follow(counts, interval_ns)

    def watched(self, raw_ns: int) -> bool:
        """Whether readers see a page at `raw_ns` that is not ahead of its heartbeat."""
        return self._writer.watched_until_ns[0] > raw_ns

    def longest_silence_ns(self) -> int:
        """For how long what is followed stood still, at most, since the last call; 0: no longer than it may."""
        return self._heartbeat.longest_silence_ns()

    def leave(self) -> None:
        """The page is kept no more."""
        self._heartbeat.stop()

    def begin(self, page: ClockPage) -> None:
        """Publishes the first page of this sidecar, whose line begins at once: it goes on with the one shown."""
        self._writer.write(page)
        self.shown = page

    def write(self, page: ClockPage) -> bool:
        """Publishes `page`, also to programs that have opened the file before it was removed.

        False when its line has begun before it could be published: readers go on with `shown`.
        """
        if self._writer.removed():
            self._renew()
        begins_ns = page.current.from_ns if self._continues(page) else None
        if not self._writer.write(page, begins_ns):
            return False
        self.shown = page
        return True

    def _continues(self, page: ClockPage) -> bool:
        """Whether `page` has another line than readers follow. Fleet time that is set anew begins at once."""
        return self.shown.status != ClockStatus.UNKNOWN and page.current != self.shown.current

    def _renew(self) -> None:
        """Makes the file again; where that cannot be, the next write tries again."""
        try:
            writer = ClockPageWriter(self._path)
            heartbeat = Heartbeat(writer.watched_until_ns)
        except OSError as error:
            if self._refused != (reason := error.strerror or str(error)):
                self._refused = reason
                log.error(
                    "clock page was deleted and cannot be recreated: programs that start now find no fleet time; "
                    "recreate the run directory, writable for this user (systemd-tmpfiles --create)",
                    path=str(self._path),
                    reason=reason,
                )
        else:
            self._refused = ""
            self._heartbeat.stop()
            self._writer, self._heartbeat = writer, heartbeat
            if self._followed is not None:
                heartbeat.follow(*self._followed)
            self._heartbeat.go_on_until(*self._granted)
            log.warning("clock page was deleted; recreated", path=str(self._path))
