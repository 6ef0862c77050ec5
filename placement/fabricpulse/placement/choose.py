"""Which of the free hosts a job takes: as few pods as can be, then as few leaves, whole leaves first. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.placement.fabric import Place, by_name

# Sets of pods that are compared; with more the largest pods are taken.
_MOST_SETS = 20_000


@dataclass(frozen=True)
class Choice:
    """hosts : in the order of names. leaves, pods : how many they are below and in. split : free hosts that stay on
    leaves of which some were taken. exact : False where there were too many sets of pods to compare."""

    hosts: tuple[Place, ...]
    leaves: int
    pods: int
    split: int
    exact: bool


_Leaf = list[Place]


def choose(free: Iterable[Place], count: int, segment: int = 1) -> Choice:
    """`count` of the free hosts.

    segment : hosts that must be below one leaf together (Slurm's --segment): each leaf gives a multiple of it. Of equal
    choices: the one that leaves the fewest hosts on broken leaves, then the smallest pods. Raises OptionError: numbers
    that cannot be meant; UserError: there are not enough hosts.
    """
    pods: dict[str, dict[str, _Leaf]] = {}
    hosts = sorted(free, key=lambda place: by_name(place.host))
    if len({place.host for place in hosts}) != len(hosts):
        raise OptionError("a host is named twice; name each host once")
    for place in hosts:
        pods.setdefault(place.pod(), {}).setdefault(place.leaf(), []).append(place)
    if count < 1 or segment < 1 or count % segment:
        raise OptionError(
            f"{count} hosts in segments of {segment}: both must be 1 or more, and the one a multiple of the other"
        )
    each = [list(leaves.values()) for leaves in pods.values()]
    sizes = [sum(_capacity(leaf, segment) for leaf in leaves) for leaves in each]
    if sum(sizes) < count:
        whole = f" in segments of {segment} below one leaf" if segment > 1 else ""
        raise UserError(
            f"there are {sum(sizes)} hosts{whole} ({len(hosts)} are free), {count} are wanted; take fewer"
        )
    largest = sorted(range(len(each)), key=lambda index: (-sizes[index], index))
    least = next(k for k in range(1, len(each) + 1) if sum(sizes[index] for index in largest[:k]) >= count)
    exact = comb(len(each), least) <= _MOST_SETS
    sets = combinations(range(len(each)), least) if exact else [tuple(largest[:least])]
    best: tuple[tuple[int, ...], list[_Leaf]] | None = None
    for chosen in sets:
        size = sum(sizes[index] for index in chosen)
        if size < count:
            continue
        taken, split = _take([leaf for index in chosen for leaf in each[index]], count, segment)
        key = (len(taken), split, size, *chosen)
        if best is None or key < best[0]:
            best = (key, taken)
    assert best is not None  # noqa: S101 - the largest are enough
    places = sorted((place for leaf in best[1] for place in leaf), key=lambda place: by_name(place.host))
    return Choice(tuple(places), len(best[1]), len({place.pod() for place in places}), best[0][1], exact)


def _capacity(leaf: Sequence[Place], segment: int) -> int:
    return len(leaf) // segment * segment


def _take(leaves: list[_Leaf], count: int, segment: int) -> tuple[list[_Leaf], int]:
    """The largest leaves whole, and of the rest the smallest that is enough; and how many hosts stay free on them."""
    rest = [(_capacity(leaf, segment), leaf) for leaf in leaves if len(leaf) >= segment]
    taken: list[_Leaf] = []
    split = 0
    while count:
        enough = [index for index, (size, _) in enumerate(rest) if size >= count]
        # Of equals the first, as min and max have it.
        index = (
            min(enough, key=lambda k: rest[k][0])
            if enough
            else max(range(len(rest)), key=lambda k: rest[k][0])
        )
        size, leaf = rest.pop(index)
        size = min(size, count)
        taken.append(leaf[:size])
        split += len(leaf) - size
        count -= size
    return taken, split
