"""When NICs were disconnected lately.

Rules ask of each NIC of a fleet, at each evaluation, whether it is disconnected or flaps. Nearly always none does: read
by Prometheus, the state and the counter of each NIC are a good part of what the rules cost. So the exporter says it of
NICs that were disconnected lately alone.

Pure: no I/O, no clock. Times are seconds of one clock.
"""

import math
from collections import deque

# For how long a state is said after it has changed: longer than rules look back for the last value when scrapes fail
# (lastValueWindow), so that they see the recovery. The same after the start, for what an earlier process said last.
STATE_KEPT_S = 600.0
# The longest window within which disconnects can be counted, and how many.
KEPT_S = 7200.0
MOST = 20

Nic = tuple[str, str]  # device, network


class RecentDisconnects:
    """started_s : when the daemon was started."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._changed_s: dict[Nic, float] = {}
        self._disconnected_s: dict[Nic, deque[float]] = {}

    def disconnected(self, nic: Nic, now_s: float) -> None:
        """The NIC has lost its peers."""
        self._changed_s[nic] = now_s
        self._disconnected_s.setdefault(nic, deque(maxlen=MOST)).appendleft(now_s)

    def connected(self, nic: Nic, now_s: float) -> None:
        """It exchanges probes again."""
        self._changed_s[nic] = now_s

    def is_recent(self, nic: Nic, now_s: float) -> bool:
        """Whether its state is of interest although it is connected."""
        return now_s - max(self._started_s, self._changed_s.get(nic, self._started_s)) < STATE_KEPT_S

    def ages(self, nic: Nic, now_s: float) -> list[float]:
        """How long ago it was disconnected, s, the last time first."""
        return [now_s - time_s for time_s in self._disconnected_s.get(nic, ()) if now_s - time_s < KEPT_S]

    def flapping_until(self, nic: Nic, window_s: float, threshold: int) -> float:
        """Until when `threshold` disconnects lie within `window_s` before; minus infinity of a NIC that had fewer.

        As the rule of FabricNicFlapping counts them. threshold : 1 to MOST. window_s : at most KEPT_S.
        """
        times_s = self._disconnected_s.get(nic, ())
        return times_s[threshold - 1] + window_s if len(times_s) >= threshold else -math.inf
