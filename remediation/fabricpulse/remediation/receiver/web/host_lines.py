"""How much of the journal the reports of a host, and of an address that speaks for hosts, may fill. Pure.

Lines are kept for ever. A host whose agent lies can have a new one with each report: it holds NICs that no receiver
took out, it is healthy and unhealthy by turns. Who reports for invented hosts has one for each name.
"""

from fabricpulse.remediation.receiver.state.model import Bucket

# So many lines at once, as after the loss of the receiver's journal, and so many a second from then on.
BURST = 1_000
LINES_PER_S = 1.0
# Of an address: a proxy may have a fleet behind it, of which each host joins.
SOURCE_BURST = 20_000
SOURCE_LINES_PER_S = 10.0
# Hosts that are remembered; those that have their full burst again are not.
_MOST_HOSTS = 20_000


class HostLines:
    """One token bucket a host, or an address."""

    def __init__(self, burst: int = BURST, lines_per_s: float = LINES_PER_S) -> None:
        self._burst, self._lines_per_s = burst, lines_per_s
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
            self._hosts = {name: b for name, b in self._hosts.items() if self._left(b, now) < self._burst}
        return True

    def _left(self, bucket: Bucket | None, now: float) -> float:
        if bucket is None:
            return float(self._burst)
        return min(float(self._burst), bucket.tokens + max(0.0, now - bucket.at) * self._lines_per_s)
