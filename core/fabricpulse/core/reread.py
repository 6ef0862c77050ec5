"""When files whose contents are in force are read again."""

import time
from collections.abc import Callable

from fabricpulse.core.files import FileStamp

Stamps = tuple[FileStamp, ...]
AGAIN_S = 1.0


class Reread:
    """Files are read again when they have changed, and after a failure each second until that is over.

    A read also fails where the process has no file descriptor left: once it has, the files are unchanged.
    """

    def __init__(self, stamps: Stamps, clock: Callable[[], float] = time.monotonic) -> None:
        """stamps : of the files, taken before they were read."""
        self._clock = clock
        self._in_force = stamps
        self._failed: Stamps | None = None
        self._again_at = 0.0

    def is_due(self, stamps: Stamps) -> bool:
        """Whether to read them now. stamps : as they are now."""
        if stamps == self._in_force:
            return False
        return stamps != self._failed or self._clock() >= self._again_at

    def succeeded(self, stamps: Stamps) -> None:
        """They were read, and had these stamps before that."""
        self._in_force, self._failed = stamps, None

    def failed(self, stamps: Stamps) -> bool:
        """They could not be read; whether that is to be logged: once for each state of the files."""
        is_new = stamps != self._failed
        self._failed, self._again_at = stamps, self._clock() + AGAIN_S
        return is_new
