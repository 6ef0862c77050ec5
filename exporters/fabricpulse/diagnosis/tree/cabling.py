"""NICs whose cable goes to another leaf than it should. Pure.

Where a NIC belongs is declared, or follows from the other NICs of its host: the hosts that they share leaves with have
NICs of its rail, too, and those share a leaf. Nothing is said of a NIC whose own place is not sure.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

from fabricpulse.diagnosis.tree.fabric_tree import FabricTree
from fabricpulse.diagnosis.tree.levels import Kind

_SURE = 0.99
# Share of those who vote that must agree.
_AGREE = 0.6


@dataclass(frozen=True)
class Miscabled:
    """nic : by number. actual, expected : leaf groups. wrong_rail : the leaf is that of another rail, called `rail`.
    swapped_with : the NIC that is in its place, and it in that one's; -1 for none.
    """

    nic: int
    actual: int
    expected: int
    wrong_rail: bool
    rail: str
    swapped_with: int = -1


def miscabled(tree: FabricTree) -> tuple[Miscabled, ...]:
    """All that are sure, by number of the NIC."""
    leaf_of = tree.of_kind(Kind.LEAF).tolist()
    sure = tree.confidence() >= _SURE
    place = [leaf if ok else -1 for leaf, ok in zip(leaf_of, sure.tolist(), strict=True)]
    nics = tree.nics
    of_host: dict[str, list[int]] = defaultdict(list)
    rails: dict[int, Counter[str]] = defaultdict(Counter)
    declared: dict[str, Counter[int]] = defaultdict(Counter)
    for number, nic in enumerate(nics):
        of_host[nic.host].append(number)
        if place[number] >= 0:
            rails[place[number]][nic.rail] += 1
            if nic.leaf:
                declared[nic.leaf][place[number]] += 1
    beside = _beside(tree, place, of_host)
    wrong: dict[int, tuple[int, int]] = {}
    for number, nic in enumerate(nics):
        if place[number] < 0:
            continue
        votes: Counter[int] = Counter()
        if nic.leaf and sum(declared[nic.leaf].values()) > 2:
            votes = declared[nic.leaf]
        elif nic.rail:
            for other in of_host[nic.host]:
                expected = beside.get((place[other], nic.rail), -1)
                if other != number and expected >= 0:
                    votes[expected] += 1
        for expected, count in votes.most_common(1):
            if expected != place[number] and count >= _AGREE * sum(votes.values()):
                wrong[number] = place[number], expected
    there: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, found in wrong.items():
        there[found].append(number)
    return tuple(
        Miscabled(
            number,
            actual,
            expected,
            (main := rails[actual].most_common(1)[0][0]) != nics[number].rail,
            main,
            _partner(tree, number, there[expected, actual]),
        )
        for number, (actual, expected) in sorted(wrong.items())
    )


def _beside(tree: FabricTree, place: list[int], of_host: dict[str, list[int]]) -> dict[tuple[int, str], int]:
    """By leaf and rail, where the NICs of that rail are of the hosts below the leaf."""
    found: dict[tuple[int, str], int] = {}
    for number, group in enumerate(tree.groups):
        if group.kind is not Kind.LEAF:
            continue
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for host in {tree.nics[nic].host for nic in group.nics}:
            for nic in of_host[host]:
                if place[nic] >= 0:
                    counts[tree.nics[nic].rail][place[nic]] += 1
        for rail, votes in counts.items():
            leaf, most = votes.most_common(1)[0]
            if most > 1 and most >= _AGREE * sum(votes.values()):
                found[number, rail] = leaf
    return found


def _partner(tree: FabricTree, nic: int, others: list[int]) -> int:
    """Of the NICs that are in its place the one of its own host, else the only one."""
    same = [other for other in others if tree.nics[other].host == tree.nics[nic].host]
    several = same or others
    return several[0] if len(several) == 1 else -1
