"""Counting link flaps exactly.

Theory of operation. The kernel counts each loss and each return of a carrier (carrier_down_count, carrier_up_count)
and puts both counts into every link message. So messages give *when*, and the counts give *how often*: a message that
was lost, merged or never sent (the exporter was not running, the socket overran) leaves a difference of more than
one in the counts. A flap is never counted from the message itself.

The exported total is `offset + kernel count`: `offset` carries what an earlier incarnation of the netdev has counted
(driver reload, reboot with kept state). The kernel count begins when the netdev does, so the total includes the time
before the exporter started.

Two tables decide. `FlapTracker._change` says what an observation is about its link: the first of it, its removal, a
netdev made anew under its name, an old message, nothing new, or changed counts. `COUNT_CHANGES` says what these
mean: which transitions there are, and what becomes of the begin of the outage.

Pure: no I/O, no clock. Times are seconds on the host's clock.
"""

import enum
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Source = Literal["event", "poll", "start", "resync"]
Kind = Literal["down", "up", "missed", "added", "removed", "recreated"]


# Upper bounds of the histogram of outages, seconds.
OUTAGE_BOUNDS_S = (0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
# Links that are gone and still remembered, for their return. A host that runs containers makes and removes links all
# day under names that never come back; a NIC comes back within minutes.
ABSENT_MAX = 256


@dataclass(frozen=True)
class Observation:
    """What a link looks like. up_count, down_count : the kernel's, or None where it has none.

    source : how it was seen: "event" as it happened, "poll" within a poll interval, "start" and "resync" at an unknown
    time before.
    """

    link: str
    ifindex: int
    carrier: bool
    up_count: int | None
    down_count: int | None
    source: Source
    removed: bool = False


@dataclass(frozen=True)
class Transition:
    """A change of a link.

    count : how many of them (`missed`: downs without a known time). down_s : length of the outage that an `up` ends,
    None if its begin was not seen.
    """

    link: str
    kind: Kind
    time_s: float
    source: Source
    count: int = 1
    down_s: float | None = None


class Change(enum.Enum):
    """What an observation is about its link."""

    FIRST = enum.auto()
    REMOVED = enum.auto()
    RECREATED = enum.auto()
    STALE = enum.auto()
    COUNTS = enum.auto()


class Outage(enum.Enum):
    """What changed counts do to the begin of an outage."""

    KEPT = enum.auto()
    BEGINS = enum.auto()
    ENDS = enum.auto()
    UNKNOWN = enum.auto()


@dataclass(frozen=True)
class CountChange:
    """What changed counts mean.

    reported : the transition that was seen, if any. is_timed : whether it is one of the downs counted, so that its
    time is known; the others are `missed`.
    """

    reported: Literal["down", "up"] | None
    outage: Outage
    is_timed: bool = False


# (seen as it happened, carrier now, downs counted, ups counted) -> what it means. Only the last of the changes is the
# one that was seen: a down if the link is down now, else an up, which ends an outage that was seen to begin only if
# nothing went down in between.
COUNT_CHANGES: dict[tuple[bool, bool, bool, bool], CountChange] = {
    # timely, carrier, downs, ups
    (True, False, True, False): CountChange("down", Outage.BEGINS, is_timed=True),
    (True, False, True, True): CountChange("down", Outage.BEGINS, is_timed=True),
    (True, False, False, True): CountChange(None, Outage.KEPT),
    (True, True, False, True): CountChange("up", Outage.ENDS),
    (True, True, True, True): CountChange("up", Outage.UNKNOWN),
    (True, True, True, False): CountChange(None, Outage.KEPT),
    (False, False, True, False): CountChange("down", Outage.UNKNOWN),
    (False, False, True, True): CountChange("down", Outage.UNKNOWN),
    (False, False, False, True): CountChange(None, Outage.KEPT),
    (False, True, False, True): CountChange("up", Outage.UNKNOWN),
    (False, True, True, True): CountChange("up", Outage.UNKNOWN),
    (False, True, True, False): CountChange(None, Outage.KEPT),
}


@dataclass
class LinkState:
    """All that is kept of one link; field names are those of the state file."""

    ifindex: int = 0
    boot_id: str = ""
    carrier: bool = False
    present: bool = False
    up_count: int = 0
    down_count: int = 0
    up_offset: int = 0
    down_offset: int = 0
    unobserved: int = 0
    down_since_s: float | None = None
    last_transition_s: float | None = None
    flap_counts: list[int] = field(default_factory=list)
    flap_seconds: float = 0.0

    @property
    def downs(self) -> int:
        """Times the link has gone down."""
        return self.down_offset + self.down_count

    @property
    def ups(self) -> int:
        """Times the link has come up."""
        return self.up_offset + self.up_count


class FlapTracker:
    """The links of one host.

    bounds : upper bounds of the histogram of outages, seconds. boot_id : changes when the kernel's counts begin anew.
    links : earlier state, by name of the link.
    """

    def __init__(
        self, bounds: Sequence[float], boot_id: str, links: dict[str, LinkState] | None = None
    ) -> None:
        self._bounds = tuple(bounds)
        self._boot_id = boot_id
        self.links: dict[str, LinkState] = links if links is not None else {}
        for state in self.links.values():
            state.present = False
            if len(state.flap_counts) != len(self._bounds) + 1:
                state.flap_counts = [0] * (len(self._bounds) + 1)

    def present(self) -> dict[str, LinkState]:
        """The links that exist now."""
        # A list first: a scrape reads this on another thread, while a link may appear.
        return {name: state for name, state in list(self.links.items()) if state.present}

    def observe(self, seen: Observation, now_s: float) -> list[Transition]:
        """Takes one observation in; returns the transitions, oldest first."""
        state = self.links.get(seen.link)
        if state is None and not seen.removed:
            state = self._renamed(seen)
        change = self._change(state, seen)
        if state is None or change is Change.FIRST:
            return self._first(seen, now_s) if change is Change.FIRST else []
        if change is Change.STALE:
            return []
        if change is Change.REMOVED:
            return self._removed(state, seen, now_s)
        added = not state.present
        state.present = True
        if change is Change.RECREATED:
            return self._recreated(state, seen, now_s)
        found: list[Transition] = []
        if added and seen.source == "event":
            found.append(Transition(seen.link, "added", now_s, seen.source))
        return found + self._count_change(state, seen, now_s)

    def _change(self, state: LinkState | None, seen: Observation) -> Change:
        """What the observation is about its link; the first line that fits.

        The counts of a netdev never go back. While it is known to exist a lower count is an old message (a poll
        overtakes the socket's queue); when nobody was watching, it is another netdev with the old index.
        """
        if state is None:
            return Change.STALE if seen.removed else Change.FIRST
        is_other = state.ifindex != seen.ifindex
        if seen.removed:
            return Change.STALE if is_other or not state.present else Change.REMOVED
        if is_other or state.boot_id != self._boot_id:
            return Change.RECREATED
        if self._is_lower(state, seen):
            return Change.STALE if state.present else Change.RECREATED
        return Change.COUNTS

    def _count_change(self, state: LinkState, seen: Observation, now_s: float) -> list[Transition]:
        up_count, down_count = self._counts(state, seen)
        downs, ups = down_count - state.down_count, up_count - state.up_count
        was_up = state.carrier
        state.up_count, state.down_count, state.carrier = up_count, down_count, seen.carrier
        if not downs and not ups:
            return []
        timely = seen.source in ("event", "poll")
        change = COUNT_CHANGES[timely, seen.carrier, downs > 0, ups > 0]
        found: list[Transition] = []
        missed = downs - change.is_timed
        if missed:
            state.unobserved += missed
            found.append(Transition(seen.link, "missed", now_s, seen.source, count=missed))
        if timely:
            state.last_transition_s = now_s
        length = None
        if change.outage is Outage.ENDS and not was_up and state.down_since_s is not None:
            length = max(0.0, now_s - state.down_since_s)
            state.flap_counts[bisect_left(self._bounds, length)] += 1
            state.flap_seconds += length
        if change.outage is not Outage.KEPT:
            state.down_since_s = now_s if change.outage is Outage.BEGINS else None
        if change.reported is not None:
            found.append(Transition(seen.link, change.reported, now_s, seen.source, down_s=length))
        return found

    def _removed(self, state: LinkState, seen: Observation, now_s: float) -> list[Transition]:
        state.present = False
        # To the end: the dictionary is in order of leaving.
        self.links[seen.link] = self.links.pop(seen.link)
        self._forget()
        return [Transition(seen.link, "removed", now_s, seen.source)]

    def _forget(self) -> None:
        """Drops the links that have been gone for longest, beyond ABSENT_MAX."""
        absent = [name for name, state in self.links.items() if not state.present]
        for name in absent[: max(0, len(absent) - ABSENT_MAX)]:
            del self.links[name]

    def _first(self, seen: Observation, now_s: float) -> list[Transition]:
        downs = seen.down_count or 0
        self.links[seen.link] = LinkState(
            ifindex=seen.ifindex,
            boot_id=self._boot_id,
            carrier=seen.carrier,
            present=True,
            up_count=seen.up_count or 0,
            down_count=downs,
            unobserved=downs,
            flap_counts=[0] * (len(self._bounds) + 1),
        )
        return [Transition(seen.link, "added", now_s, seen.source)] if seen.source == "event" else []

    @staticmethod
    def _is_lower(state: LinkState, seen: Observation) -> bool:
        if seen.down_count is None or seen.up_count is None:
            return False
        return seen.down_count < state.down_count or seen.up_count < state.up_count

    def _renamed(self, seen: Observation) -> LinkState | None:
        """The state of a link that goes by a new name now."""
        for name, state in self.links.items():
            if state.present and state.ifindex == seen.ifindex and seen.ifindex > 0:
                del self.links[name]
                self.links[seen.link] = state
                return state
        return None

    def _recreated(self, state: LinkState, seen: Observation, now_s: float) -> list[Transition]:
        state.down_offset += state.down_count
        state.up_offset += state.up_count
        state.down_count, state.up_count = seen.down_count or 0, seen.up_count or 0
        state.unobserved += state.down_count
        state.ifindex, state.boot_id, state.carrier = seen.ifindex, self._boot_id, seen.carrier
        state.down_since_s = None
        return [Transition(seen.link, "recreated", now_s, seen.source)]

    @staticmethod
    def _counts(state: LinkState, seen: Observation) -> tuple[int, int]:
        """The counts; of a kernel or a port that does not report them, those that follow from the carrier."""
        if seen.up_count is not None and seen.down_count is not None:
            return seen.up_count, seen.down_count
        went_up, went_down = seen.carrier and not state.carrier, state.carrier and not seen.carrier
        return state.up_count + went_up, state.down_count + went_down
