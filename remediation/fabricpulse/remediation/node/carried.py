"""Bytes that the jobs of a host have carried: counters of processes that come and go, added up. Pure."""

from fabricpulse.remediation.node.survey import Survey, carried_bytes

# Of one NIC, both directions, as one process counts: ten times the fastest NIC. A process may say what it likes, and a
# sum beyond what a report may have would silence the host.
_MOST_BYTES_S = 1e12
_MOST_TOTAL = 1e23


class CarriedBytes:
    """total : bytes over all NICs, both directions, since the start or the last return to 0. at_s : when that was
    counted."""

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
        most = _MOST_BYTES_S * max(0.0, now_s - self.at_s)
        for key, count in seen.items():
            self.total += min(most, max(0, count - self._before.get(key, count)))
        if self.total > _MOST_TOTAL:
            self.total = 0.0
        self._before, self.at_s = seen, now_s
