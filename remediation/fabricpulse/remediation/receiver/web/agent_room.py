"""How much of the agents' reports is kept: invented hosts must not fill the memory."""

from collections import Counter
from collections.abc import Collection

from fabricpulse.remediation.protocol import Report

# Hosts, and entries of their reports together (NICs of each kind, jobs): three times what the largest fleets have.
# A host takes some 2 kB, an entry 140 bytes.
MAX_HOSTS = 20_000
MAX_ENTRIES = 1_000_000


class AgentRoom:
    """Counts what is kept of each host.

    While there is room everybody gets it. Then an address that has less than the one that has most gets room of that
    one's newest hosts: an address with invented hosts loses its own. Hosts that have proven who they are lose none.
    """

    def __init__(self, max_hosts: int = MAX_HOSTS, max_entries: int = MAX_ENTRIES) -> None:
        self._max_hosts, self._max_entries = max_hosts, max_entries
        # Of each host, in the order in which they came: the address that speaks for it, and its entries.
        self._hosts: dict[str, tuple[str, int]] = {}
        self._total = 0
        self._hosts_of: Counter[str] = Counter()
        self._entries_of: Counter[str] = Counter()

    def make_room(
        self, host: str, report: Report, known: Collection[str], source: str = ""
    ) -> list[str] | None:
        """None where there is no room for this report in place of the host's last one; else it is counted, and the
        hosts that must be forgotten for it are returned.

        known : hosts of which something is kept; what was counted of others is free again. source : the address that
        speaks for the host, "" for one that has proven who it is. A host that is known keeps its room while others of
        its address, or of one that has as much, ask for more.
        """
        kinds = (report.devices, report.connected, report.health, report.held, report.workloads)
        entries = sum(len(kind) for kind in kinds)
        left: list[str] | None = []
        if not self._fits(host, entries):
            if len(self._hosts) > len(known):
                for name in [name for name in self._hosts if name not in known]:
                    self._count(*self._hosts.pop(name), sign=-1)
            left = self._room_of_others(host, entries, source)
        if left is None:
            return None
        for name in left:
            self._count(*self._hosts.pop(name), sign=-1)
        if host in self._hosts:
            self._count(*self._hosts[host], sign=-1)
        self._hosts[host] = (source, entries)
        self._count(source, entries, sign=1)
        return left

    def _count(self, source: str, entries: int, sign: int) -> None:
        self._total += sign * entries
        self._hosts_of[source] += sign
        self._entries_of[source] += sign * entries
        if not self._hosts_of[source]:
            del self._hosts_of[source], self._entries_of[source]

    def _fits(self, host: str, entries: int, free_hosts: int = 0, free_entries: int = 0) -> bool:
        """Whether it fits once so much of others is free."""
        before = self._hosts[host][1] if host in self._hosts else None
        if before is None and len(self._hosts) - free_hosts >= self._max_hosts:
            return False
        left = self._max_entries - self._total + free_entries + (before or 0)
        return entries <= (before or 0) or entries <= left

    def _room_of_others(self, host: str, entries: int, source: str) -> list[str] | None:
        """Hosts of the address that has most whose room is enough; None where that would leave it with less than the
        one that asks has then."""
        if self._fits(host, entries):
            return []
        most = max((name for name in self._hosts_of if name), key=self._share_of, default="")
        if most in ("", source):
            return None
        before = self._hosts.get(host)
        hosts, kept = int(before is None), entries - (before[1] if before is not None else 0)
        if source:
            hosts, kept = hosts + self._hosts_of[source], kept + self._entries_of[source]
        own = self._share(hosts, kept)
        left: list[str] = []
        free = 0
        for name in reversed(self._hosts):
            of, count = self._hosts[name]
            if of != most or name == host:
                continue
            left.append(name)
            free += count
            if self._share(self._hosts_of[most] - len(left), self._entries_of[most] - free) < own:
                return None
            if self._fits(host, entries, len(left), free):
                return left
        return None

    def _share_of(self, source: str) -> float:
        return self._share(self._hosts_of[source], self._entries_of[source])

    def _share(self, hosts: int, entries: int) -> float:
        return max(hosts / self._max_hosts, entries / self._max_entries)
