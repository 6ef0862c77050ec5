"""Bytes that the jobs of a host have carried: counters of processes that come and go, added up. Pure."""

from fabricpulse.remediation.node.survey import Survey, carried_bytes


class CarriedBytes:
    """total : bytes over all NICs, both directions, since the start. at_s : when that was counted."""

    def __init__(self) -> None:
        self.total = 0.0
        self.at_s = 0.0
        self._before: dict[tuple[str, str], int] = {}

    def count(self, survey: Survey, now_s: float) -> None:
        """Adds what was carried since the last time. A process that is new counts from now on, so does a NIC of one
        that begins again from zero."""
        seen = {
            (name, device): count
            for name, status in survey.processes.items()
            for device, count in carried_bytes(status).items()
        }
        for key, count in seen.items():
            self.total += max(0, count - self._before.get(key, count))
        self._before, self.at_s = seen, now_s
