"""The agent's own limits: what it does not do to its host whatever a receiver says.

The receiver has guards; these hold for one that is broken, misconfigured or not ours. Returning a NIC is never refused.
"""

from collections import deque
from collections.abc import Collection, Mapping

from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.protocol import DesiredNic, LaneOrder


class LocalLimits:
    """Limits of one host, over the time that the agent runs."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._failovers: deque[float] = deque()
        self._lane_operations: deque[float] = deque()

    def refusal(
        self, nic: DesiredNic, desired: Mapping[str, DesiredNic], devices: Collection[str], now: float
    ) -> str:
        """Why the NIC must not be taken out now, "" if it may.

        desired : of all NICs, this one included. devices : of the host, as far as they are known. now : monotonic
        seconds.
        """
        if nic.desired != "avoid":
            return ""
        config = self._config
        if config.devices and nic.device not in config.devices:
            return f"{nic.device} is not in devices of this host's configuration"
        out = {name for name, other in desired.items() if other.desired == "avoid"} | {nic.device}
        known = set(devices) | set(config.devices) | out
        allowed = max(1, int(len(known) * (1 - config.min_fraction_in_service)))
        if len(out) > allowed:
            return f"{len(out)} of {len(known)} NICs would be out of service, {allowed} allowed on this host"
        while self._failovers and now - self._failovers[0] > config.failovers_window_s:
            self._failovers.popleft()
        if len(self._failovers) >= config.max_failovers:
            return f"{len(self._failovers)} failovers on this host within {config.failovers_window_s:.0f} s"
        return ""

    def lane_refusal(self, order: LaneOrder, now: float) -> str:
        """Why a lane must not be changed now, "" if it may, which counts. now : monotonic seconds."""
        config = self._config
        if config.devices and order.device not in config.devices:
            return f"{order.device} is not in devices of this host's configuration"
        while self._lane_operations and now - self._lane_operations[0] > config.failovers_window_s:
            self._lane_operations.popleft()
        if len(self._lane_operations) >= config.max_lane_operations:
            return (
                f"{len(self._lane_operations)} operations on lanes within {config.failovers_window_s:.0f} s"
            )
        self._lane_operations.append(now)
        return ""

    def took(self, now: float) -> None:
        """Counts a failover that is carried out."""
        self._failovers.append(now)
