"""Bounds of a whole fleet in virtual time, from probes to pages: clocks that nobody could measure, and anchors."""

import math
import random

import pytest
from tests.fixtures.sweep import seeds
from tests.unit.clocksync.fleet.virtual_fleet import VirtualFleet

from fabricpulse.clocksync.wire.report_table import name_hash
from fabricpulse.core.shm.clock_page import ClockStatus

pytestmark = pytest.mark.simulation

# By so much clocks of one part gain on the others': within what edges allow for, and later within holdover.
_TURN_PPB, _MORE_PPB = 240, 700


@pytest.mark.parametrize("seed", seeds(40, quick=2))
def test_parts_that_meet_again(seed: int) -> None:
    """After 0.3 to 30 s without probes between them, and perhaps without the other's coordinator. The clocks of one
    part have turned together, or those of all hosts each by itself.
    """
    random_ = random.Random(seed)
    hosts, coordinators = random_.choice((4, 4, 2, 3, 5)), random_.choice((1, 2))
    fleet = VirtualFleet(hosts, coordinators, seed, waits=random_.choice((0.0, 0.3, 0.8)))
    fleet.run_until(12)
    assert fleet.synchronized()
    names = sorted(fleet.hosts)
    part = set(random_.sample(names, max(1, hosts // 2)))
    silent_s = 0.3 * 100 ** random_.random()
    back_s = fleet.t_s + silent_s
    fleet.divide(part, back_s)
    if random_.random() < 0.6:
        theirs = set(random_.sample(range(coordinators), random_.randint(0, coordinators)))
        everywhere = set(range(coordinators))
        fleet.reaches = {name: theirs if name in part else everywhere - theirs for name in names}
    fleet.near = lambda a, b: (a in part) == (b in part)
    together = random_.random() < 0.7

    def turn(by_ppb: float) -> None:
        for name in names:
            own = by_ppb * (name in part) if together else random_.uniform(-by_ppb, by_ppb) / 2
            fleet.hosts[name].oscillator.turn(fleet.t_s, own)

    turn(_TURN_PPB)
    if silent_s > 4:
        fleet.run_until(fleet.t_s + min(6.0, silent_s / 2))
        turn(_MORE_PPB)
    fleet.run_until(back_s)
    fleet.reaches = {name: set(range(coordinators)) for name in names}
    fleet.near = lambda a, b: True
    fleet.run_until(back_s + 12)
    assert fleet.outside == []
    assert fleet.edges_outside == []
    assert fleet.synchronized()


@pytest.mark.parametrize(("hosts", "away_hosts", "silent_s"), [(5, 2, 6.0), (6, 3, 2.55)])
def test_they_come_back_to_a_coordinator_one_by_one(hosts: int, away_hosts: int, silent_s: float) -> None:
    """Some that reached one coordinator, which nobody else did, have drifted away. The first one that reaches it again
    reports to the other, too: they are no fleet together, and none of them is right by definition. Also where that
    coordinator had a quorum just before.
    """
    fleet = VirtualFleet(hosts, 2, seed=1)
    fleet.run_until(12)
    assert fleet.synchronized()
    first = fleet.coordinators[0]
    assert first is not None
    # Of equally well connected hosts the coordinator would take the first as root.
    others = sorted(set(fleet.hosts) - {first.fleet.root}, key=name_hash)
    away, next_one = set(others[:away_hosts]), others[away_hosts]
    back_s = fleet.t_s + silent_s
    fleet.divide(away, back_s)
    fleet.near = lambda a, b: (a in away) == (b in away)
    fleet.reaches = {name: {int(name in away)} for name in fleet.hosts}
    for name in away:
        fleet.hosts[name].oscillator.turn(fleet.t_s, _MORE_PPB)
    fleet.run_until(back_s)
    fleet.near = lambda a, b: True
    fleet.reaches[next_one] = {0, 1}
    fleet.run_until(fleet.t_s + 3)
    fleet.reaches = {name: {0, 1} for name in fleet.hosts}
    fleet.run_until(fleet.t_s + 9)
    assert fleet.outside == []
    assert fleet.synchronized()


@pytest.mark.parametrize(
    ("hosts", "paused", "without"),
    [
        (2, "h1", "sidecar"),
        (2, "h0", "sidecar"),
        (2, "h0", "engine"),
        (3, "h0", "sidecar"),
        (3, "h2", "sidecar"),
        (3, "h0", "engine"),
        (3, "h2", "engine"),
    ],
)
def test_a_machine_that_is_paused_without_either_daemon_is_set_right(
    hosts: int, paused: str, without: str
) -> None:
    """Its sidecar is dead, or its probe engine stopped. Also the root of the timeline, and where
    the other one has no third to ask. All are synchronized again, within what edges hide, as soon as what was measured
    before the pause is forgotten: none slews for an hour, and the others follow no line from before it.
    """
    fleet = VirtualFleet(hosts, 1, seed=hosts)
    fleet.run_until(12)
    assert fleet.synchronized()
    host = fleet.hosts[paused]
    back_s = fleet.t_s + 2
    if without == "sidecar":
        host.kill()
    else:
        host.stop_engine(fleet.t_s, back_s)
    fleet.run_until(fleet.t_s + 1)
    host.oscillator.pause(fleet.t_s, 0.8)
    fleet.run_until(back_s)
    if without == "sidecar":
        host.start(fleet.t_s)
    fleet.run_until(fleet.t_s + 16)
    times = fleet._times(fleet.t_s)
    assert len(times) == hosts
    assert fleet.synchronized()
    # Of two that have contradicted each other nobody else ends the doubt (coordinator.doubted_hosts).
    least_ns = 1_000_000 if (hosts, paused) == (2, "h0") else 10_000
    assert max(shown.bound_ns for shown in times.values()) < least_ns
    fleet.run_until(fleet.t_s + 4)
    # Nothing could tell of the page that a dead sidecar has left; what it says later, before its first corrections, is
    # holdover.
    since_s = back_s if without == "sidecar" else 0.0
    says = ClockStatus.SYNCHRONIZED
    false = [o for o in fleet.outside if o[4] is not None and o[2].status == o[4].status == says]
    assert [o for o in false if o[0] > since_s] == []
    assert [o for o in fleet.outside if o[0] > back_s + 10] == []


@pytest.mark.parametrize("seed", seeds(12, quick=2))
def test_all_are_left_alone_as_soon_as_they_are_synchronized(seed: int) -> None:
    """Nearly each packet waits, so that nobody knows rates well. Then there is no coordinator, and no probe."""
    fleet = VirtualFleet(4, 1, seed, waits=0.9 + 0.1 * (seed % 2))
    while not (fleet.t_s > 2 and len(fleet._times(fleet.t_s)) == 4 and fleet.synchronized()):
        fleet.run_until(fleet.t_s + 0.1)
    fleet.coordinators[0] = None
    fleet.near = lambda a, b: False
    for name in fleet.hosts:
        fleet.divide({name}, math.inf)
    fleet.run_until(fleet.t_s + 20)
    assert fleet.outside == []


@pytest.mark.parametrize("seed", seeds(12, quick=2))
def test_an_anchor_whose_daemon_dies(seed: int) -> None:
    """chronyd steers its clock by what it has measured, some 20 us off, and is killed amid that; then the host is."""
    fleet, random_ = VirtualFleet(3, 1, seed + 3), random.Random(seed + 3)
    killed_s = random_.uniform(8, 14)
    polls, off_ns, slews = [0.0], [random_.uniform(-40e3, 40e3)], [0.0]
    while (next_s := polls[-1] + random_.uniform(0.8, 1.2)) < killed_s:
        off_ns.append(off_ns[-1] + slews[-1] * (next_s - polls[-1]))
        slews.append(-(off_ns[-1] + random_.gauss(0, 20e3)) * random_.uniform(0.3, 1.0))
        polls.append(next_s)

    def last(t_s: float) -> int:
        return max(k for k, poll_s in enumerate(polls) if poll_s <= t_s)

    anchor = fleet.hosts["h0"]
    anchor.utc_off_ns = lambda t_s: off_ns[last(t_s)] + slews[last(t_s)] * (t_s - polls[last(t_s)])
    anchor.anchor = lambda t_s: round(100e3 + 500e3 * (t_s - polls[last(t_s)]))
    fleet.run_until(killed_s + 8)
    anchor.kill()
    fleet.run_until(killed_s + 20)
    assert fleet.outside == []
