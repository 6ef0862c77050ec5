"""A simulated fleet, with the daemons' own estimator, solve and clock, in which things go wrong."""

import copy
import itertools

import pytest
from tests.bench.clocksync.fleet import SimFleet

from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.core.shm.clock_page import ClockStatus

pytestmark = pytest.mark.simulation


@pytest.fixture(scope="module")
def running() -> SimFleet:
    """Twelve hosts that have been running for 6 s; not to be touched."""
    made = SimFleet(12, 8, loads=((0.0, 0.0), (0.4, 0.1)), seconds=60)
    made.run(6)
    return made


@pytest.fixture
def fleet(running: SimFleet) -> SimFleet:
    """Those hosts, for one test."""
    return copy.deepcopy(running)


def suspects(fleet: SimFleet) -> list[str]:
    """Who the coordinator names."""
    assert fleet.coordinator is not None
    return [member.name for member in fleet.coordinator.roster.members.values() if member.suspect]


def check(fleet: SimFleet, steps: int, hosts: list[int] | None = None, limit_ns: float = 200) -> None:
    """Steps on; all bounds hold, `hosts` agree, time never runs backward."""
    for _ in range(steps):
        fleet.play_round()
        assert fleet.violations(hosts) == 0
        assert abs(fleet.errors(hosts)).max() < limit_ns
    assert fleet.backward_jumps == 0


def test_a_quiet_fleet_names_nobody(fleet: SimFleet) -> None:
    """Nothing wrong: everybody synchronized within 100 ns, no suspect, no outlier edge."""
    check(fleet, 6, limit_ns=100)
    assert set(fleet.statuses()) == {ClockStatus.SYNCHRONIZED}
    assert suspects(fleet) == []


def test_a_fifth_of_the_hosts_is_killed(fleet: SimFleet) -> None:
    """The rest goes on without a jump."""
    for i in (1, 5, 9):
        fleet.hosts[i].alive = False
    check(fleet, 12, [i for i in range(12) if i not in (1, 5, 9)])


def test_the_coordinator_is_killed_and_another_takes_over(fleet: SimFleet) -> None:
    """Without it: holdover with bounds that hold. The new one knows nothing, and the timeline goes on all the same."""
    before = [fleet.times()[i].fleet_ns - round(fleet.t * 1e9) for i in range(12)]  # type: ignore[union-attr]
    fleet.coordinator = None
    check(fleet, 6, limit_ns=1_000)
    assert set(fleet.statuses()) == {ClockStatus.HOLDOVER}
    fleet.coordinator = Fleet()
    check(fleet, 4, limit_ns=1_000)
    assert set(fleet.statuses()) == {ClockStatus.SYNCHRONIZED}
    after = [fleet.times()[i].fleet_ns - round(fleet.t * 1e9) for i in range(12)]  # type: ignore[union-attr]
    # Free fleet time runs at the rate of the median crystal, up to 50 ppm from the truth, and does not jump.
    rate_ppb = max(abs(a - b) for a, b in zip(after, before, strict=True)) / 10
    assert rate_ppb < 50_000


def test_a_partition_and_its_healing(fleet: SimFleet) -> None:
    """Each half agrees within itself, and both again after the healing, without a backward jump."""
    half = set(range(6))
    cut = [edge for edge in fleet.edges if (edge.a in half) != (edge.b in half)]
    for edge in cut:
        edge.up = False
    for _ in range(12):
        fleet.play_round()
        assert abs(fleet.errors(sorted(half))).max() < 200
        assert abs(fleet.errors([i for i in range(12) if i not in half])).max() < 200
        assert fleet.violations() == 0
    for edge in cut:
        edge.up = True
    for _ in range(6):
        fleet.play_round()
        assert fleet.violations() == 0
    check(fleet, 3)


def test_a_step_of_one_clock_is_its_own_affair(fleet: SimFleet) -> None:
    """1 ms: neither the others nor its own fleet time move, and nobody is called a faulty host."""
    fleet.hosts[3].clock.steps.append((fleet.t + 0.4, 1_000_000))
    for _ in range(8):
        fleet.play_round()
        assert abs(fleet.errors()).max() < 100
        assert fleet.violations() == 0
    assert set(fleet.statuses()) == {ClockStatus.SYNCHRONIZED}
    assert suspects(fleet) == []


def test_a_faulty_host_is_named_and_harms_nobody(fleet: SimFleet) -> None:
    """Its stamps are suddenly 1 ms off and drift, though its clock is not: named; the others keep their bounds."""
    begin = fleet.t + 0.5
    fleet.hosts[7].lie_ns = lambda t: 1e6 + (t - begin) * 2_000 if t >= begin else 0.0
    others = [i for i in range(12) if i != 7]
    for _ in range(8):
        fleet.play_round()
        assert abs(fleet.errors(others)).max() < 100
        assert fleet.violations(others) == 0
    assert suspects(fleet) == ["h00007"]


@pytest.mark.parametrize("before_round_s", [0.05, 0.035])
@pytest.mark.parametrize("seed", [1, 3, 5])
def test_a_faulty_host_in_the_first_second_harms_nobody(seed: int, before_round_s: float) -> None:
    """Two trains of a window of 0.5 s are of the lie: too few for a step, and enough to turn its line."""
    fleet = SimFleet(4, 3, seed=seed, loads=((0.3, 0.3),), seconds=6, round_s=0.25, window_s=0.5)
    fleet.run(1)
    begin = fleet.t + 0.25 - before_round_s
    fleet.hosts[2].lie_ns = lambda t: 1e6 if t >= begin else 0.0
    others = [0, 1, 3]
    for _ in range(6):
        fleet.play_round()
        for after_s in (0.0, 0.12, 0.24):  # while clocks are slewed, too
            assert abs(fleet.errors(others, fleet.t + after_s)).max() < 100
        assert fleet.violations(others) == 0


def test_a_train_of_broken_stamps_is_left_out() -> None:
    """One train of each edge is 1 ms off, in the first second: no step, and nobody moves, nor later."""
    fleet = SimFleet(4, 3, loads=((0.3, 0.3),), seconds=8, round_s=0.25, window_s=0.5)
    fleet.run(1)
    begin = fleet.t + 0.215
    fleet.hosts[2].lie_ns = lambda t: 1e6 if begin <= t < begin + 0.02 else 0.0
    for _ in range(6):
        fleet.play_round()
        assert abs(fleet.errors()).max() < 100
        assert fleet.violations() == 0
    assert sum(edge.window.steps for edge in fleet.edges) == 0


def test_one_asymmetric_path_is_seen_and_bounded(fleet: SimFleet) -> None:
    """5 us more one way on one edge: that edge does not fit, nobody leaves their bound or is moved by 300 ns."""
    fleet.edges[4].forward.base_ns += 5_000
    for _ in range(10):
        fleet.play_round()
        assert fleet.violations() == 0
        assert abs(fleet.errors()).max() < 300
    assert fleet.coordinator is not None
    edge = fleet.edges[4]
    names = {(host, e.peer) for host, e, _ in fleet.coordinator.outlier_edges}
    assert (fleet.hosts[edge.a].name, fleet.hosts[edge.b].name) in names


def test_a_host_whose_receive_path_is_slow_stays_within_its_bound(fleet: SimFleet) -> None:
    """3 us later on every edge looks like an offset of 1.5 us to everyone; only the bound can hold it, and does."""
    fleet.hosts[2].rx_late_ns = 3_000
    for _ in range(8):
        fleet.play_round()
        assert fleet.violations() == 0
    assert fleet.backward_jumps == 0


def test_pairs_outside_their_bounds_are_counted(fleet: SimFleet) -> None:
    """The simulation's own judgement, against all pairs one by one."""
    host = fleet.hosts[4].fleet_clock
    assert host is not None
    for by in (0, 1_700, 10**7):
        line = host.page.current
        line = line._replace(to_ns=line.to_ns + by)
        host.page = host.page._replace(current=line, previous=line)
        times = [t for t in fleet.times() if t is not None]
        outside = [
            abs(a.fleet_ns - b.fleet_ns) > a.bound_ns + b.bound_ns
            for a, b in itertools.combinations(times, 2)
        ]
        assert fleet.violations() == sum(outside)
    assert sum(outside) == 11
