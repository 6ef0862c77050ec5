"""Parts of a fleet that do not reach each other: whatever is cut, bounds hold, and one part at most is the fleet."""

import pytest
from tests.fixtures.sweep import seeds
from tests.unit.clocksync.fleet.divided_fleet import DividedFleet

from fabricpulse.clocksync.coordinator.fleet import Fleet

pytestmark = pytest.mark.simulation

# A part's clocks turn by this together when it is cut off: less than what an edge's bound allows for while its last
# fit counts. Later by as much more as holdover allows.
_TURN_PPB, _MORE_PPB = 200, 600


def running(hosts: int, coordinators: int, seed: int, lost: float = 0.0) -> DividedFleet:
    """All synchronized."""
    fleet = DividedFleet(hosts, coordinators, seed, lost)
    for _ in range(15):
        fleet.play_round()
    assert fleet.synchronized() == set(fleet.hosts)
    return fleet


def change_rate(fleet: DividedFleet, part: set[str], by_ppb: float) -> None:
    for name in part:
        fleet.hosts[name].change_rate(fleet.t_s, by_ppb)


@pytest.mark.parametrize("seed", seeds(40, quick=5))
def test_after_any_cut_bounds_hold(seed: int) -> None:
    """Hosts and coordinators are divided at random, some of either die or start again, replies are lost; the clocks of
    one part turn. Then the network heals, and they are one fleet again.
    """
    fleet = running(2 + seed % 5, 1 + seed % 3, seed, lost=(seed % 2) * 0.05)
    random, names = fleet.random, sorted(fleet.hosts)
    for _ in range(2):
        part = set(random.sample(names, random.randint(1, len(names) - 1)))
        cut = set(random.sample(range(len(fleet.coordinators)), random.randint(0, len(fleet.coordinators))))
        fleet.cut(part, cut)
        change_rate(fleet, part, _TURN_PPB)
        dead = random.randrange(len(fleet.coordinators)) if random.random() < 0.3 else None
        if dead is not None:
            fleet.coordinators[dead] = None
        for second in range(30):
            if second == 12:
                change_rate(fleet, part, _MORE_PPB)
            if second == 20 and dead is not None:
                fleet.coordinators[dead] = Fleet()
            fleet.play_round()
        fleet.heal()
        change_rate(fleet, part, -_TURN_PPB - _MORE_PPB)
        for _ in range(20):
            fleet.play_round()
        assert fleet.synchronized() == set(names)
        assert fleet.spread_ns() < 1_000


def _slow(seed: int) -> object:
    return pytest.param(seed, marks=pytest.mark.slow)


@pytest.mark.parametrize("seed", [3, 15, 231, 323, *map(_slow, range(100, 120))])
def test_hosts_come_back_to_coordinators_one_by_one(seed: int) -> None:
    """After cuts of 2 to 25 s, so that the first of them may vote at coordinators of both parts, and some find the root
    before others do.
    """
    fleet = running(3 + seed % 4, 2 + seed % 2, seed, lost=(seed % 5 == 4) * 0.1)
    random, names, everywhere = fleet.random, sorted(fleet.hosts), range(len(fleet.coordinators))
    for _ in range(3):
        part = set(random.sample(names, random.randint(1, len(names) // 2)))
        fleet.cut(part, set(random.sample(everywhere, random.randint(0, len(everywhere)))))
        turn_ppb = random.choice((-_TURN_PPB, _TURN_PPB))
        change_rate(fleet, part, turn_ppb)
        away_s = random.choice((random.randint(2, 6), random.randint(6, 14), random.randint(14, 25)))
        for second in range(away_s):
            if second == 6:
                change_rate(fleet, part, 3 * turn_ppb)
            fleet.play_round()
        change_rate(fleet, part, -turn_ppb * (4 if away_s > 6 else 1))
        back = {
            (name, number): random.randint(0, random.choice((1, 3, 6, 9)))
            for name in names
            for number in everywhere
        }
        fleet.near = {name: set(names) - {name} for name in names}
        for second in range(24):
            for (name, number), back_s in back.items():
                if back_s <= second:
                    fleet.reaches[name].add(number)
            fleet.play_round()
        assert fleet.synchronized() == set(names)
        assert fleet.spread_ns() < 1_000


@pytest.mark.parametrize("seed", seeds(12, quick=4))
def test_of_two_halves_exactly_one_is_the_fleet(seed: int) -> None:
    """Each has a coordinator; the one with the root goes on, the other knows that it cannot know."""
    fleet = running(4, 2, seed)
    half = set(fleet.random.sample(sorted(fleet.hosts), 2))
    fleet.cut(half, {1})
    change_rate(fleet, half, _TURN_PPB)
    for second in range(30):
        fleet.play_round()
        if second >= 10:
            assert fleet.synchronized() in (half, set(fleet.hosts) - half)


@pytest.mark.parametrize("gone_s", [0, 8])
@pytest.mark.parametrize("seed", seeds(4, quick=1))
def test_half_of_a_fleet_goes_on_with_the_root_after_its_coordinators_restart(seed: int, gone_s: int) -> None:
    """The new ones know of no root that has counted; hosts do."""
    coordinators = 1 + seed % 2
    fleet = running(4, coordinators, seed)
    first = fleet.coordinators[0]
    assert first is not None
    half = {first.root, fleet.random.choice(sorted(set(fleet.hosts) - {first.root}))}
    fleet.cut(half, set(range(coordinators)))
    fleet.coordinators = [None] * coordinators
    for _ in range(gone_s):
        fleet.play_round()
    fleet.coordinators = [Fleet() for _ in range(coordinators)]
    for _ in range(8):
        fleet.play_round()
    times = fleet.times(fleet.t_s)
    assert half <= fleet.synchronized()
    assert max(times[name].bound_ns for name in half) < 2_000


def test_a_new_root_is_announced_with_an_odd_number_of_hosts() -> None:
    """So that no half can count it: another half may have announced another one."""
    fleet = running(4, 1, 0)
    coordinator = fleet.coordinators[0]
    assert coordinator is not None
    gone = coordinator.root
    fleet.hosts[gone].clock = None
    fleet.cut({gone}, set())
    announced = []
    for _ in range(16):
        fleet.play_round()
        assert coordinator.quorum is not None
        if coordinator.quorum.root != gone:
            announced.append(coordinator.quorum.hosts)
    assert announced[0] == 5
    assert announced[-1] == 3, "it has counted"


@pytest.mark.parametrize("seed", seeds(20, quick=4))
def test_some_reach_only_one_of_the_coordinators(seed: int) -> None:
    """From the first moment; all exchange probes with all. One timeline."""
    fleet = DividedFleet(3 + seed % 4, 2, seed)
    names = sorted(fleet.hosts)
    fleet.random.shuffle(names)
    for name in names[1:]:
        fleet.reaches[name] = fleet.random.choice([{0}, {1}, {0, 1}])
    for _ in range(15):
        fleet.play_round()
    for _ in range(60):
        fleet.play_round()
        assert fleet.spread_ns() < 1_000
    # Some may hear a coordinator only that reaches too few.
    assert 2 * len(fleet.synchronized()) >= len(names)


@pytest.mark.parametrize("seed", seeds(24, quick=4))
def test_bounds_hold_while_coordinators_are_cut_off_otherwise_than_probes(seed: int) -> None:
    """Each host reaches some of the coordinators, or none; or it reaches all, and replies of some are lost. Probes are
    cut somewhere else, or nowhere, and the clocks on one side of that cut turn.
    """
    fleet = running(3 + seed % 4, 2 + seed % 2, seed, lost=(seed % 3 == 2) * 0.05)
    random, names = fleet.random, sorted(fleet.hosts)
    everywhere = set(range(len(fleet.coordinators)))
    for _ in range(2):
        part = set(random.sample(names, random.randint(1, len(names) - 1)))
        probes_cut = random.random() < 0.5
        if probes_cut:
            fleet.cut(part, set())
        for name in names:
            some = set(random.sample(sorted(everywhere), random.choice((0, 1, 1, 2))))
            fleet.reaches[name], fleet.deaf[name] = (everywhere, some) if seed % 2 else (some, set())
        turn_ppb = random.choice((-_TURN_PPB, _TURN_PPB))
        more_ppb = 3 * turn_ppb if probes_cut else 0
        change_rate(fleet, part, turn_ppb)
        for second in range(25):
            if second == 12:
                change_rate(fleet, part, more_ppb)
            fleet.play_round()
        change_rate(fleet, part, -turn_ppb - more_ppb)
        fleet.heal()
        for _ in range(20):
            fleet.play_round()
        assert fleet.synchronized() == set(names)
        assert fleet.spread_ns() < 1_000


@pytest.mark.parametrize("turn_ppb", [-_TURN_PPB, _TURN_PPB])
@pytest.mark.parametrize("seed", seeds(12, quick=2))
def test_the_smaller_part_has_the_root_and_reaches_the_coordinators(seed: int, turn_ppb: float) -> None:
    """Only probes are cut. The larger part takes a root of its own when the smaller one no longer says that it is
    synchronized with the old one, not before; and the smaller one's hosts do not call each other a fleet.
    """
    fleet = running(5 + seed % 3, 1 + seed % 2, seed)
    coordinator = fleet.coordinators[0]
    assert coordinator is not None
    root, names = coordinator.root, sorted(fleet.hosts)
    others = [name for name in names if name != root]
    part = {root, *fleet.random.sample(others, (len(names) - 1) // 2 - 1)}
    fleet.cut(part, set())
    fleet.reaches = {name: set(range(len(fleet.coordinators))) for name in names}
    change_rate(fleet, part, turn_ppb)
    for second in range(30):
        if second == 12:
            change_rate(fleet, part, 3 * turn_ppb)
        fleet.play_round()
    assert fleet.synchronized() == set(names) - part
    assert coordinator.root not in part
    fleet.heal()
    change_rate(fleet, part, -4 * turn_ppb)
    for _ in range(20):
        fleet.play_round()
    assert fleet.synchronized() == set(names)
    assert fleet.spread_ns() < 1_000


@pytest.mark.parametrize("turn_ppb", [-900, -240, 240, 900])
@pytest.mark.parametrize("seed", seeds(4, quick=2))
def test_a_host_that_loses_its_probes_but_no_coordinator(seed: int, turn_ppb: float) -> None:
    """The root, or another: its NIC is dead, its management network is not, and its clock turns."""
    fleet = running(4, 1, seed)
    coordinator = fleet.coordinators[0]
    assert coordinator is not None
    name = coordinator.root if seed % 2 else min(set(fleet.hosts) - {coordinator.root})
    for host in fleet.hosts:
        fleet.near[host] = fleet.near[host] - {name} if host != name else set()
    # What nobody has missed yet may be off by as much as clocks turn while they are measured.
    change_rate(fleet, {name}, turn_ppb * 0.25)
    for second in range(20):
        if second == 2:
            change_rate(fleet, {name}, turn_ppb * 0.75)
        fleet.play_round()
    assert name not in fleet.synchronized()
    assert len(fleet.synchronized()) == 3


@pytest.mark.parametrize("seed", seeds(6, quick=2))
def test_what_is_left_of_a_fleet_becomes_the_fleet_when_sidecars_then_coordinators_restart(seed: int) -> None:
    """As the runbook of FabricClockUnsynchronized has it. Neither helps alone, nor does the coordinator first."""
    coordinators = 1 + seed % 2
    fleet = running(5, coordinators, seed)
    left = set(fleet.random.sample(sorted(fleet.hosts), 2))
    fleet.cut(left, set(range(coordinators)))
    for name in set(fleet.hosts) - left:
        fleet.hosts[name].clock = None

    def look_on() -> set[str]:
        for _ in range(15):
            fleet.play_round()
        return fleet.synchronized()

    def restart_coordinators() -> set[str]:
        for number in range(coordinators):
            fleet.coordinators[number] = Fleet()
            fleet.play_round()
        return look_on()

    assert look_on() == set()
    assert restart_coordinators() == set(), "the sidecars remember"
    first, *others = sorted(left)
    fleet.hosts[first].begin(fleet.hosts[first].cross_timestamp(fleet.t_s))
    assert restart_coordinators() == set(), "one sidecar remembers"
    for name in (first, *others):
        fleet.hosts[name].begin(fleet.hosts[name].cross_timestamp(fleet.t_s))
        assert look_on() == set(), "the coordinators remember"

    assert restart_coordinators() == left
