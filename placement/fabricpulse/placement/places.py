"""The leaf and pod of hosts, from the file of places and the membership. Pure but for reading files.

leaves:
  leaf-a1: gpu-[001-004]                      # a list in Slurm's notation
  leaf-a2: [gpu-005/eth1, gpu-006/eth1]       # or NICs, as in the topology file of the coordinator
pods:
  pod-a: [leaf-a1, leaf-a2]
gpus:
  gpu-[005-006]: 4
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fabricpulse.core.config import Section
from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.core.fleet.host_list import expand
from fabricpulse.core.fleet.membership import Membership
from fabricpulse.placement.fabric import MOST_GPUS, Place, by_name

UNKNOWN = "unknown-"


class PlacesFile(Section, frozen=True):
    """A file of places; the topology file of the coordinator is one, too.

    leaves : of each leaf its hosts, as a list in Slurm's notation or several; or its NICs as host/device, and then the
    NICs of a host in the order of their names are its rails. pods : of each pod its leaves; left out in a fabric of two
    tiers. gpus : of a list of hosts, how many GPUs each has. switches : of the topology file, not used here.
    """

    leaves: dict[str, str | tuple[str, ...]] = {}
    pods: dict[str, tuple[str, ...]] = {}
    gpus: dict[str, int] = {}
    switches: dict[str, tuple[str, ...]] = {}

    def validate(self) -> None:
        try:
            self.below()
            for hosts, gpus in self.gpus.items():
                if not expand(hosts) or not 1 <= gpus <= MOST_GPUS:
                    raise ValueError(f"gpus: {hosts!r} has {gpus}; 1 to {MOST_GPUS} GPUs can be placed")
        except UserError as error:
            raise ValueError(str(error)) from None
        owner: dict[str, str] = {}
        for pod, leaves in self.pods.items():
            for leaf in leaves:
                if leaf not in self.leaves:
                    raise ValueError(f"pod {pod} has {leaf}, which is no leaf of this file")
                if (first := owner.setdefault(leaf, pod)) != pod:
                    raise ValueError(f"{leaf} is in two pods, {first} and {pod}")

    def below(self) -> dict[str, dict[str, str]]:
        """Host -> device -> leaf; the device is "" where the host alone was named. Raises ValueError, UserError."""
        found: dict[str, dict[str, str]] = {}
        for leaf, items in self.leaves.items():
            for item in (items,) if isinstance(items, str) else items:
                names, _, device = item.partition("/")
                for host in expand(names):
                    own = found.setdefault(host, {})
                    if own.setdefault(device, leaf) != leaf:
                        what = f"{host}/{device}" if device else f"host {host}"
                        raise ValueError(f"{what} is below two leaves, {own[device]} and {leaf}")
                    if "" in own and len(own) > 1:
                        raise ValueError(f"host {host} is listed once by its name and once by a NIC")
        return found


class Names:
    """Hosts by their full or short names, in any case: "a" and "a.b" are one host, "a.b" and "a.c" are two."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._by_short: dict[str, list[str]] = {}
        for host in hosts:
            self.add(host)

    def add(self, host: str) -> None:
        """Adds a host."""
        self._by_short.setdefault(_short(host), []).append(host)

    def find(self, name: str) -> str | None:
        """The host of this name; None if there is none, or several."""
        alike = self._by_short.get(_short(name), [])
        exact = [host for host in alike if host.lower() == name.lower()]
        found = exact or [host for host in alike if "." not in host or "." not in name]
        return found[0] if len(found) == 1 else None


def _short(name: str) -> str:
    return name.lower().partition(".")[0]


@dataclass(frozen=True)
class Declarations:
    """What the files declare. leaves, gpus : by host. pods : by leaf. names : of the hosts."""

    leaves: dict[str, tuple[str, ...]]
    pods: dict[str, str]
    gpus: dict[str, int]
    names: Names


def declarations(file: PlacesFile, membership: Membership | None = None) -> Declarations:
    """The declarations of both; for a host in both, the file takes precedence."""
    leaves = {
        host.name: tuple(nic.leaf for nic in host.nics if nic.leaf)
        for host in (membership.hosts if membership else ())
    }
    names = Names(leaves)
    for name, by_device in file.below().items():
        host = names.find(name)
        if host is None:
            host = name
            names.add(host)
        leaves[host] = tuple(by_device[device] for device in sorted(by_device, key=by_name))
    pods = {leaf: pod for pod, below in file.pods.items() for leaf in below}
    gpus = {names.find(host) or host: count for hosts, count in file.gpus.items() for host in expand(hosts)}
    return Declarations(leaves, pods, gpus, names)


def places(known: Declarations, hosts: Iterable[str], gpus: int, *, rail_leaves: bool = False) -> list[Place]:
    """The place of each host; all declared ones if `hosts` is empty.

    A host whose place is unknown is a leaf, and where there are pods a pod, of its own: nothing is near it that is not
    known to be. gpus : of hosts that the file does not count. rail_leaves : a leaf stands for one switch for each GPU
    of its hosts (rail-optimized fabric). Raises OptionError: a host twice, or none.
    """
    found: dict[str, Place] = {}
    for name in [*hosts] or known.leaves:
        host = known.names.find(name) or name
        if host in found:
            raise OptionError(f"host {name!r} is named twice; name each host once")
        leaves = known.leaves.get(host, ())
        there = bool(leaves)
        leaves = leaves or (UNKNOWN + host,)
        own = known.gpus.get(host, gpus)
        if rail_leaves and there and len(leaves) == 1:
            pods = _pods(known, leaves) * own
            leaves = tuple(f"{leaves[0]}/{rail}" for rail in range(own))
        else:
            pods = _pods(known, leaves)
        found[host] = Place(host, leaves, pods, own, there)
    if not found:
        raise OptionError("there is no host; give --hosts, or a file that lists some")
    return list(found.values())


def _pods(known: Declarations, leaves: tuple[str, ...]) -> tuple[str, ...]:
    if not known.pods:
        return ("",) * len(leaves)
    return tuple(
        known.pods.get(leaf, leaf if leaf.startswith(UNKNOWN) else UNKNOWN + leaf) for leaf in leaves
    )


def without(found: Iterable[Place], excluded: Iterable[str]) -> list[Place]:
    """The places of hosts that are not excluded, by their short or full names."""
    names = Names(excluded)
    return [place for place in found if names.find(place.host) is None]


def notes(found: Iterable[Place]) -> list[str]:
    """Assumptions of the result, as sentences."""
    lost = [place.host for place in found if not place.known]
    if not lost:
        return []
    more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
    return [
        f"where {len(lost)} hosts are is not known, each was taken for a leaf of its own: {', '.join(lost[:5])}{more}"
    ]
