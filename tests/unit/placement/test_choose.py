"""Which hosts to take: fewest pods, then fewest leaves; whole leaves; never an excluded host."""

import random
from itertools import combinations

import pytest

from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.placement.choose import choose
from fabricpulse.placement.fabric import Place


def fleet(sizes: dict[str, dict[str, int]]) -> list[Place]:
    """Pod -> leaf -> hosts."""
    return [
        Place(f"{leaf}-{n}", (leaf,), (pod,))
        for pod, leaves in sizes.items()
        for leaf, count in leaves.items()
        for n in range(count)
    ]


def taken(hosts: tuple[Place, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for place in hosts:
        found[place.leaf()] = found.get(place.leaf(), 0) + 1
    return found


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ({"p": {"a": 4, "b": 8}}, 4, {"a": 4}),  # the leaf that fits, not the large one
        ({"p": {"a": 4, "b": 8}}, 5, {"b": 5}),
        ({"p": {"a": 4, "b": 8}}, 10, {"b": 8, "a": 2}),
        ({"p": {"a": 4, "b": 4, "c": 2}}, 6, {"a": 4, "c": 2}),  # the rest breaks no whole leaf
        ({"p": {"a": 2, "b": 2}, "q": {"c": 3}}, 4, {"a": 2, "b": 2}),  # one pod, though more leaves
        ({"p": {"a": 1, "b": 1, "c": 1}, "q": {"d": 3}, "r": {"e": 2}}, 3, {"d": 3}),
    ],
)
def test_choice(sizes: dict[str, dict[str, int]], count: int, expected: dict[str, int]) -> None:
    """Cases in which the answer is plain."""
    found = choose(fleet(sizes), count)
    assert taken(found.hosts) == expected
    assert found.leaves == len(expected)


@pytest.mark.parametrize("seed", range(60))
def test_fewest_pods_then_fewest_leaves(seed: int) -> None:
    """Against all choices of leaves: none has fewer pods, and none as few pods and fewer leaves."""
    rng = random.Random(seed)
    sizes = {
        f"p{p}": {f"l{p}.{k}": rng.randint(1, 5) for k in range(rng.randint(1, 3))}
        for p in range(rng.randint(1, 3))
    }
    segment = rng.choice((1, 1, 2))
    usable = {
        (pod, leaf): size // segment * segment
        for pod, leaves in sizes.items()
        for leaf, size in leaves.items()
    }
    count = rng.randrange(segment, sum(usable.values()) + segment + 1, segment)
    best = min(
        (
            (len({pod for pod, _ in some}), len(some))
            for k in range(1, len(usable) + 1)
            for some in combinations(usable, k)
            if sum(usable[leaf] for leaf in some) >= count
        ),
        default=None,
    )
    if best is None:
        with pytest.raises(UserError, match="are wanted"):
            choose(fleet(sizes), count, segment)
        return
    found = choose(fleet(sizes), count, segment)
    assert (found.pods, found.leaves) == best
    assert len({place.host for place in found.hosts}) == len(found.hosts) == count
    assert all(number % segment == 0 for number in taken(found.hosts).values())
    assert found.exact


def test_invalid_arguments_are_refused() -> None:
    """No hosts, a broken segment, a host twice."""
    hosts = fleet({"p": {"a": 4}})
    for count, segment in ((0, 1), (3, 2), (2, 0)):
        with pytest.raises(OptionError):
            choose(hosts, count, segment)
    with pytest.raises(OptionError, match="twice"):
        choose([*hosts, hosts[0]], 1)


def test_many_pods() -> None:
    """More sets of pods than are compared: the largest pods are taken, and `exact` is False."""
    found = choose(fleet({f"p{n}": {f"l{n}": 2} for n in range(40)}), 40)
    assert (found.pods, found.exact) == (20, False)
