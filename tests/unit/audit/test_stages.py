"""Who tests when: turns of NICs, and stages that always end."""

import asyncio
import itertools
import random
import time
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.audit.fleet.run import Target
from fabricpulse.audit.fleet.stage import MOST_SILENT, OVER, Fleet, stage, stage_seconds, waits
from fabricpulse.audit.fleet.transfers import planned
from fabricpulse.audit.pair_tests.blame import Nic, PathTest, blame, retests
from fabricpulse.audit.pair_tests.pairing import plan_rounds
from fabricpulse.audit.pair_tests.path_tests import PathDirections, Rail
from fabricpulse.audit.pair_tests.schedule import Ends, PairSchedule
from fabricpulse.core.web.client_config import HttpClientConfig

NICS: list[Nic] = [(f"h{host}", f"e{rail}") for host in range(5) for rail in range(2)]
WAYS = st.lists(
    st.tuples(st.sampled_from(NICS), st.sampled_from(NICS)).filter(lambda way: way[0] != way[1]), unique=True
)


@settings(deadline=None)
@given(WAYS, st.integers(1, 4), st.randoms(use_true_random=False))
def test_no_nic_is_in_two_tests_and_none_waits_without_need(
    ways: list[Ends], most: int, noise: random.Random
) -> None:
    """Each test begins once, whatever the order in which others end; one that could begin does."""
    turns = PairSchedule(ways, most)
    under_way: list[Ends] = []
    begun: list[Ends] = []
    while True:
        now = turns.begin()
        under_way += now
        begun += now
        busy = [nic for way in under_way for nic in way]
        assert len(busy) == len(set(busy))
        assert len(under_way) <= most
        if len(under_way) < most:
            assert not [way for way in turns.left if not set(busy) & set(way)]
        if not under_way:
            break
        turns.end(under_way.pop(noise.randrange(len(under_way))))
    assert sorted(begun) == sorted(ways)
    assert turns.left == []


def rail(hosts: int, network: str) -> Rail:
    nics = tuple(((f"h{host}", network), f"10.0.0.{host}") for host in range(hosts))
    return Rail(nics, plan_rounds([""] * hosts))


def test_tests_that_take_equally_long_are_the_rounds_of_all_networks_at_once() -> None:
    """16 hosts with two NICs: 8 rounds both ways are 16 steps, not 32."""
    ways = planned({name: rail(16, name) for name in ("r0", "r1")})
    assert len(ways) == 2 * 2 * 8 * 8
    turns, steps = PairSchedule(ways, 256), 0
    while now := turns.begin():
        steps += 1
        for way in now:
            turns.end(way)
    assert steps == 16


def fleet_of(hosts: int, cancelled: asyncio.Event, reported: list[str]) -> Fleet:
    agents = {f"h{host}": Target(f"h{host}", "", {}) for host in range(hosts)}
    ways = PathDirections({"r": rail(hosts, "r")}, [])

    def progress(what: str, done: int, of: int, who: str) -> None:
        reported.append(f"{what} {done}/{of} {who}")

    return Fleet(agents, HttpClientConfig(), ways, {}, cancelled, progress)


def test_an_agent_that_does_not_answer_is_given_up() -> None:
    """Its tests fail twice, then it is not asked again; the tests of others are all made."""
    made: list[Ends] = []

    async def run() -> tuple[dict[Ends, tuple[Nic, str]], list[Ends]]:
        fleet = fleet_of(8, asyncio.Event(), [])
        ways = planned({"r": rail(8, "r")})

        async def one(source: Nic, target: Nic) -> None:
            made.append((source, target))
            for host in (source[0], target[0]):
                (fleet.silence.unanswered if host == "h3" else fleet.silence.answered)(host)

        return await stage(fleet, "x", ways, one, 60), ways

    missed, ways = asyncio.run(run())
    assert sum("h3" in (way[0][0], way[1][0]) for way in made) == MOST_SILENT
    assert {nic for nic, _ in missed.values()} == {("h3", "r")}
    assert sorted([*made, *missed]) == sorted(ways)


def test_a_stage_ends_in_time_and_says_what_was_not_tested() -> None:
    """One test never ends: it is ended, with what had to wait for it; who was waited for is named."""
    reported: list[str] = []
    ended: list[Ends] = []

    async def run() -> dict[Ends, tuple[Nic, str]]:
        fleet = fleet_of(4, asyncio.Event(), reported)

        async def one(source: Nic, target: Nic) -> None:
            try:
                await asyncio.sleep(3600 if source[0] == "h1" else 0)
            finally:
                ended.append((source, target))

        return await stage(fleet, "x", planned({"r": rail(4, "r")}), one, 0.3)

    begun = time.monotonic()
    missed = asyncio.run(run())
    assert time.monotonic() - begun < 30
    assert {why for _, why in missed.values()} == {OVER}
    [stuck] = [way for way in ended if way[0][0] == "h1"]
    assert stuck in missed
    assert all(set(way) & set(stuck) for way in missed)
    assert sorted({*ended, *missed}) == sorted(planned({"r": rail(4, "r")}))
    assert reported[0] == "x 0/12 "
    a, b = ("h1", "r"), ("h2", "r")
    assert waits([((a, b), time.monotonic() - 9), ((b, a), time.monotonic())]) == "h1 r to h2 r for 9 s"


def test_a_stage_that_is_cancelled_leaves_nothing_running() -> None:
    """Ctrl-C: tests under way are ended, and what was not tested is not reported as a finding."""

    async def run() -> tuple[dict[Ends, tuple[Nic, str]], int]:
        cancelled = asyncio.Event()
        fleet = fleet_of(4, cancelled, [])

        async def one(_source: Nic, _target: Nic) -> None:
            cancelled.set()
            await asyncio.sleep(3600)

        missed = await stage(fleet, "x", planned({"r": rail(4, "r")}), one, 600)
        return missed, len(asyncio.all_tasks())

    assert asyncio.run(run()) == ({}, 1)


def test_a_stage_has_time_for_the_busiest_nic() -> None:
    """Three times what its tests need one after the other, and half a minute; as much if all NICs are slower alike."""
    ways = planned({"r": rail(16, "r")})
    assert stage_seconds(ways, 2.0) == 30 + 3 * 2.0 * 16
    assert stage_seconds(ways, 2.0, most=1) == 30 + 3 * 2.0 * len(ways)
    assert stage_seconds([], 2.0) == 30


def test_partners_of_further_tests_take_turns() -> None:
    """Four pairs of which nothing else is known fail: no healthy NIC is in more further tests than it must be."""
    nics = [(f"h{host}", "e") for host in range(20)]
    tests = [PathTest(nics[i], nics[i + 1], False) for i in range(0, 8, 2)]
    tests += [PathTest(a, b, True) for a, b in itertools.pairwise(nics[8:])]
    assert {entry.kind for entry in blame(tests)} == {"undecided"}
    further = retests(tests)
    each = Counter(nic for way in further for nic in way if nic in nics[8:])
    # Eight NICs with three partners each, both ways.
    assert sum(each.values()) == 8 * 3 * 2
    assert max(each.values()) == 4
