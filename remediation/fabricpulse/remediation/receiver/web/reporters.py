"""Which address reports for a host that has no identity of its own, where others could as well.

Without tokens of their own, or with one that they share, only their addresses distinguish agents: a stranger
who reports for another host would undo its failovers, or end its hold. So the address that has reported for a host for
longest speaks for it while it does, another one only once it is silent. An address that reports for several hosts is
a proxy or translated, as all of them may be: then this says nothing. At a start of the receiver the first one counts.
"""

from dataclasses import dataclass

from fabricpulse.remediation.receiver.web.agent_room import MAX_HOSTS

# Whoever was silent for so long has no claim any more.
_FORGOTTEN_S = 86_400.0
# Of the time after which an agent counts as lost: a host whose address has changed must not.
_SILENT_SHARE = 0.8


@dataclass
class _Reporter:
    """An address, and its first and last report (seconds)."""

    address: str
    since: float
    at: float

    @property
    def span_s(self) -> float:
        """For how long it has reported."""
        return self.at - self.since


class Reporters:
    """Who reports for each host, in memory."""

    def __init__(self) -> None:
        self._first: dict[str, _Reporter] = {}
        # Those that report while the first is silent.
        self._other: dict[str, _Reporter] = {}
        self._hosts_of: dict[str, int] = {}

    def admits(self, host: str, address: str, now: float, lost_s: float) -> bool:
        """Whether a report for the host from this address counts; it is noted if so. lost_s : silence after which an
        agent counts as lost."""
        first = self._first.get(host)
        if first is None or now - first.at > _FORGOTTEN_S:
            self._make_room(now)
            self._set(host, _Reporter(address, now, now))
            return True
        if address == first.address:
            first.at = now
            self._other.pop(host, None)
            return True
        if self._hosts_of[first.address] > 1:
            return True
        silent_s = _SILENT_SHARE * lost_s
        if now - first.at < silent_s:
            return False
        other = self._other.get(host)
        if other is not None and other.address != address and now - other.at < silent_s:
            return False
        if other is None or other.address != address:
            other = self._other[host] = _Reporter(address, now, now)
        other.at = now
        if other.span_s > first.span_s:
            del self._other[host]
            self._set(host, other)
        return True

    def _set(self, host: str, reporter: _Reporter) -> None:
        self._drop(host)
        self._first[host] = reporter
        self._hosts_of[reporter.address] = self._hosts_of.get(reporter.address, 0) + 1

    def _drop(self, host: str) -> None:
        known = self._first.pop(host, None)
        if known is not None:
            self._hosts_of[known.address] -= 1
            if not self._hosts_of[known.address]:
                del self._hosts_of[known.address]
        self._other.pop(host, None)

    def _make_room(self, now: float) -> None:
        """Forgets hosts that nobody reports for, or the one that came last: invented ones must not fill the memory."""
        if len(self._first) < MAX_HOSTS:
            return
        for host in [host for host, known in self._first.items() if now - known.at > _FORGOTTEN_S]:
            self._drop(host)
        if len(self._first) >= MAX_HOSTS:
            self._drop(next(reversed(self._first)))
