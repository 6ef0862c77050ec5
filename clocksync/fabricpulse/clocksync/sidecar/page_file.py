"""The file of the clock page: taken over from the sidecar before, and made again when somebody removes it."""

from pathlib import Path

from fabricpulse.core.log import get_logger
from fabricpulse.core.run_dir import write_refused
from fabricpulse.core.shm.clock_page import ClockPage, ClockPageReader, ClockPageWriter
from fabricpulse.core.shm.mapping import LayoutError

log = get_logger(__name__)


class PageFile:
    """The clock page at `path`. Raises UserError when it cannot be made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._writer = ClockPageWriter(path)
        except OSError as error:
            raise write_refused("the clock page", path, error) from error
        self._refused = ""

    def write(self, page: ClockPage) -> None:
        """Publishes `page`, also to programs that have opened the file before somebody removed it."""
        if self._writer.gone():
            self._renew()
        self._writer.write(page)

    def _renew(self) -> None:
        """Makes the file again; where that cannot be, the next write tries again."""
        try:
            self._writer = ClockPageWriter(self._path)
        except OSError as error:
            if self._refused != (reason := error.strerror or str(error)):
                self._refused = reason
                log.error(
                    "somebody removed the clock page, and it cannot be made again: programs that start now find no "
                    "fleet time; make the run directory again, writable for this user (systemd-tmpfiles --create)",
                    path=str(self._path),
                    reason=reason,
                )
        else:
            self._refused = ""
            log.warning("somebody removed the clock page: here is another", path=str(self._path))


def page_of_before(path: Path) -> ClockPage | None:
    """The page of the sidecar that was here before, if it left one that can be read."""
    try:
        reader = ClockPageReader(path)
    except (OSError, LayoutError):
        return None
    try:
        return reader.read()
    except (TimeoutError, ValueError):
        return None
    finally:
        reader.close()
