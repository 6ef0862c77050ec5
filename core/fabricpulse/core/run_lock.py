"""A lock so that only one daemon of a kind uses a run directory: two would overwrite each other's files."""

import fcntl
import os
from pathlib import Path

from fabricpulse.core.errors import TemporaryError
from fabricpulse.core.run_dir import RUN_DIR_ENV, write_refused


class RunLock:
    """Holds `<run_dir>/<name>.lock`, or `<file>.lock`, until the process ends, however it ends (flock)."""

    def __init__(
        self, run_dir: Path, name: str, chosen_by: str = RUN_DIR_ENV, file: Path | None = None
    ) -> None:
        """name : of the command, such as "clocksync sidecar"; its last word names the file. chosen_by : what another
        directory is chosen with, for the error. file : that alone is locked, not the whole directory.

        Raises TemporaryError when another process holds it, UserError when the directory cannot be written.
        """
        locked, kind = (run_dir, "directory") if file is None else (file, "file")
        path = run_dir / f"{name.rsplit(maxsplit=1)[-1] if file is None else file.name}.lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise write_refused("the lock", path, error, chosen_by) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise TemporaryError(
                f"{locked} is in use by another fabricpulse {name} (process {holder or 'unknown'}): stop it, or give"
                f" this one a {kind} of its own with {chosen_by}"
            ) from error
        try:
            os.truncate(self._descriptor, 0)
            os.write(self._descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:
            os.close(self._descriptor)
            raise write_refused("the lock", path, error, chosen_by) from error

    def release(self) -> None:
        """Releases the lock."""
        os.close(self._descriptor)
