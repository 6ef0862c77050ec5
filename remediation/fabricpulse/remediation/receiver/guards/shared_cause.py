"""Which episodes share a rail, leaf or switch that is at fault: their cause is not a NIC, and no NIC is taken out.

An alert on the leaf itself says so, however few NICs have an alert yet. Without one it shows when many began together.

Moving the traffic of every host off its NIC does not mend a switch. What counts is how close together the episodes
began, not how old they are: a blocked group stays blocked while it fires, and for a time after most of it has ended.
One that fires again after an end that was false began when it did first as well: a group must not lose its members so.
"""

from collections.abc import Callable
from math import ceil
from operator import attrgetter

from fabricpulse.remediation.receiver.config import GuardConfig
from fabricpulse.remediation.receiver.state.model import Episode
from fabricpulse.remediation.receiver.state.transaction import Transaction

# No group of fewer hosts is one, however small the fleet.
_FEWEST_HOSTS = 3
_FIRST_SEEN: Callable[[Episode], float] = attrgetter("first_seen")
_FAULT_SEEN: Callable[[Episode], float] = attrgetter("fault_seen_at")


class SharedCauses:
    """Follows the episodes that begin and end: one more among fifty thousand that fire costs what one costs.

    A container of the fingerprints of the episodes whose cause has an alert of its own, or is shared with too many
    hosts, as of the last call of `follow`.
    """

    def __init__(self, limits: GuardConfig) -> None:
        self._limits = limits
        self._version = 0
        self._filed: dict[str, Episode] = {}
        self._groups: dict[str, _Group] = {}
        # The same by when their faults were first seen.
        self._by_fault: dict[str, _Group] = {}
        # Causes with an alert of their own: its fingerprints.
        self._named: dict[str, set[str]] = {}
        # fingerprint -> when it ended, of those that have; the one that is forgotten next first.
        self._ended: dict[str, float] = {}
        self._observed_hosts: Callable[[frozenset[str]], int] = lambda _: 0
        self._group_limits: dict[str, int] = {}

    def follow(
        self, state: Transaction, observed_hosts: Callable[[frozenset[str]], int], now: float
    ) -> "SharedCauses":
        """Takes over what has changed; returns itself.

        observed_hosts : how many hosts were really observed that have one of these NICs.
        """
        self._observed_hosts = observed_hosts
        self._group_limits.clear()
        changed = state.episodes_changed_since(self._version)
        if changed is None:
            for kept in (self._filed, self._groups, self._by_fault, self._named, self._ended):
                kept.clear()
            ended_first = sorted(state.episodes.values(), key=attrgetter("ended_at", "first_seen"))
            changed = {episode.fingerprint: None for episode in ended_first}
        for fingerprint in changed:
            self._file(fingerprint, state.episodes.get(fingerprint), now)
        while self._ended:
            fingerprint, ended_at = next(iter(self._ended.items()))
            if now - ended_at <= self._limits.shared_cause_memory_s:
                break
            self._remove(fingerprint)
        self._version = state.episodes_version
        return self

    def __contains__(self, fingerprint: str) -> bool:
        episode = self._filed.get(fingerprint)
        if episode is None or not episode.target.host:
            return False
        return any(cause in self._named or self._shares(cause, fingerprint) for cause in episode.causes)

    def _shares(self, cause: str, fingerprint: str) -> bool:
        group = self._groups[cause]
        group.put_in_order()
        if len(group.hosts) < _FEWEST_HOSTS:
            return False
        limit = self._group_limits.get(cause)
        if limit is None:
            limit = limit_of(self._limits, self._observed_hosts(frozenset(group.devices)))
            self._group_limits[cause] = limit
        window_s = self._limits.shared_cause_window_s
        if fingerprint in group.shared(limit, window_s):
            return True
        return fingerprint in self._by_fault[cause].shared(limit, window_s)

    def _file(self, fingerprint: str, episode: Episode | None, now: float) -> None:
        remembered = episode is not None and (
            episode.status == "firing" or now - episode.ended_at <= self._limits.shared_cause_memory_s
        )
        if episode is None or not remembered:
            self._remove(fingerprint)
            return
        known = self._filed.get(fingerprint)
        if known is None or _place(known) != _place(episode):
            self._remove(fingerprint)
            for cause in set(episode.causes):
                if not episode.target.host:
                    self._named.setdefault(cause, set()).add(fingerprint)
                else:
                    self._groups.setdefault(cause, _Group(_FIRST_SEEN)).add(episode)
                    self._by_fault.setdefault(cause, _Group(_FAULT_SEEN)).add(episode)
        self._filed[fingerprint] = episode
        self._ended.pop(fingerprint, None)
        if episode.status != "firing":
            self._ended[fingerprint] = episode.ended_at

    def _remove(self, fingerprint: str) -> None:
        self._ended.pop(fingerprint, None)
        known = self._filed.pop(fingerprint, None)
        if known is None:
            return
        for cause in set(known.causes):
            if not known.target.host:
                self._named[cause].discard(fingerprint)
                if not self._named[cause]:
                    del self._named[cause]
                continue
            for groups in (self._groups, self._by_fault):
                if not groups[cause].remove(fingerprint):
                    del groups[cause]


class _Group:
    """Episodes with the same cause. hosts, devices : of them, as of the last call of `put_in_order`."""

    def __init__(self, began: Callable[[Episode], float]) -> None:
        """began : when an episode did."""
        self._began = began
        self.hosts: set[str] = set()
        self.devices: set[str] = set()
        self._episodes: dict[str, Episode] = {}
        # Put in order by when they began, up to `_read` looked at for these limits; None: from the start again.
        self._ordered: list[Episode] | None = []
        self._by: tuple[int, float] = (0, 0.0)
        self._read = 0
        self._shared: set[str] = set()
        # The window that ends with the last one that was looked at: its first one, episodes by host, and up to where
        # all are known to be shared.
        self._oldest = 0
        self._in_window: dict[str, int] = {}
        self._marked = 0

    def add(self, episode: Episode) -> None:
        """One more."""
        self._episodes[episode.fingerprint] = episode
        self.hosts.add(episode.target.host)
        self.devices.add(episode.target.device)
        ordered = self._ordered
        if ordered is None or (ordered and self._began(episode) < self._began(ordered[-1])):
            self._ordered = None
        else:
            ordered.append(episode)

    def remove(self, fingerprint: str) -> bool:
        """One less; False when it was the last."""
        del self._episodes[fingerprint]
        self._ordered = None
        return bool(self._episodes)

    def put_in_order(self) -> list[Episode]:
        """The episodes, by when they began."""
        if self._ordered is None:
            self._ordered = sorted(self._episodes.values(), key=self._began)
            self.hosts = {episode.target.host for episode in self._ordered}
            self.devices = {episode.target.device for episode in self._ordered}
            self._by = (0, 0.0)
        return self._ordered

    def shared(self, limit: int, window_s: float) -> set[str]:
        """Fingerprints in any window of `window_s` in which episodes of `limit` hosts or more began."""
        ordered = self.put_in_order()
        if self._by != (limit, window_s):
            self._by = (limit, window_s)
            self._read = self._oldest = self._marked = 0
            self._shared, self._in_window = set(), {}
        for newest in range(self._read, len(ordered)):
            self._evaluate(ordered, newest, limit, window_s)
        self._read = len(ordered)
        return self._shared

    def _evaluate(self, ordered: list[Episode], newest: int, limit: int, window_s: float) -> None:
        began, host = self._began(ordered[newest]), ordered[newest].target.host
        hosts = self._in_window
        hosts[host] = hosts.get(host, 0) + 1
        while began - self._began(ordered[self._oldest]) > window_s:
            left = ordered[self._oldest].target.host
            hosts[left] -= 1
            if not hosts[left]:
                del hosts[left]
            self._oldest += 1
        if len(hosts) >= limit:
            begin = max(self._marked, self._oldest)
            self._shared.update(episode.fingerprint for episode in ordered[begin : newest + 1])
            self._marked = newest + 1


def _place(episode: Episode) -> tuple[object, ...]:
    return episode.target, episode.causes, episode.first_seen, episode.began_at


def limit_of(limits: GuardConfig, observed_hosts: int) -> int:
    """So many hosts at once are a group: the absolute limit, or fewer where the fraction of a small rail is fewer.

    observed_hosts : on the rail; 0 when it is not known, and then the absolute limit counts.
    """
    if not observed_hosts:
        return limits.shared_cause_count
    relative = max(_FEWEST_HOSTS, ceil(limits.shared_cause_fraction * observed_hosts))
    return min(limits.shared_cause_count, relative)
