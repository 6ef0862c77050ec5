"""Blame: the NIC, host or path that was broken is named, and nothing else."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.audit.pair_tests.blame import Nic, PathTest, blame, retests


def results_of(nics: list[Nic], broken: set[tuple[Nic, Nic]]) -> list[PathTest]:
    return [
        PathTest(a, b, (a, b) not in broken)
        for a, b in itertools.permutations(nics, 2)
        if a[0] != b[0] and a[1] == b[1]
    ]


def fleet(hosts: int, rails: int = 2) -> list[Nic]:
    return [(f"h{host}", f"eth{rail}") for host in range(hosts) for rail in range(rails)]


NICS = st.integers(5, 8).map(fleet)


def ways(nics: list[Nic], bad: Nic, side: str) -> set[tuple[Nic, Nic]]:
    found = set()
    for a, b in itertools.permutations(nics, 2):
        if (side in ("sends", "both") and a == bad) or (side in ("receives", "both") and b == bad):
            found.add((a, b))
    return found


@settings(deadline=None)
@given(NICS, st.data())
def test_a_broken_nic_is_named_with_its_direction(nics: list[Nic], data: st.DataObject) -> None:
    """Whatever the fleet: what it sends, what it receives, or both; its partners are not blamed."""
    bad = data.draw(st.sampled_from(nics))
    side = data.draw(st.sampled_from(["sends", "receives", "both"]))
    [found] = blame(results_of(nics, ways(nics, bad, side)))
    assert (found.kind, found.nic, found.side) == ("nic", bad, side)


@settings(deadline=None)
@given(NICS, st.data())
def test_a_broken_host_is_named_instead_of_its_nics(nics: list[Nic], data: st.DataObject) -> None:
    """All its NICs fail: the host is the one finding."""
    host = data.draw(st.sampled_from(sorted({nic[0] for nic in nics})))
    broken = set().union(*(ways(nics, nic, "both") for nic in nics if nic[0] == host))
    [found] = blame(results_of(nics, broken))
    assert (found.kind, found.nic) == ("host", (host, ""))


@settings(deadline=None)
@given(NICS, st.data())
def test_a_broken_path_is_no_fault_of_its_ends(nics: list[Nic], data: st.DataObject) -> None:
    """One direction of one pair."""
    pairs = sorted((t.source, t.target) for t in results_of(nics, set()))
    way = data.draw(st.sampled_from(pairs))
    [found] = blame(results_of(nics, {way}))
    assert (found.kind, found.nic, found.target) == ("path", *way)


def test_slow_paths_that_share_a_nic_accuse_no_other() -> None:
    """Of a NIC's three partners two fail with it and one does not: it fails at times, or what the two paths share
    beyond it does. That cannot be distinguished, and its partners are well. Where another path fails too, it is paths.
    """
    nics = fleet(4, 1)
    bad, partners = nics[1], (nics[0], nics[3])
    broken = {way for partner in partners for way in ((bad, partner), (partner, bad))}
    found = blame(results_of(nics, broken))
    assert {(b.kind, b.suspects) for b in found} == {("undecided", (bad,))}
    assert {(b.nic, b.target) for b in found} == broken

    found = blame(results_of(nics, broken | {(nics[2], nics[0])}))
    assert {(b.kind, b.suspects) for b in found} == {("path", ())}


@settings(deadline=None)
@given(NICS, st.data())
def test_two_broken_nics(nics: list[Nic], data: st.DataObject) -> None:
    """Both of different hosts are named, and nobody else, also where they were tested with one another."""
    first = data.draw(st.sampled_from(nics))
    second = data.draw(st.sampled_from([nic for nic in nics if nic[0] != first[0]]))
    found = blame(results_of(nics, ways(nics, first, "both") | ways(nics, second, "both")))
    assert {(b.kind, b.nic, b.side) for b in found} == {("nic", first, "both"), ("nic", second, "both")}


@given(NICS, st.randoms())
def test_order_does_not_matter(nics: list[Nic], random: object) -> None:
    """Tests come as agents answer."""
    tests = results_of(nics, ways(nics, nics[0], "both") | {(nics[2], nics[4])})
    expected = blame(tests)
    random.shuffle(tests)  # type: ignore[attr-defined]
    assert blame(tests) == expected


@given(
    st.lists(
        st.tuples(st.sampled_from(fleet(4)), st.sampled_from(fleet(4)), st.booleans()).map(
            lambda t: PathTest(*t)
        )
    )
)
def test_any_tests_are_judged(tests: list[PathTest]) -> None:
    """Whatever came in: every failed test is explained once, nothing is blamed without one."""
    failed = {(test.source, test.target) for test in tests if not test.ok}
    found = blame(tests)
    assert sum(entry.failed for entry in found) >= len(failed) if failed else found == ()
    assert all(entry.failed >= 1 for entry in found)
    retests(tests)


def test_one_failed_test_alone_is_undecided_and_a_retest_decides_it() -> None:
    """Two NICs that met nobody else: either may be it. Healthy partners of both are proposed, and then it is named."""
    bad, other = ("h0", "eth0"), ("h1", "eth0")
    healthy = [("h2", "eth0"), ("h3", "eth0")]
    tests = [
        PathTest(bad, other, False),
        PathTest(other, bad, False),
        PathTest(healthy[0], healthy[1], True),
        PathTest(healthy[1], healthy[0], True),
    ]
    assert {entry.kind for entry in blame(tests)} == {"undecided"}
    further = retests(tests)
    assert (bad, healthy[0]) in further
    assert (healthy[0], other) in further
    tests += [PathTest(a, b, bad not in (a, b)) for a, b in further]
    [found] = blame(tests)
    assert (found.kind, found.nic, found.side) == ("nic", bad, "both")


def test_names_do_not_decide() -> None:
    """What one NIC sends or another receives fails, either of which explains as much: neither is blamed, both are
    reported as suspects, and a test of them with others decides."""
    a, b, c, d = ((name, "e") for name in "abcd")
    tests = [PathTest(a, b, False), PathTest(a, c, False), PathTest(d, b, False)]
    tests += [PathTest(one, other, True) for one, other in ((c, a), (d, c), (c, d), (b, c))]
    found = blame(tests)
    assert {entry.kind for entry in found} == {"undecided"}
    assert {nic for entry in found for nic in entry.suspects} == {a, b}
    assert {(entry.kind, entry.nic) for entry in blame([*tests, PathTest(c, b, True)])} == {
        ("nic", a),
        ("path", d),
    }


def test_an_end_that_has_passed_is_no_suspect() -> None:
    """Of one path with an end that is good to others, the other end is left, or the path."""
    a, b, c = ((name, "e") for name in "abc")
    [found] = blame([PathTest(a, b, False), PathTest(a, c, True)])
    assert (found.kind, found.nic, found.target, found.suspects) == ("undecided", a, b, (b,))


def test_a_partner_may_have_failed_with_a_nic_that_is_blamed() -> None:
    """Where a dead NIC has met all others none would be left for further tests; the dead one is no partner."""
    dead, bad, other, *good = [(f"h{n}", "eth0") for n in range(5)]
    tests = [PathTest(*way, False) for nic in (bad, other, *good) for way in ((dead, nic), (nic, dead))]
    tests += [PathTest(bad, other, False), PathTest(other, bad, False)]
    tests += [PathTest(good[0], good[1], True), PathTest(good[1], good[0], True)]
    assert {entry.nic for entry in blame(tests) if entry.kind == "nic"} == {dead}
    further = retests(tests)
    assert {nic for way in further for nic in way} == {bad, other, *good}
    tests += [PathTest(a, b, bad not in (a, b)) for a, b in further]
    assert {entry.nic for entry in blame(tests)} == {dead, bad}
