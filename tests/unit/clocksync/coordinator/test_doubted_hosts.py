"""Hosts that edges contradicted stay in doubt when whoever contradicted them is gone, until others confirm them."""

import random
from itertools import combinations

import numpy as np
import pytest
from tests.unit.clocksync.coordinator.reporting_fleet import EDGE_BOUND_NS, ReportingFleet

from fabricpulse.clocksync.coordinator.doubted_hosts import DoubtedHosts
from fabricpulse.clocksync.coordinator.members import Columns

_NAMES = ("h00", "h01", "h02")


def _holds(fleet: ReportingFleet) -> bool:
    """Whether hosts that report are as close to each other as they say."""
    there = [host for host in fleet.hosts if host not in fleet.silent]
    return all(
        abs(fleet.error_ns(one) - fleet.error_ns(other)) <= fleet.bound_ns(one) + fleet.bound_ns(other)
        for one, other in combinations(there, 2)
    )


def _lying(lying: tuple[str, str], by_ns: int) -> tuple[ReportingFleet, int]:
    """A fleet of three, one edge of which is wrong; and what bounds were before that."""
    fleet = ReportingFleet(count=3)
    fleet.run(10)
    usual = max(fleet.bound_ns(host) for host in fleet.hosts)
    fleet.edge_errors_ns[lying] = by_ns
    fleet.run(6)
    return fleet, usual


@pytest.mark.parametrize("by_ns", [-16_107, 400_000])
@pytest.mark.parametrize("lying", list(combinations(_NAMES, 2)))
def test_two_are_left_with_the_edge_that_lied(lying: tuple[str, str], by_ns: int) -> None:
    """The edges of the third proved that somebody was wrong; it dies. Found in random fleets: both said 2 us."""
    fleet, usual = _lying(lying, by_ns)
    assert _holds(fleet)
    third = next(host for host in fleet.hosts if host not in lying)
    fleet.silent.add(third)
    widest = 0
    for _ in range(20):
        fleet.run()
        assert _holds(fleet), fleet.second
        widest = max(widest, *(fleet.bound_ns(host) for host in lying))
    # Nobody else is there to tell; but no wider than what it may be.
    assert widest <= 4 * (abs(by_ns) + usual)
    # The third is back, and the lie over: they are confirmed within seconds.
    fleet.silent.clear()
    fleet.edge_errors_ns.clear()
    fleet.run(8)
    assert all(fleet.bound_ns(host) <= usual + EDGE_BOUND_NS for host in fleet.hosts)


@pytest.mark.thorough
def test_a_witness_that_is_gone_is_missed_for_ten_minutes() -> None:
    """Most edges of h01 lie, so that it is where they say; the one that does not dies, and later the lie ends."""
    fleet = ReportingFleet(count=4)
    fleet.run(10)
    usual = max(fleet.bound_ns(host) for host in fleet.hosts)
    fleet.edge_errors_ns = {("h01", "h02"): 30_000, ("h01", "h03"): 30_000}
    fleet.run(6)
    fleet.silent.add("h00")
    for _ in range(30):
        fleet.run()
        assert _holds(fleet), fleet.second
    fleet.edge_errors_ns.clear()
    left = ("h01", "h02", "h03")
    fleet.run(540)
    assert max(fleet.bound_ns(host) for host in left) > 15_000
    fleet.run(60)
    assert max(fleet.bound_ns(host) for host in left) <= usual + EDGE_BOUND_NS


@pytest.mark.thorough
def test_two_who_cannot_contradict_each_other_stay_in_doubt() -> None:
    """However long they agree."""
    fleet, _ = _lying(("h00", "h02"), 30_000)
    fleet.silent.add("h01")
    fleet.run(700)
    assert _holds(fleet)
    assert max(fleet.bound_ns("h00"), fleet.bound_ns("h02")) <= 200_000


def test_who_restarts_is_no_longer_in_doubt() -> None:
    """A sidecar that starts stamps by what its NIC shows then; the other end waits for its witnesses."""
    fleet, _ = _lying(("h00", "h01"), 30_000)
    fleet.silent.add("h02")
    fleet.run(15)
    fleet.edge_errors_ns.clear()
    for host in ("h00", "h01"):
        fleet.restart(host)
        fleet.run(5)
    columns = fleet.fleet.roster.columns.at
    assert not columns["doubt_ns"].any()
    assert _holds(fleet)


@pytest.mark.parametrize("seed", range(12))
def test_bounds_hold_whoever_dies(seed: int) -> None:
    """One host of a few is wrong by some of its edges; then others die one after the other."""
    rng = random.Random(seed)
    fleet = ReportingFleet(count=rng.randint(3, 6))
    fleet.run(6)
    faulty, *others = rng.sample(fleet.hosts, fleet.count)
    by_ns = rng.choice((-1, 1)) * round(8_000 * 100 ** rng.random())
    for other in others[: rng.randint(1, len(others) - 1)]:
        fleet.edge_errors_ns[faulty, other] = by_ns
    fleet.run(4)
    rng.shuffle(others)
    for dies in others[:-1]:
        fleet.silent.add(dies)
        for _ in range(12):
            fleet.run()
            assert _holds(fleet), (faulty, fleet.silent, fleet.second)


def test_a_healthy_fleet_is_never_in_doubt() -> None:
    """Whoever dies, comes back, or has its clock set."""
    fleet = ReportingFleet(count=6)
    for second in range(60):
        if second == 10:
            fleet.silent.add("h01")
        if second == 25:
            fleet.silent.clear()
        if second == 35:
            fleet.step_clock("h02", 3_000_000)
        fleet.run()
        assert not fleet.fleet.roster.columns.at["doubt_ns"].any()


@pytest.mark.parametrize("seed", range(20))
def test_witnesses_are_a_set(seed: int) -> None:
    """Of random edges, some of them parallel: the arrays say what a dictionary of pairs would."""
    rng = np.random.default_rng(seed)
    hosts = DoubtedHosts(Columns())
    model: dict[tuple[int, int], float] = {}
    for moment in range(12):
        begin, end = rng.integers(0, 15, (2, int(rng.integers(0, 60))))
        doubted = rng.random(15) < 0.4
        hosts._see((begin << 32) + end, doubted, float(moment))
        for pair in zip(begin.tolist(), end.tolist(), strict=True):
            if pair in model or doubted[pair[0]]:
                model[pair] = float(moment)
        wanted = sorted(((a << 32) + b, at) for (a, b), at in model.items())
        assert list(zip(hosts._keys.tolist(), hosts._seen_s.tolist(), strict=True)) == wanted


def test_witnesses_are_known_under_new_numbers() -> None:
    hosts = DoubtedHosts(Columns())
    hosts._see(np.array([(1 << 32) + 2, (1 << 32) + 3, (4 << 32) + 3]), np.ones(5, np.bool_), 1.0)
    assert hosts.witnesses().tolist() == [2, 3]
    # Nobody names 4 any more.
    hosts.renumber(np.array([-1, 3, 2, 0, -1], np.int32))
    hosts._see(np.array([(3 << 32) + 0]), np.zeros(5, np.bool_), 2.0)
    assert hosts._keys.tolist() == [(3 << 32) + 0, (3 << 32) + 2]
    assert hosts._seen_s.tolist() == [2.0, 1.0]


@pytest.mark.parametrize("third", _NAMES)
def test_a_witness_that_returns_after_its_slot_was_another_is_known(third: str) -> None:
    """So that the doubt ends within seconds, whichever end of an edge reports it."""
    one, other = (host for host in _NAMES if host != third)
    fleet, usual = _lying((one, other), 30_000)
    fleet.silent.add(third)
    roster = fleet.fleet.roster
    for number in range(2_000):
        former = roster.admit(f"former{number:04d}", 1, float(fleet.second), 10.0)
        # After the lease of the third has run out.
        roster.columns.at["expires_s"][former.slot] = fleet.second + 12.0
    fleet.run(15)
    assert set(roster.members) == {one, other}
    assert set(roster._slots) == set(_NAMES)
    fleet.silent.clear()
    fleet.edge_errors_ns.clear()
    fleet.run(8)
    assert max(fleet.bound_ns(host) for host in _NAMES) <= usual + EDGE_BOUND_NS
