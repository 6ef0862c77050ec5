"""The receiver's clock."""

import time


class MonotonicWallClock:
    """Seconds since 1970 that never jump and never go back, also not behind what the journal has already seen.

    Holds, cooldowns and breakers measure durations; a wall clock that is set while the receiver runs must neither end
    them nor stretch them. It follows the wall clock at each start.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        self._origin = max(time.time(), not_before) - time.monotonic()

    def __call__(self) -> float:
        return self._origin + time.monotonic()

    def behind_wall(self) -> float:
        """Wall clock minus this clock, in seconds: how much the wall clock was stepped since the start."""
        return time.time() - self()
