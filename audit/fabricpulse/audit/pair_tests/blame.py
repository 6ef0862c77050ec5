"""Which host, NIC or path explains the tests that failed. Pure.

Theory of operation. A test goes from one NIC to another, and needs the sender to send, the path to carry and the
receiver to receive. A NIC of which all tests in one direction fail, with at least LEAST others, is blamed for that
direction; for both, wholly; a host all of whose NICs (two at least) are blamed, instead of them. NICs are blamed in
order of how many failed tests they explain, and what one explains counts against no other: so partners of a dead NIC
are not blamed with it. A failed test that no NIC explains while both ends have passed in that direction is a fault of
that path, unless all such tests, with several partners, have one NIC in common: it may fail at times, or what these
paths share beyond it may, and that is not decided. So is what is left: it is reported as such, and `retests` says which
tests would decide it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

LEAST = 2
Nic = tuple[str, str]
Side = Literal["sends", "receives", "both"]


@dataclass(frozen=True, order=True)
class PathTest:
    """One test from NIC to NIC, (host, device) each."""

    source: Nic
    target: Nic
    ok: bool


@dataclass(frozen=True, order=True)
class Blame:
    """kind : host, nic, path, or undecided. nic : the NIC that is blamed, or the source of the path; its device is ""
    for a host. target : the other end of a path. side : in which direction a NIC fails. failed : tests that it
    explains. suspects : ends of what is undecided that have passed no other test in that direction, or that all of it
    has in common: one of them it is, or the path."""

    kind: Literal["host", "nic", "path", "undecided"]
    nic: Nic
    target: Nic | None
    side: Side
    failed: int
    suspects: tuple[Nic, ...] = ()


def blame(tests: Iterable[PathTest]) -> tuple[Blame, ...]:
    """What explains the failed tests; () if there are none. The order of tests does not matter."""
    unique = sorted(set(tests))
    # Seen both ways, with and without success: the path works, if badly; tests are judged before they come here.
    failed = {(test.source, test.target) for test in unique if not test.ok}
    passed = {(test.source, test.target) for test in unique if test.ok} - failed
    ends: dict[tuple[Nic, str], set[tuple[Nic, Nic]]] = defaultdict(set)
    good: set[tuple[Nic, str]] = set()
    for way in failed:
        ends[way[0], "sends"].add(way)
        ends[way[1], "receives"].add(way)
    for source, target in passed:
        good |= {(source, "sends"), (target, "receives")}
    suspects = {end: ways for end, ways in ends.items() if end not in good and len(ways) >= LEAST}
    left = set(failed)
    blamed: dict[Nic, dict[str, set[tuple[Nic, Nic]]]] = defaultdict(dict)
    while True:
        # A NIC that fails both ways explains more than each of its directions: they are weighed together.
        weight: dict[Nic, int] = defaultdict(int)
        for (nic, _), ways in suspects.items():
            weight[nic] += len(ways & left)
        best = max(sorted(weight), key=lambda nic: weight[nic], default=None)
        if best is None or weight[best] < LEAST:
            break
        if rivals := _rivals(best, weight, suspects):
            for nic in (best, *rivals):
                for side in ("sends", "receives"):
                    suspects.pop((nic, side), None)
            continue
        for side in ("sends", "receives"):
            ways = suspects.pop((best, side), set())
            if len(ways & left) >= LEAST or (ways & left and blamed[best]):
                blamed[best][side] = ways & left
        if best in blamed:
            for ways in blamed[best].values():
                left -= ways
        if not blamed.get(best):
            blamed.pop(best, None)
    found = _nics_and_hosts(blamed, {nic for test in unique for nic in (test.source, test.target)})
    common = _common(left)
    for source, target in sorted(left):
        open_ends = [
            nic for nic, side in ((source, "sends"), (target, "receives")) if (nic, side) not in good
        ]
        open_ends = open_ends or common
        kind: Literal["path", "undecided"] = "undecided" if open_ends else "path"
        found.append(Blame(kind, source, target, "sends", 1, tuple(open_ends)))
    order = {"host": 0, "nic": 1, "path": 2, "undecided": 3}
    return tuple(sorted(found, key=lambda b: (order[b.kind], -b.failed, b.nic, b.target or ("", ""))))


def _common(left: set[tuple[Nic, Nic]]) -> list[Nic]:
    """The NIC that all tests have in common, if they have several partners; [] if there is none."""
    shared = set.intersection(*map(set, left)) if left else set()
    return sorted(shared) if len(shared) == 1 else []


def _rivals(
    best: Nic,
    weight: dict[Nic, int],
    suspects: dict[tuple[Nic, str], set[tuple[Nic, Nic]]],
) -> list[Nic]:
    """NICs that explain as much as the best one, and of whose failed tests too few are with others than that to be
    blamed for them."""

    def explained(nic: Nic) -> list[set[tuple[Nic, Nic]]]:
        return [suspects.get((nic, side), set()) for side in ("sends", "receives")]

    taken = set().union(*explained(best))
    return [
        nic
        for nic in sorted(weight)
        if nic != best
        and weight[nic] == weight[best]
        and not any(len(ways - taken) >= LEAST for ways in explained(nic))
    ]


def _nics_and_hosts(blamed: dict[Nic, dict[str, set[tuple[Nic, Nic]]]], nics: set[Nic]) -> list[Blame]:
    by_host: dict[str, set[Nic]] = defaultdict(set)
    for nic in nics:
        by_host[nic[0]].add(nic)
    found = []
    whole = {host for host, own in by_host.items() if len(own) > 1 and own <= blamed.keys()}
    for host in sorted(whole):
        own = [sides for nic, sides in blamed.items() if nic[0] == host]
        ways = set().union(*(ways for sides in own for ways in sides.values()))
        sides = {side for one in own for side in one}
        found.append(Blame("host", (host, ""), None, _side(sides), len(ways)))
    for nic, nic_sides in sorted(blamed.items()):
        if nic[0] not in whole:
            found.append(Blame("nic", nic, None, _side(nic_sides), len(set().union(*nic_sides.values()))))
    return found


def _side(sides: Iterable[str]) -> Side:
    known = set(sides)
    if known == {"sends"}:
        return "sends"
    return "receives" if known == {"receives"} else "both"


def retests(tests: Sequence[PathTest], most_each: int = 3) -> tuple[tuple[Nic, Nic], ...]:
    """Further tests that would decide what is undecided: both ends of each such test with others whose tests all
    passed, or else that have passed in both directions and are not blamed; of the same rail as the other end by device
    name where there are any. Partners take turns: tests of one NIC are made one after the other."""
    found_so_far = blame(tests)
    undecided = [entry for entry in found_so_far if entry.kind == "undecided" and entry.target]
    bad = {nic for test in tests if not test.ok for nic in (test.source, test.target)}
    accused = {entry.nic for entry in found_so_far} | {entry.target for entry in undecided}
    passed_both_ways = {test.source for test in tests if test.ok} & {test.target for test in tests if test.ok}
    passed_both_ways = {nic for nic in passed_both_ways if nic not in accused and (nic[0], "") not in accused}
    healthy = passed_both_ways | ({nic for test in tests for nic in (test.source, test.target)} - bad)
    done = {(test.source, test.target) for test in tests}
    found: dict[tuple[Nic, Nic], None] = {}
    used: dict[Nic, int] = defaultdict(int)
    for entry in undecided:
        assert entry.target is not None  # noqa: S101 - of the filter above
        for nic, other in ((entry.nic, entry.target), (entry.target, entry.nic)):
            fit = [h for h in sorted(healthy) if h[0] not in (nic[0], other[0])]
            same = [h for h in fit if h[1] == other[1]] or fit
            for partner in sorted(same, key=lambda one: (one in bad, used[one], one))[:most_each]:
                used[partner] += 1
                for way in ((nic, partner), (partner, nic)):
                    if way not in done:
                        found[way] = None
    return tuple(found)
