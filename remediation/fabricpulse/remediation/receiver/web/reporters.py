"""Which address reports for a host that has no identity of its own, where others could as well.

Without tokens of their own, or with one that they share, only their addresses distinguish agents: a stranger
who reports for another host would undo its failovers, or end its hold. So the address that has reported for a host for
longest speaks for it while it does, another one only once it is silent. It must have been the only one for ten minutes:
whoever is sooner than an agent by less than that, as after a start of the receiver, shuts nobody out, and neither of
two is believed more than the other. Who is sooner by more, with the token and the name of a host whose agent has not
begun, has it until he stops or the receiver is started again: only tokens of their own keep that out. An address that
reports for several hosts now is a proxy or translated, as all of them may be: then this says nothing.
"""

from dataclasses import dataclass
from itertools import islice

from fabricpulse.remediation.receiver.web.agent_room import MAX_HOSTS

# Whoever was silent for so long has no claim any more.
_FORGOTTEN_S = 86_400.0
# Whoever was the only one for so long shuts others out.
_ALONE_S = 600.0
# Of the time after which an agent counts as lost: a host whose address has changed must not.
_SILENT_SHARE = 0.8


@dataclass
class _Reporter:
    """An address, its first and last report, and since when no other one was admitted beside it (seconds)."""

    address: str
    since: float
    at: float
    alone_since: float

    @property
    def span_s(self) -> float:
        """For how long it has reported."""
        return self.at - self.since

    def _is_established(self) -> bool:
        return self.at - self.alone_since >= _ALONE_S

    def reports(self, now: float, silent_s: float) -> None:
        """A report of it. Pauses count as time alone only for one that has been there for long."""
        if now - self.at >= silent_s and not self._is_established():
            self.alone_since = now
        self.at = now

    def excludes(self, now: float) -> bool:
        """Whether a report from another address does not count; else this one is not alone any more."""
        if self._is_established():
            return True
        self.alone_since = now
        return False


class Reporters:
    """Who reports for each host, in memory."""

    def __init__(self) -> None:
        self._first: dict[str, _Reporter] = {}
        # Those that report while the first is silent.
        self._other: dict[str, _Reporter] = {}
        self._hosts_of: dict[str, set[str]] = {}

    def admits(self, host: str, address: str, now: float, lost_s: float) -> bool:
        """Whether a report for the host from this address counts; it is noted if so. lost_s : silence after which an
        agent counts as lost."""
        silent_s = _SILENT_SHARE * lost_s
        first = self._first.get(host)
        if first is None or now - first.at > _FORGOTTEN_S:
            self._make_room(now)
            self._set(host, _Reporter(address, now, now, now))
            return True
        if address == first.address:
            first.reports(now, silent_s)
            self._other.pop(host, None)
            return True
        if self._is_shared(first.address, now - lost_s):
            return True
        if now - first.at < silent_s:
            return not first.excludes(now)
        other = self._other.get(host)
        if other is not None and other.address != address and now - other.at < silent_s:
            return not other.excludes(now)
        if other is None or other.address != address:
            other = self._other[host] = _Reporter(address, now, now, now)
        other.reports(now, silent_s)
        if other.span_s > first.span_s:
            del self._other[host]
            self._set(host, other)
        return True

    def _is_shared(self, address: str, since: float) -> bool:
        """Whether several hosts have reported from it since then; not those that had it before, and are no more."""
        live = (host for host in self._hosts_of[address] if self._first[host].at > since)
        return len(list(islice(live, 2))) > 1

    def _set(self, host: str, reporter: _Reporter) -> None:
        self._drop(host)
        self._first[host] = reporter
        self._hosts_of.setdefault(reporter.address, set()).add(host)

    def _drop(self, host: str) -> None:
        known = self._first.pop(host, None)
        if known is not None:
            self._hosts_of[known.address].discard(host)
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
