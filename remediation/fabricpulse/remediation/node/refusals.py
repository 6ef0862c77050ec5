"""Why this host does not do what a receiver wants. The receiver has checked as well, with older data."""

import time
from pathlib import Path

from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.intake import Intake
from fabricpulse.remediation.node.limits import LocalLimits
from fabricpulse.remediation.node.local_host import LocalHost
from fabricpulse.remediation.protocol import DesiredNic, LaneOrder


class Refusals:
    """Of one host: its limits, a pause, what has expired, what it lacks."""

    def __init__(self, config: NodeConfig, intake: Intake, host: LocalHost) -> None:
        self._config = config
        self._intake = intake
        self._host = host
        self._limits = LocalLimits(config)

    def of_nic(self, nic: DesiredNic) -> str:
        """Why this host does not take the NIC out, or ""."""
        if nic.desired != "avoid":
            return ""
        if paused := self._paused_here():
            return paused
        if time.time() > self._intake.waiting.get(nic.op_id, float("inf")):
            return "it has expired before it was carried out"
        if self._host.has_not(nic.device):
            return f"this host has no NIC {nic.device}: neither the kernel, nor a job, nor the mesh knows it"
        nics = self._host.nics()
        if reason := self._limits.refusal(nic, self._intake.desired, nics, time.monotonic()):
            return reason
        return self._host.survey.refusal(nic.device, self._config.min_fraction_in_service)

    def of_lane(self, order: LaneOrder) -> str:
        """Why this host does not change the lane, or ""; then it counts."""
        if paused := self._paused_here():
            return paused
        if time.time() > self._intake.orders_end:
            return "it has expired before it was carried out"
        return self._limits.lane_refusal(order, time.monotonic())

    def took(self) -> None:
        """Counts a failover that is carried out."""
        self._limits.took(time.monotonic())

    def _paused_here(self) -> str:
        """Why nothing is done on this host, or "". A file of which it is not known whether it is there counts."""
        if not self._config.pause_file:
            return ""
        try:
            Path(self._config.pause_file).stat()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as error:
            return (
                f"paused on this host: cannot tell whether {self._config.pause_file} exists: {error.strerror}"
            )
        return f"paused on this host by {self._config.pause_file}"
