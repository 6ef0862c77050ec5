"""Which queue pairs of jobs cross a component of the fabric: the paths that hosts report, by what they cross.

Kept by link: a switch has all links at it. Names that DNS has for addresses may come later, and count when it is asked.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import pairwise, product
from typing import Any, NamedTuple

from fabricpulse.diagnosis.wire.queue_pairs import QueuePairPath

# Of a fleet: about two kilobytes each. What a host reports beyond that is not kept, and counted.
MOST_PATHS = 50_000
# Named of one component.
MOST_NAMED, MOST_JOBS = 16, 16


class _Key(NamedTuple):
    host: str
    device: str
    peer: str
    peer_device: str
    port: int


Link = tuple[str, str]


@dataclass(frozen=True)
class Crossing:
    """paths : how many paths of queue pairs cross a component. jobs, named : the jobs, and the paths, some of them."""

    paths: int
    jobs: tuple[str, ...]
    named: tuple[tuple[str, QueuePairPath], ...]


def crossing_document(crossing: Crossing) -> dict[str, Any]:
    """`queue_pairs` of a suspect in `/api/v1/suspects`."""
    return {
        "paths": crossing.paths,
        "jobs": crossing.jobs,
        "named": [
            {
                "host": host,
                "device": path.device,
                "peer": path.peer,
                "peer_device": path.peer_device,
                "source_port": path.port,
                "queue_pairs": path.numbers,
                "jobs": path.workloads,
            }
            for host, path in crossing.named
        ],
    }


def _owner(node: str) -> str:
    """The host of a NIC, "" of a switch."""
    return node.rpartition("/")[0]


class QueuePairPaths:
    """Of one fleet. refused : paths that were reported and not kept, counted each time."""

    def __init__(
        self, leaf_of: Mapping[str, str], switch_of: Mapping[str, str], most: int = MOST_PATHS
    ) -> None:
        """What is declared: leaf_of by host/device (it stands, whatever answers in its place), switch_of by address."""
        self._declared, self._leaf_of, self._switch_of = frozenset(leaf_of), dict(leaf_of), switch_of
        self._placed: dict[str, set[str]] = {}  # NICs of a host whose leaves it has reported
        self._most = most
        self._paths: dict[_Key, QueuePairPath] = {}
        self._of_host: dict[str, set[_Key]] = defaultdict(set)
        self._by_link: dict[Link, set[_Key]] = defaultdict(set)
        self._links_of: dict[str, set[Link]] = defaultdict(set)
        self._nics_of: dict[str, set[str]] = defaultdict(set)
        self._found: dict[tuple[str, str, str], Crossing] = {}  # while nothing changes
        self._found_by: Mapping[str, set[str]] = {}
        self.refused = 0

    def __len__(self) -> int:
        return len(self._paths)

    def take(self, host: str, paths: Iterable[QueuePairPath]) -> tuple[int, ...]:
        """What a host reports. Returns which of these, counted from 0, are not kept: the host has to send them again,
        as there may be room later.
        """
        refused = []
        for number, path in enumerate(paths):
            key = _Key(host, *path.key)
            if self._paths.get(key) == path:
                continue
            self._drop(key)
            if not path.numbers:
                continue
            if not self._has_room(host):
                refused.append(number)
                continue
            self._add(key, path)
        self.refused += len(refused)
        return tuple(refused)

    def place(self, host: str, leaves: Iterable[tuple[str, str]]) -> None:
        """The leaves of its devices, as the host itself says; what is declared stands."""
        new = {f"{host}/{device}": leaf for device, leaf in leaves}
        new = {nic: leaf for nic, leaf in new.items() if nic not in self._declared}
        nics = self._placed.get(host, set()) | new.keys()
        moved = {nic for nic in nics if self._leaf_of.get(nic) != new.get(nic)}
        if not moved:
            return
        paths = {key: self._paths[key] for key in self._at(moved, 0) | self._at(moved, 1)}
        for key in paths:
            self._drop(key)
        for nic in moved:
            self._leaf_of.pop(nic, None)
        self._leaf_of.update(new)
        self._placed.pop(host, None)
        if new:
            self._placed[host] = {*new}
        for key, path in paths.items():
            self._add(key, path)

    def _add(self, key: _Key, path: QueuePairPath) -> None:
        self._found = {}
        self._paths[key] = path
        self._of_host[key.host].add(key)
        for link in self._links(key, path):
            self._by_link[link].add(key)
            for node in link:
                self._links_of[node].add(link)
                # Only of a NIC at a link, by the owner that _drop finds: else entries would stay for ever.
                if owner := _owner(node):
                    self._nics_of[owner].add(node)

    def _has_room(self, host: str) -> bool:
        """For one more of this host. The last quarter is for hosts that have less than their share: jobs' telemetry is
        anybody's to write, and some hosts could take all.
        """
        if len(self._paths) < self._most * 3 // 4:
            return True
        own, hosts = len(self._of_host.get(host, ())), len(self._of_host) + 1
        return len(self._paths) < self._most and own < max(self._most // hosts, 1)

    def forget(self, host: str) -> None:
        """All that a host has reported."""
        for key in tuple(self._of_host.get(host, ())):
            self._drop(key)

    def keep(self, hosts: Iterable[str]) -> None:
        """Forgets all others."""
        kept = set(hosts)
        for host in self._of_host.keys() - kept:
            self.forget(host)
        for host in self._placed.keys() - kept:
            self.place(host, ())

    def _drop(self, key: _Key) -> None:
        path = self._paths.pop(key, None)
        if path is None:
            return
        self._found = {}
        self._of_host[key.host].discard(key)
        if not self._of_host[key.host]:
            del self._of_host[key.host]
        for link in self._links(key, path):
            if (keys := self._by_link.get(link)) is None:
                continue  # a path that crosses a link twice
            keys.discard(key)
            if keys:
                continue
            del self._by_link[link]
            for node in set(link):
                self._links_of[node].discard(link)
                if not self._links_of[node]:
                    del self._links_of[node]
                    if owner := _owner(node):
                        self._nics_of[owner].discard(node)
                        if not self._nics_of[owner]:
                            del self._nics_of[owner]

    def _links(self, key: _Key, path: QueuePairPath) -> Iterator[Link]:
        """From NIC to NIC; none at a switch that does not answer."""
        near, far = f"{key.host}/{key.device}", f"{key.peer}/{key.peer_device}"
        hops = [self._switch_of.get(hop, hop) for hop in path.hops]
        if hops:  # as in flows/layout.py
            first, last = self._leaf_of.get(near, hops[0]), self._leaf_of.get(far, hops[-1])
            if near in self._leaf_of and first == last:
                hops = [first]
            else:
                # Behind the last one that answered there may be a silent leaf.
                hops = [first, *hops[1:], *((last,) if hops[-1] != last else ())]
        for a, b in pairwise((near, *hops, far)):
            if a and b:
                yield a, b

    def crossing(self, kind: str, component: str, peer: str, addresses: Mapping[str, set[str]]) -> Crossing:
        """Paths that cross a suspect. addresses : of switches, by name; another object when they change."""
        if self._found_by is not addresses:
            self._found, self._found_by = {}, addresses
        suspect = kind, component, peer
        if suspect not in self._found:
            keys = self._crossing(kind, component, peer, addresses)
            jobs = sorted({job for key in keys for job in self._paths[key].workloads})
            named = nsmallest(MOST_NAMED, keys)
            self._found[suspect] = Crossing(
                len(keys), tuple(jobs[:MOST_JOBS]), tuple((key.host, self._paths[key]) for key in named)
            )
        return self._found[suspect]

    def _crossing(self, kind: str, component: str, peer: str, addresses: Mapping[str, set[str]]) -> set[_Key]:
        near = {component, *addresses.get(component, ())}
        if kind == "link":
            links = set(product(near, {peer, *addresses.get(peer, ())}))
        elif kind == "pair":
            starts, ends = self._at({component}, 0), self._at({peer}, 1)
            return starts & ends
        elif kind == "host":
            near = self._nics_of.get(component, set())
            return self._at(near, 0) | self._at(near, 1)
        elif kind == "nic_tx":
            return self._at(near, 0)
        elif kind == "nic_rx":
            return self._at(near, 1)
        else:
            return self._at(near, 0) | self._at(near, 1)
        return set[_Key]().union(*(self._by_link.get(link, ()) for link in links))

    def _at(self, nodes: Iterable[str], end: int) -> set[_Key]:
        """Paths with a link that begins (0) or ends (1) at one of these."""
        links = (link for node in nodes for link in self._links_of.get(node, ()) if link[end] == node)
        return set[_Key]().union(*(self._by_link[link] for link in links))
