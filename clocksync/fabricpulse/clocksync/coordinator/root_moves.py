"""By how much the root of the timeline moved in the last rounds: what hosts knew of it before no longer holds. Pure."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.wire.messages import Quorum
from fabricpulse.clocksync.wire.report_table import Records

# Rounds that are remembered: those of a lease, and of the shortest round.
_REMEMBERED = 256


@dataclass
class RootMoves:
    """moves : moments of the last quorums, and by how much the root moved then, ns; earlier ones are unknown. root :
    the last one that counted.
    """

    moves: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    root: str = ""

    def add(self, latest: Quorum | None, quorum: Quorum, moved_ns: float) -> None:
        """In the solve that made `quorum` out of what hosts knew of the `latest`."""
        if not self.moves:
            self.moves.append((_moment_s(latest), 0.0))
        self.moves.append((max(quorum.moment_s, self.moves[-1][0]), moved_ns))

    def missed_ns(self, rows: Records, latest: Quorum | None) -> NDArray[np.float64]:
        """By how much the root may have moved since the round that each host's line is of, by the quorum that it names.

        Moments are whole seconds: what moved in the second of that round counts, too. A coordinator that was just
        started knows of no move before the `latest` quorum that hosts name.
        """
        moments, by_ns = np.array(self.moves or [(_moment_s(latest), 0.0)], np.float64).T
        since = np.append(np.cumsum(by_ns[::-1])[::-1], 0.0)
        named = rows["quorum_s"]
        return np.where(named >= moments[0], since[np.searchsorted(moments, named)], np.inf)


def _moment_s(quorum: Quorum | None) -> int:
    return -1 if quorum is None else quorum.moment_s
