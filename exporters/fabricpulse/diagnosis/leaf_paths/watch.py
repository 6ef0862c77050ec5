"""Which leaves have fewer live paths than their siblings, of a fleet that changes. Pure."""

import math
from collections.abc import Callable

from fabricpulse.diagnosis.flows.layout import Layout
from fabricpulse.diagnosis.leaf_paths.found import LeafPaths
from fabricpulse.diagnosis.leaf_paths.history import LeafHistory, Seen
from fabricpulse.diagnosis.leaf_paths.next_hops import next_hops
from fabricpulse.diagnosis.leaf_paths.siblings import compared

# A leaf that is whole is remembered as whole at this pace.
_AGAIN_S = 5.0


class LeafWatch:
    """Of one fleet."""

    def __init__(self) -> None:
        self._history = LeafHistory()
        self._seen: list[Seen] = []
        self._of = self._at_s = -math.inf
        self._found = LeafPaths()

    def update(
        self, layout: Layout, version: float, network_of: Callable[[str], str], now_s: float
    ) -> LeafPaths:
        """What holds now. version : of the layout, another number for another one. network_of : of host/device, "" for
        unknown.
        """
        if version != self._of:
            self._of, self._at_s = version, -math.inf
            self._seen = _seen(layout, network_of)
        if now_s - self._at_s >= _AGAIN_S:
            self._at_s = now_s
            self._found = self._history.update(self._seen, now_s)
        return self._found


def _seen(layout: Layout, network_of: Callable[[str], str]) -> list[Seen]:
    names = layout.names
    found = next_hops(layout.table)
    network = {
        leaf: network_of(names[nic])
        for leaf, nic in zip(found.leaf.tolist(), found.nic.tolist(), strict=True)
    }
    return [
        Seen(
            *(names[one.leaf], network[one.leaf], one.state, frozenset(names[hop] for hop in one.hops)),
            *(one.expected, one.siblings, tuple(names[hop] for hop in one.missing)),
        )
        for one in compared(found, lambda nic: network_of(names[nic]))
    ]
