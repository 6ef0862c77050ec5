"""Where each rank of an order is. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from fabricpulse.placement.fabric import Fabric, Ints, Place


@dataclass(frozen=True)
class HostRanks:
    """A host and its ranks in ascending order: the n-th of them has GPU n."""

    place: Place
    ranks: tuple[int, ...]


def by_host(fabric: Fabric, slot_of: Ints) -> list[HostRanks]:
    """Hosts in the order of their lowest rank."""
    ranks: list[list[int]] = [[] for _ in fabric.places]
    for rank, host in enumerate(fabric.host[slot_of].tolist()):
        ranks[host].append(rank)
    found = [HostRanks(place, tuple(own)) for place, own in zip(fabric.places, ranks, strict=True)]
    return sorted(found, key=lambda each: each.ranks[0])


def by_rank(hosts: Iterable[HostRanks]) -> list[tuple[str, int]]:
    """Host and GPU of each rank."""
    found = [(rank, each.place.host, gpu) for each in hosts for gpu, rank in enumerate(each.ranks)]
    return [(host, gpu) for _, host, gpu in sorted(found)]


def format_ranks(ranks: Iterable[int]) -> str:
    """`0-7,16`: ascending ranks as ranges."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def is_contiguous(hosts: Iterable[HostRanks]) -> bool:
    """Whether ranks follow one another on each host, as torchrun numbers them."""
    return all(each.ranks[-1] - each.ranks[0] == len(each.ranks) - 1 for each in hosts)
