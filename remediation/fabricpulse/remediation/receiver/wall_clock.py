"""The receiver's clock."""

import time

from fabricpulse.core.log import get_logger
from fabricpulse.remediation.receiver.state.transaction import Transaction

log = get_logger(__name__)

# A journal that is further ahead than this was written by a clock that was wrong.
SANE_AHEAD_S = 3600.0
_NOTED_S = 1.0


def follow_wall(transaction: Transaction, ahead_s: float) -> None:
    """Notes how far people's clock is ahead, when that has changed by more than a second."""
    if abs(ahead_s - transaction.wall_ahead_s) > _NOTED_S:
        transaction.set(wall_ahead_s=ahead_s)


class MonotonicWallClock:
    """Seconds since 1970 that never jump and never go back, also not behind what the journal has already seen.

    Holds, cooldowns and breakers measure durations; a wall clock that is set while the receiver runs must neither end
    them nor stretch them. It follows the wall clock at each start. A journal from far in the future is not followed:
    the wall clock was wrong then, and the state is rebased (see `rebase`).
    """

    def __init__(self, not_before: float = 0.0, wall: float | None = None) -> None:
        wall = time.time() if wall is None else wall
        self.journal_ahead_s = max(0.0, not_before - wall)
        if self.journal_ahead_s > SANE_AHEAD_S:
            log.error(
                "journal is from the future: the clock was wrong when it was written, or is wrong now",
                ahead_s=round(self.journal_ahead_s),
            )
            not_before = wall
        self._origin = max(wall, not_before) - time.monotonic()

    def __call__(self) -> float:
        return self._origin + time.monotonic()

    def behind_wall(self) -> float:
        """Wall clock minus this clock, in seconds: how much the wall clock was stepped since the start."""
        return time.time() - self()
