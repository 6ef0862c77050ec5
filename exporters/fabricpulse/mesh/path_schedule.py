"""When the path of which flow is traced, and what is accepted from a trace. Pure."""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Hops = tuple[str, ...]
"""Addresses of the switches that a flow crosses, "" for one that does not answer."""

# Answers are lost, and switches answer only so often: a path with gaps is tried so many times in all before it is
# taken for what it is.
_TRIES = 3
# For so long, and for as long as a round of traces takes, a route that has changed does not cause another round; twice
# as long each time, up to this share of `again_s`: where switches choose another way for each packet each trace shows
# one. A cable that dies comes back, too.
_NOT_AGAIN_S, _MOST_NOT_AGAIN = 20.0, 0.25


@dataclass
class _Flow:
    hops: Hops = ()
    tries: int = 0
    traced_s: float = 0.0
    before_s: float = 0.0  # the trace before that one

    @property
    def settled(self) -> bool:
        """Whether more tries would show no more."""
        return self.tries >= _TRIES or (self.tries > 0 and bool(self.hops) and "" not in self.hops)


def swept(edges: Sequence[int], ports: int) -> list[tuple[int, int]]:
    """The flows of edges with so many source ports each, port by port: after the first round the main path of every
    peer is known.
    """
    return [(edge, port) for port in range(ports) for edge in edges]


class PathSchedule(Generic[K]):
    """Of one NIC: one trace each `pause_s` while paths are unknown. Then each flow again after `again_s`, spread over
    that time, so that a route that has changed shows on one of them soon; all of them are traced again then.

    flows : in the order of the first round. known : known paths of some.
    Moments are monotonic seconds.
    """

    def __init__(
        self,
        flows: Iterable[K],
        pause_s: float,
        again_s: float,
        known: Mapping[K, Hops] | None = None,
    ) -> None:
        self._flows = {key: _Flow() for key in flows}
        for key, hops in (known or {}).items():
            self._flows[key] = _Flow(hops, 1)
        self._pause_s = pause_s
        self._again_s = again_s
        self._order = self._round()
        self._next_s = 0.0
        self._now_s = self._all_again_s = -math.inf
        self._not_again_s = 0.0

    def follow(self, flows: Iterable[K]) -> None:
        """These are its flows from now on. What is known of those that stay is kept."""
        self._flows = {key: self._flows.get(key) or _Flow() for key in flows}
        self._order = self._round()
        self._next_s = min(self._next_s, self._now_s + self._pause_s)

    def _round(self) -> Iterator[K]:
        while self._flows:
            yield from list(self._flows)

    def due(self, now_s: float) -> K | None:
        """The flow to trace now, if any."""
        self._now_s = now_s
        if now_s < self._next_s or not self._flows:
            return None
        for _ in range(len(self._flows)):
            key = next(self._order)
            flow = self._flows[key]
            if not flow.settled or now_s - flow.traced_s >= self._again_s:
                return self._begun(key, now_s)
        # All are known.
        pace_s = self._again_s / len(self._flows)
        last_s = max(flow.traced_s for flow in self._flows.values())
        if now_s - last_s < pace_s:
            self._next_s = last_s + pace_s
            return None
        return self._begun(min(self._flows, key=lambda key: self._flows[key].traced_s), now_s)

    def refused(self, key: K) -> None:
        """What was due could not be traced then, as its source port was in use, for another trace perhaps."""
        if (flow := self._flows.get(key)) is not None:
            flow.traced_s = flow.before_s

    def _begun(self, key: K, now_s: float) -> K:
        flow = self._flows[key]
        flow.before_s, flow.traced_s = flow.traced_s, now_s
        self._next_s = now_s + self._pause_s
        return key

    def traced(self, key: K, hops: Hops) -> bool:
        """Takes the result of a trace. Returns whether the known path has changed.

        A switch that fell silent has not gone: a path that loses packets loses these too, and the faulty one is the
        last of which its path may be forgotten. So a trace with the same switches and further gaps changes nothing.
        """
        flow = self._flows.get(key)
        if flow is None:
            return False
        flow.tries += 1
        merged = merge(flow.hops, hops)
        if merged == flow.hops:
            return False
        if contradicts(flow.hops, hops):
            self._route_changed(flow)
        flow.hops, flow.tries = merged, 1 if flow.hops and merged == hops else flow.tries
        return True

    def _route_changed(self, flow: _Flow) -> None:
        """Of this flow: others take another route, too, perhaps."""
        since_s = self._now_s - self._all_again_s
        if since_s < self._not_again_s:
            return
        shortest_s = max(_NOT_AGAIN_S, self._pause_s * len(self._flows))
        before_s = self._not_again_s if since_s < self._again_s else 0.0
        self._not_again_s = max(min(2 * before_s, _MOST_NOT_AGAIN * self._again_s), shortest_s)
        self._all_again_s = self._now_s
        self._next_s = min(self._next_s, self._now_s + self._pause_s)
        for other in self._flows.values():
            if other is not flow:
                other.traced_s = -math.inf

    def known(self) -> dict[K, Hops]:
        """The hops of each flow of which some are known."""
        return {key: flow.hops for key, flow in self._flows.items() if flow.hops}


def contradicts(before: Hops, after: Hops) -> bool:
    """Whether they name different switches for one place."""
    return any(a and b and a != b for a, b in zip(before, after, strict=False))


def merge(before: Hops, after: Hops) -> Hops:
    """Both as one path where they contradict each other nowhere; else `after`, which is newer."""
    if contradicts(before, after):
        return after
    longer = before if len(before) >= len(after) else after
    both = tuple(b or a for a, b in zip(before, after, strict=False))
    return both + longer[len(both) :]
