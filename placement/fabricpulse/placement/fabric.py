"""Hosts in their tree: host, leaf, pod. Pure.

A slot is one GPU of a host. Slots are numbered in tree order: those of a host beside one another, then those of its
leaf, then those of its pod. Names decide nothing but the order of hosts: any others give the same numbers.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fabricpulse.core.errors import UserError

Ints: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]
MOST_GPUS = 64
MOST_RANKS = 131_072


def sums(where: NDArray[Any], sizes: Floats, count: int) -> Floats:
    """Sums of `sizes` grouped by `where` (0 to count - 1)."""
    return np.bincount(where, weights=sizes, minlength=count).astype(np.float64)


@dataclass(frozen=True)
class Place:
    """Where a host is.

    leaves : of its NICs, in the order of their rails; one where all are below the same leaf. pods : of each of the
    leaves, "" in a fabric without pods. known : False where it is not declared; the host is then its own leaf.
    """

    host: str
    leaves: tuple[str, ...]
    pods: tuple[str, ...]
    gpus: int = 8
    known: bool = True

    def leaf(self) -> str:
        """One name for all its leaves: hosts with the same one are below the same switches."""
        return "+".join(dict.fromkeys(self.leaves))

    def pod(self) -> str:
        """One name for all its pods."""
        return "+".join(dict.fromkeys(self.pods))


def by_name(host: str) -> tuple[tuple[str | int, ...], str]:
    """Sort key for natural order of names, which Slurm uses: gpu-2 before gpu-10."""
    parts = re.split(r"([0-9]+)", host)
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts)), host


@dataclass(frozen=True)
class Fabric:
    """The hosts of one job.

    places : in tree order: the largest pod first, in it the largest leaf. named : of each host in the order of names
    its index in `places`. first : of each host its first slot, and at the end the number of slots. host, leaf, pod : of
    each slot; leaf and pod are those of the slot's NIC (slot i of n has the NIC of rail i * rails // n). leaf_begin,
    pod_begin : first slots of the hosts below each leaf (below the same leaves, if they have several) and in each pod,
    and at the end the number of slots.
    """

    places: tuple[Place, ...]
    named: Ints
    first: Ints
    host: Ints
    leaf: Ints
    pod: Ints
    leaf_begin: Ints
    pod_begin: Ints

    @property
    def slots(self) -> int:
        """How many GPUs there are."""
        return len(self.host)

    def slots_by_name(self) -> Ints:
        """All slots, host by host in the order of names: where launchers put ranks 0, 1, 2, …"""
        return np.concatenate(
            [np.arange(self.first[h], self.first[h + 1], dtype=np.int32) for h in self.named]
        )


def fabric_of(places: Iterable[Place]) -> Fabric:
    """Raises UserError: no host, a host twice, an absurd number of GPUs."""
    named = sorted(places, key=lambda place: by_name(place.host))
    if not named:
        raise UserError("placement: there is no host; give some by --hosts or in the file of places")
    for one, other in pairwise(named):
        if one.host == other.host:
            raise UserError(f"placement: host {one.host!r} is listed twice; name each host once")
    for place in named:
        if not 1 <= place.gpus <= MOST_GPUS:
            raise UserError(
                f"placement: host {place.host!r} has {place.gpus} GPUs; 1 to {MOST_GPUS} can be placed"
            )
    if sum(place.gpus for place in named) > MOST_RANKS:
        raise UserError(f"placement: more than {MOST_RANKS} GPUs; take fewer hosts")
    order = _tree_order(named)
    ordered = tuple(named[index] for index in order)
    gpus = np.array([place.gpus for place in ordered], dtype=np.int32)
    position = np.empty(len(named), dtype=np.int32)
    position[order] = np.arange(len(named), dtype=np.int32)
    leaves: dict[str, int] = {}
    pods: dict[str, int] = {}
    leaf, pod = [], []
    for place in ordered:
        for slot in range(place.gpus):
            rail = slot * len(place.leaves) // place.gpus
            leaf.append(leaves.setdefault(place.leaves[rail], len(leaves)))
            pod.append(pods.setdefault(place.pods[rail], len(pods)))
    return Fabric(
        places=ordered,
        named=position,
        first=np.concatenate([[0], np.cumsum(gpus)]).astype(np.int32),
        host=np.repeat(np.arange(len(ordered), dtype=np.int32), gpus),
        leaf=np.array(leaf, dtype=np.int32),
        pod=np.array(pod, dtype=np.int32),
        leaf_begin=_begins([(place.pod(), place.leaf()) for place in ordered], gpus),
        pod_begin=_begins([(place.pod(),) for place in ordered], gpus),
    )


def _begins(names: list[tuple[str, ...]], gpus: Ints) -> Ints:
    """First slots of runs of hosts with the same name, and the number of slots."""
    first = np.concatenate([[0], np.cumsum(gpus)]).astype(np.int32)
    new = [index for index in range(len(names)) if index == 0 or names[index] != names[index - 1]]
    return np.append(first[new], first[-1]).astype(np.int32)


def _tree_order(named: list[Place]) -> list[int]:
    """Indices of `named`: pods with the most GPUs first, then leaves, then hosts, ties in the order of names."""
    size: dict[tuple[str, ...], int] = {}
    seen: dict[tuple[str, ...], int] = {}
    keys = [((place.pod(),), (place.pod(), place.leaf())) for place in named]
    for index, (place, both) in enumerate(zip(named, keys, strict=True)):
        for key in both:
            size[key] = size.get(key, 0) + place.gpus
            seen.setdefault(key, index)

    def rank(index: int) -> tuple[int, ...]:
        pod, leaf = keys[index]
        return (-size[pod], seen[pod], -size[leaf], seen[leaf], index)

    return sorted(range(len(named)), key=rank)
