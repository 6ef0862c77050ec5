"""Which episodes share a rail, leaf or switch that is at fault: their cause is not a NIC, and no NIC is taken out.

An alert on the leaf itself says so, however few NICs have told yet. Without one it shows when many began together.

Moving the traffic of every host off its NIC does not mend a switch. What counts is how close together the episodes
began, not how old they are: a blocked group stays blocked while it fires, and for a time after most of it has ended.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from math import ceil
from operator import attrgetter

from fabricpulse.remediation.receiver.config import GuardConfig
from fabricpulse.remediation.receiver.model import Episode
from fabricpulse.remediation.receiver.transaction import Transaction

# No group of fewer hosts is one, however small the fleet.
_FEWEST_HOSTS = 3
# Episodes that have ended are forgotten a little late.
_REMEMBERED_S = 5.0


class SharedCauses:
    """`shared_episodes`, remembered while no episode begins or ends: fifty thousand that fire are grouped once."""

    def __init__(self) -> None:
        self._key: tuple[int, int] | None = None
        self._until = 0.0
        self._found: frozenset[str] = frozenset()

    def episodes(
        self,
        state: Transaction,
        observed: int,
        observed_hosts: Callable[[frozenset[str]], int],
        limits: GuardConfig,
        now: float,
    ) -> frozenset[str]:
        """observed : how many hosts were observed in all; when that changes, a limit may."""
        key = (state.episodes_version, observed)
        if not state.episodes_version or key != self._key or not now < self._until:
            self._found = shared_episodes(state.episodes.values(), observed_hosts, limits, now)
            self._key, self._until = key, now + _REMEMBERED_S
        return self._found


def shared_episodes(
    episodes: Iterable[Episode],
    observed_hosts: Callable[[frozenset[str]], int],
    limits: GuardConfig,
    now: float,
) -> frozenset[str]:
    """Fingerprints of the episodes whose cause has an alert of its own, or is shared with too many hosts.

    observed_hosts : how many hosts were really observed that have one of these NICs.
    """
    by_cause: defaultdict[str, list[Episode]] = defaultdict(list)
    named: set[str] = set()
    for episode in episodes:
        if episode.status == "firing" or now - episode.ended_at <= limits.shared_cause_memory_s:
            if not episode.target.host:
                named.update(episode.causes)
                continue
            for cause in episode.causes:
                by_cause[cause].append(episode)
    shared: set[str] = set()
    for cause, group in by_cause.items():
        if cause in named:
            shared.update(episode.fingerprint for episode in group)
            continue
        if len({episode.target.host for episode in group}) < _FEWEST_HOSTS:
            continue
        devices = frozenset(episode.target.device for episode in group)
        shared |= _groups(group, limit_of(limits, observed_hosts(devices)), limits.shared_cause_window_s)
    return frozenset(shared)


def limit_of(limits: GuardConfig, observed_hosts: int) -> int:
    """So many hosts at once are a group: the absolute limit, or fewer where the fraction of a small rail is fewer.

    observed_hosts : on the rail; 0 when it is not known, and then the absolute limit counts.
    """
    if not observed_hosts:
        return limits.shared_cause_count
    relative = max(_FEWEST_HOSTS, ceil(limits.shared_cause_fraction * observed_hosts))
    return min(limits.shared_cause_count, relative)


def _groups(episodes: list[Episode], limit: int, window_s: float) -> set[str]:
    """Fingerprints in any window of `window_s` in which episodes of `limit` hosts or more began."""
    if len(episodes) < limit:
        return set()
    ordered = sorted(episodes, key=attrgetter("first_seen"))
    times, names = [e.first_seen for e in ordered], [e.target.host for e in ordered]
    # Of the window: host -> its episodes. Parts of `ordered` that are in such a window.
    hosts: dict[str, int] = {}
    parts: list[list[int]] = []
    oldest = 0
    for newest, (first_seen, name) in enumerate(zip(times, names, strict=True)):
        hosts[name] = hosts.get(name, 0) + 1
        while first_seen - times[oldest] > window_s:
            host = names[oldest]
            if hosts[host] == 1:
                del hosts[host]
            else:
                hosts[host] -= 1
            oldest += 1
        if len(hosts) >= limit:
            if parts and oldest <= parts[-1][1]:
                parts[-1][1] = newest + 1
            else:
                parts.append([oldest, newest + 1])
    return {episode.fingerprint for begin, end in parts for episode in ordered[begin:end]}
