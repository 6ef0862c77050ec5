"""Which of its coordinators a sidecar follows, and the last quorum that it was part of. Pure.

All coordinators get all reports, so that each of them has the whole fleet; but some may reach only a part of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fabricpulse.clocksync.wire.limits import NAMED_S
from fabricpulse.clocksync.wire.messages import Quorum, RoundReply
from fabricpulse.clocksync.wire.quorums import merge_quorums

_NEVER_S = -1e9
# How long a host without fleet time leaves another coordinator's alone, while the first has none for it yet.
_PATIENCE_S = 1.0
# How long a host keeps to a root that no coordinator goes on with: until its word for it counts no more. Moments are
# whole seconds.
_KEEP_S = NAMED_S + 1.0


@dataclass
class CoordinatorHealth:
    """The state of one coordinator as this sidecar sees it.

    up : it answered the last report. answered_s, placed_s : when it last did, and with a line. placed_since_s : when it
    first did. no_quorum : its last solve did not speak for the fleet. quorum : of its last one that did, with this
    host; quorum_s : when it first said that one.
    """

    up: bool = False
    answered_s: float = _NEVER_S
    placed_s: float = _NEVER_S
    placed_since_s: float = _NEVER_S
    no_quorum: bool = False
    quorum: Quorum | None = None
    quorum_s: float = _NEVER_S

    def answered(self, reply: RoundReply, now_s: float) -> None:
        """Takes its answer to a report."""
        self.up, self.answered_s, self.no_quorum = True, now_s, reply.no_quorum
        if reply.line is None:
            return
        if self.placed_s == _NEVER_S:
            self.placed_since_s = now_s
        self.placed_s = now_s
        if not reply.no_quorum and reply.quorum is not None and reply.quorum != self.quorum:
            self.quorum, self.quorum_s = reply.quorum, now_s


def select_coordinator(
    coordinators: Sequence[CoordinatorHealth],
    now_s: float,
    follow_s: float,
    *,
    placed: bool,
    named: Quorum | None,
) -> CoordinatorHealth | None:
    """The first that placed this host within `follow_s` and speaks for the fleet, if there is one with the root that
    this host names (NamedQuorum); without one the first that placed it.

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
    fleet = [one for one in lately if not one.no_quorum]
    same = [one for one in fleet if named and one.quorum and one.quorum.root == named.root]
    return next(iter(same or fleet or lately), None)


def left_out(coordinators: Sequence[CoordinatorHealth], now_s: float, follow_s: float) -> bool:
    """Whether one of which this host was a part speaks for the fleet without it: then its neighbours are no fleet.

    All of them lost the others' probes, and would go on together as synchronized. One that does not answer, or hears
    too few to speak for anybody, says nothing of them.
    """
    return all(now_s - one.placed_s > follow_s for one in coordinators) and any(
        now_s - one.answered_s <= follow_s and not one.no_quorum and one.quorum is not None
        for one in coordinators
    )


@dataclass
class NamedQuorum:
    """What this host was last part of, by the word of all coordinators: it names that, with its root, in each report.

    Coordinators count that as a vote for the root (solve.quorum). So a host has one root at a time: it leaves it for
    another only when nobody can count its word for the first any more. confirmed_s : when a coordinator last went on
    with it.
    """

    quorum: Quorum | None = None
    confirmed_s: float = _NEVER_S

    def take(self, coordinators: Sequence[CoordinatorHealth], now_s: float) -> None:
        """After a reply of one of them."""
        # By when they came: a moment that a wrong coordinator has put into the future would else be the last for ever.
        lately = [one.quorum for one in coordinators if one.quorum and now_s - one.quorum_s <= _KEEP_S]
        if (known := self.quorum) is not None:
            same = merge_quorums(quorum for quorum in lately if quorum.root == known.root)
            if same is not None and same.moment_s >= known.moment_s:
                self.quorum = same
                self.confirmed_s = now_s if same.moment_s > known.moment_s else self.confirmed_s
        if lately and now_s - self.confirmed_s > _KEEP_S:
            self.quorum, self.confirmed_s = merge_quorums(lately), now_s
