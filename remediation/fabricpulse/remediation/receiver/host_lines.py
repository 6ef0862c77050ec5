"""How much of the journal the reports of a host may fill. Pure.

Lines are kept for ever. A host whose agent lies can have a new one with each report: it holds NICs that nobody gave it,
it is well and ill by turns.
"""

from fabricpulse.remediation.receiver.model import Bucket

# So many lines at once, as after the loss of the receiver's journal, and so many a second from then on.
BURST = 1_000
LINES_PER_S = 1.0
# Hosts that are remembered; those that have their full burst again are not.
_MOST_HOSTS = 20_000


class HostLines:
    """One token bucket a host."""

    def __init__(self) -> None:
        self._hosts: dict[str, Bucket] = {}

    def take(self, host: str, lines: int, now: float) -> bool:
        """Whether a report of this host may write so many lines at `now`, which then count."""
        if not lines:
            return True
        left = self._left(self._hosts.get(host), now) - lines
        if left < 0:
            return False
        self._hosts[host] = Bucket(left, now)
        if len(self._hosts) > _MOST_HOSTS:
            self._hosts = {name: b for name, b in self._hosts.items() if self._left(b, now) < BURST}
        return True

    @staticmethod
    def _left(bucket: Bucket | None, now: float) -> float:
        if bucket is None:
            return float(BURST)
        return min(float(BURST), bucket.tokens + max(0.0, now - bucket.at) * LINES_PER_S)
