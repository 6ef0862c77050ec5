"""What a scenario does to NICs of the lab, all of it at the switch, where a cable or a port would fail."""

from fabricpulse.lab import Lab
from fabricpulse.lab.faults import Fault


class NicFaults:
    """Called from any thread, for one NIC at a time."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._losses: dict[tuple[str, str], Fault] = {}

    def link(self, host: str, device: str, up: bool) -> None:
        """Pulls a NIC's cable, and plugs it in again: the switch's end goes down, the host's end loses its carrier."""
        self._lab.host(host).nic(device).switch_port.set_up(up)

    def lose(self, host: str, device: str, percent: float) -> None:
        """Drops a share of the packets towards a NIC; 0 ends it."""
        before = self._losses.pop((host, device), None)
        if before is not None:
            before.undo()
        if percent > 0:
            self._losses[host, device] = self._lab.host(host).nic(device).loss(percent, way="rx")
