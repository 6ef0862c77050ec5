"""The least one-way delay of each edge over a minute: what the coordinator learns the fabric's tree from. Pure."""

from fabricpulse.core.shm.clock_page import ClockStatus
from fabricpulse.diagnosis.wire.messages import LeastDelay
from fabricpulse.mesh.snapshot import Snapshot


class LeastDelays:
    """Gathers from the engine's snapshots. period_s : between two reports, 0 for none. window_s : latency.window_s."""

    def __init__(self, period_s: float, window_s: float) -> None:
        self._period_s, self._window_s = period_s, window_s
        self._first: Snapshot | None = None
        self._last: Snapshot | None = None
        self._begin_s = 0.0
        self._least: dict[int, int] = {}

    def add(self, snapshot: Snapshot, now_s: float) -> None:
        """One more snapshot; to be called at least once each window_s. Another configuration, a step of the host's
        clock, or fleet time that is lost or found begins anew. now_s : monotonic.
        """
        if not self._period_s:
            return
        first = self._first
        if first is None or _timeline(first) != _timeline(snapshot):
            # For so long the quantiles may cover what was before.
            self._restart(snapshot, now_s + 2 * self._window_s)
        if now_s < self._begin_s:
            return
        first = self._first or snapshot
        self._last = snapshot
        for number, edge in enumerate(snapshot.edges):
            if edge.window_count and edge.owd_count != first.edges[number].owd_count:
                self._least[number] = min(edge.owd_min_ns, self._least.get(number, edge.owd_min_ns))

    def due(self, now_s: float) -> list[LeastDelay]:
        """What to report now: nothing before the period is over."""
        if self._first is None or self._last is None or now_s - self._begin_s < self._period_s:
            return []
        first, last = self._first, self._last
        return [
            LeastDelay(number, last.edges[number].owd_count - first.edges[number].owd_count, least)
            for number, least in self._least.items()
        ]

    def taken(self, now_s: float) -> None:
        """The coordinator has what `due` returned."""
        if self._last is not None:
            self._restart(self._last, now_s)

    def _restart(self, snapshot: Snapshot, begin_s: float) -> None:
        self._first, self._last, self._begin_s = snapshot, None, begin_s
        self._least.clear()


def _timeline(snapshot: Snapshot) -> tuple[int, int, bool]:
    # In holdover it goes on: a sidecar that had no core for a moment makes every window shorter otherwise.
    known = snapshot.clock_status in (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER)
    return snapshot.generation, snapshot.clock_steps, known
