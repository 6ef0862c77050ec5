"""Hosts that report evidence and belong to no fleet that the coordinator knows of: how many are taken. Pure.

Without a token anybody who reaches the coordinator may report, under as many names as he likes, and each host costs
memory for as long as its evidence counts. A fleet whose coordinator knows no members is one of such hosts, too, and
must have room.
"""

from collections.abc import Callable

# Of all such hosts: some 2,000 with ten peers for each of ten NICs, below 200 MB in all.
MOST_EDGES = 200_000
# What a host costs beside its edges, as edges.
_HOST = 16
# So long after its last report the diagnosis knows a host, and somewhat longer.
KEPT_S = 130.0
_PRUNE_S = 10.0


class HostsOutsideFleet:
    """is_member : whether a host belongs to the fleet, by name. Moments are monotonic seconds."""

    def __init__(self, is_member: Callable[[str], bool], most_edges: int = MOST_EDGES) -> None:
        self._is_member = is_member
        self._most = most_edges
        self._hosts: dict[str, tuple[int, float]] = {}  # edges, and when it last reported
        self._edges = 0
        self._pruned_s = 0.0

    def admits(self, host: str, edges: int | None, now_s: float) -> bool:
        """Whether a report is taken. edges : that it comes with; None where it has those that are known."""
        before = self._hosts.get(host)
        if self._is_member(host):
            if before is not None:
                self._drop(host)
            return True
        if edges is None:
            if before is not None:
                self._hosts[host] = before[0], now_s
            return True  # without edges it becomes nothing that is not known
        if now_s - self._pruned_s >= _PRUNE_S:
            self._pruned_s = now_s
            for other in [name for name, (_, last_s) in self._hosts.items() if now_s - last_s > KEPT_S]:
                self._drop(other)
            before = self._hosts.get(host)
        cost = _HOST + edges
        if self._edges - (before[0] if before else 0) + cost > self._most:
            return False
        if before is not None:
            self._drop(host)
        self._hosts[host] = cost, now_s
        self._edges += cost
        return True

    def _drop(self, host: str) -> None:
        self._edges -= self._hosts.pop(host)[0]
