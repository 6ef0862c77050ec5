"""Which of its coordinators a sidecar follows, and the last quorum that it was part of. Pure.

All coordinators get all reports, so that each of them has the whole fleet; but some may reach only a part of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fabricpulse.clocksync.wire.messages import Quorum, RoundReply
from fabricpulse.clocksync.wire.quorums import merge_quorums

_NEVER_S = -1e9
# How long a host without fleet time leaves another coordinator's alone, while the first has none for it yet.
_PATIENCE_S = 1.0


@dataclass
class CoordinatorHealth:
    """The state of one coordinator as this sidecar sees it.

    up : it answered the last report. answered_s, placed_s : when it last did, and with a line. placed_since_s : when it
    first did. no_quorum : its last solve did not speak for the fleet. quorum : of its last one that did, with this
    host.
    """

    up: bool = False
    answered_s: float = _NEVER_S
    placed_s: float = _NEVER_S
    placed_since_s: float = _NEVER_S
    no_quorum: bool = False
    quorum: Quorum | None = None

    def answered(self, reply: RoundReply, now_s: float) -> None:
        """Takes its answer to a report."""
        self.up, self.answered_s, self.no_quorum = True, now_s, reply.no_quorum
        if reply.line is None:
            return
        if self.placed_s == _NEVER_S:
            self.placed_since_s = now_s
        self.placed_s = now_s
        if not reply.no_quorum and reply.quorum is not None:
            self.quorum = reply.quorum


def select_coordinator(
    coordinators: Sequence[CoordinatorHealth], now_s: float, follow_s: float, *, placed: bool
) -> CoordinatorHealth | None:
    """The first that placed this host within `follow_s` and speaks for the fleet; without one the first that placed it.

    placed : this host follows one that did. Until then it is the first that is up: two coordinators of a fleet that
    begins would begin two timelines. But where that waits for hosts that do not reach it, and another has begun with
    them, the other's timeline is the fleet's.
    """
    if not placed:
        up = [one for one in coordinators if one.up]
        if not up or up[0].placed_s > _NEVER_S:
            return up[0] if up else None
        begun = [one for one in up if _NEVER_S < one.placed_since_s <= now_s - _PATIENCE_S]
        return begun[0] if begun else up[0]
    lately = [one for one in coordinators if now_s - one.placed_s <= follow_s]
    return next((one for one in lately if not one.no_quorum), lately[0] if lately else None)


def left_out(coordinators: Sequence[CoordinatorHealth], now_s: float, follow_s: float) -> bool:
    """Whether one of which this host was a part speaks for the fleet without it: then its neighbours are no fleet.

    All of them lost the others' probes, and would go on together as synchronized. One that does not answer, or hears
    too few to speak for anybody, says nothing of them.
    """
    return all(now_s - one.placed_s > follow_s for one in coordinators) and any(
        now_s - one.answered_s <= follow_s and not one.no_quorum and one.quorum is not None
        for one in coordinators
    )


def last_quorum(coordinators: Sequence[CoordinatorHealth]) -> Quorum | None:
    """What this host was last part of, by the word of all coordinators: so the roots of two of them become one."""
    return merge_quorums(one.quorum for one in coordinators)
