"""How much of the agents' reports is kept: who speaks for agents must not fill the memory with hosts he makes up."""

from collections.abc import Collection

from fabricpulse.remediation.protocol import Report

# Hosts, and entries of their reports together (NICs of each kind, jobs): three times what the largest fleets have.
# A host takes some 2 kB, an entry 140 bytes.
MAX_HOSTS = 20_000
MAX_ENTRIES = 1_000_000


class AgentRoom:
    """Counts what is kept of each host."""

    def __init__(self, max_hosts: int = MAX_HOSTS, max_entries: int = MAX_ENTRIES) -> None:
        self._max_hosts, self._max_entries = max_hosts, max_entries
        self._entries: dict[str, int] = {}
        self._total = 0

    def admits(self, host: str, report: Report, known: Collection[str]) -> bool:
        """Whether there is room for this report in place of the host's last one, and counts it if so.

        known : hosts of which something is kept; what was counted of others is free again. A host that is known keeps
        its room while others ask for more.
        """
        kinds = (report.devices, report.connected, report.health, report.held, report.workloads)
        entries = sum(len(kind) for kind in kinds)
        if not self._fits(host, entries):
            self._entries = {name: count for name, count in self._entries.items() if name in known}
            self._total = sum(self._entries.values())
            if not self._fits(host, entries):
                return False
        self._total += entries - self._entries.get(host, 0)
        self._entries[host] = entries
        return True

    def _fits(self, host: str, entries: int) -> bool:
        before = self._entries.get(host)
        if before is None and len(self._entries) >= self._max_hosts:
            return False
        return entries <= (before or 0) or self._total - (before or 0) + entries <= self._max_entries
