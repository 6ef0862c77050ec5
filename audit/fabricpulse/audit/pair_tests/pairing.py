"""Who tests a path with whom: rounds of disjoint pairs that cover all pairs of leaves in few rounds. Pure.

Theory of operation. Hosts under one leaf share its uplinks, so that a test between two leaves is worth nearly as much
as one between any other two hosts of them. The leaves play a round-robin tournament by the circle method: with L
leaves there are L - 1 matchings (L if L is odd), and in each a leaf meets one other. In a round, the hosts of a leaf
with number i all play matching r·k + i, k being the size of most leaves: a leaf meets k others at once, and because a
matching is a matching no host is in two pairs. After (L - 1)/k rounds every pair of leaves of that size has met;
leaves with fewer hosts meet the rest in rounds after that. One round more pairs the hosts within each leaf.

A fleet whose leaves are not known is one in which every host is its own leaf: then each round is one matching of
hosts, and the rounds that there are cover as many of all pairs as there is time for.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A pair of numbers of endpoints, each of which is tested in both directions.
Pair = tuple[int, int]


@dataclass(frozen=True)
class PairingPlan:
    """Rounds of disjoint pairs, as indices of the endpoints. leaf_pairs : pairs of different leaves that there are;
    covered : those that the rounds test."""

    rounds: tuple[tuple[Pair, ...], ...]
    leaf_pairs: int
    covered: int


def most_rounds(endpoints: int) -> int:
    """2·log2 n, the bound of a plan; 1 at least."""
    return max(1, math.floor(2 * math.log2(endpoints))) if endpoints > 1 else 1


def plan_rounds(leaves: Sequence[str], most: int | None = None) -> PairingPlan:
    """Pairs the endpoints of one rail.

    leaves : the leaf of each endpoint; "" for one that is not known, which is then a leaf of its own. most : number of
    rounds, 2·log2 n if None. Deterministic: the same leaves give the same plan.
    """
    most = most_rounds(len(leaves)) if most is None else most
    groups = _groups(leaves)
    leaf_pairs = len(groups) * (len(groups) - 1) // 2
    rounds: list[tuple[Pair, ...]] = []
    covered: set[tuple[int, int]] = set()
    within = tuple((group[i], group[i + 1]) for group in groups for i in range(0, len(group) - 1, 2))
    if within and most > 0:
        rounds.append(within)
    size = len(groups) + len(groups) % 2
    matchings = size - 1
    # Most leaves have as many hosts as this: so many matchings are played in one round.
    stride = Counter(len(group) for group in groups).most_common(1)[0][0] if groups else 1
    for colour in range(0, matchings, stride):
        if len(rounds) >= most or len(covered) == leaf_pairs:
            break
        pairs: list[Pair] = []
        for number in range(min(stride, matchings - colour)):
            for a, b in _matching(size, colour + number):
                if max(a, b) < len(groups) and number < len(groups[a]) and number < len(groups[b]):
                    pairs.append((groups[a][number], groups[b][number]))
                    covered.add((min(a, b), max(a, b)))
        rounds.append(tuple(pairs))
    # Leaves with fewer hosts than most have met fewer: what is left is taken as it comes.
    while len(rounds) < most and len(covered) < leaf_pairs:
        rounds.append(_greedy(groups, covered))
    return PairingPlan(tuple(rounds), leaf_pairs, len(covered))


def _greedy(groups: Sequence[Sequence[int]], covered: set[tuple[int, int]]) -> tuple[Pair, ...]:
    """A round of leaf pairs that are not in `covered`, which grows by them; the first one always fits."""
    used = [0] * len(groups)
    pairs = []
    # Small leaves first: they are who has not met the others.
    order = sorted(range(len(groups)), key=lambda leaf: len(groups[leaf]))
    for place, a in enumerate(order):
        for b in order[place + 1 :]:
            if used[a] == len(groups[a]):
                break
            pair = (min(a, b), max(a, b))
            if pair not in covered and used[b] < len(groups[b]):
                pairs.append((groups[a][used[a]], groups[b][used[b]]))
                used[a] += 1
                used[b] += 1
                covered.add(pair)
    return tuple(pairs)


def _groups(leaves: Sequence[str]) -> list[list[int]]:
    """Endpoints by leaf, in order of first appearance."""
    found: dict[str, list[int]] = {}
    for index, leaf in enumerate(leaves):
        found.setdefault(leaf or f"\0{index}", []).append(index)
    return list(found.values())


def _matching(size: int, number: int) -> Iterable[Pair]:
    """Matching `number` of 0 … size - 2 of an even number of players: the circle method, the last one stands still."""
    turning = size - 1
    yield number, turning
    for step in range(1, size // 2):
        yield (number + step) % turning, (number - step) % turning


def directions(pairs: Iterable[Pair]) -> list[Pair]:
    """Each pair both ways: what one end sends and what the other does are different paths."""
    return [way for a, b in pairs for way in ((a, b), (b, a))]
