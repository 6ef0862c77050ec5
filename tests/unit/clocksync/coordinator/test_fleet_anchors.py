"""A simulated fleet with hosts that carry UTC: fleet time is UTC within its bounds, whatever one of them believes."""

import numpy as np
import pytest
from tests.bench.clocksync.fleet import SimFleet
from tests.bench.clocksync.timeline import NS, UTC_NS, Anchor

pytestmark = pytest.mark.simulation

# As chronyd leaves a kernel clock: some hundred ns off, and not quite at the right rate.
HONEST = {1: Anchor(2_000, 300, 8.0), 4: Anchor(3_000, -700, -12.0), 9: Anchor(5_000, 1_100, 5.0)}
FAULTY = 6


def fleet_with(faulty_host: Anchor | None) -> SimFleet:
    """Twelve hosts; three carry UTC, and perhaps a fourth."""
    anchors = HONEST if faulty_host is None else {**HONEST, FAULTY: faulty_host}
    return SimFleet(12, 8, loads=((0.0, 0.0), (0.4, 0.1)), seconds=60, anchors=anchors)


def check(fleet: SimFleet, steps: int, *, first: int = 2) -> None:
    """Steps on; from step `first` on all hosts have UTC within their bounds, and agree with each other."""
    for step in range(steps):
        fleet.play_round()
        if step < first:
            continue
        for i, anchor in HONEST.items():
            # The claims that this rests on.
            off = fleet.hosts[i].cross_timestamp(fleet.t).host_ns - UTC_NS - round(fleet.t * NS)
            assert abs(off) <= anchor.bound_ns
        errors, bounds = fleet.utc_errors(), fleet.bounds()
        assert len(errors) == 12
        assert (np.abs(errors) <= bounds).all()
        # What the three honest ones know, not what the bounds would just allow. The host of the faulty host needs some
        # corrections until it knows its clock's new rate.
        assert np.abs(np.delete(errors, FAULTY)).max() < 2_000
        assert abs(errors[FAULTY]) < 6_000
        assert np.abs(fleet.errors([i for i in range(12) if i != FAULTY])).max() < 200
        assert fleet.violations() == 0
    assert fleet.backward_jumps == 0


def test_fleet_time_is_utc() -> None:
    """Three anchors that are right: UTC to better than the best of them claims."""
    fleet = fleet_with(None)
    check(fleet, 12)
    assert fleet.coordinator is not None
    assert fleet.coordinator.quorum is not None
    assert fleet.coordinator.quorum.anchored


def test_an_anchor_that_is_wrong_from_the_begin_is_outvoted() -> None:
    """1 ms off, and as sure of itself as the best: fleet time is that of the three others, on its own host too."""
    fleet = fleet_with(Anchor(2_000, 1_000_000))
    check(fleet, 12)
    own = fleet.hosts[FAULTY].cross_timestamp(fleet.t).host_ns - UTC_NS - round(fleet.t * NS)
    assert own > 990_000
    assert abs(fleet.utc_errors()[FAULTY]) < 2_000


def test_an_anchor_that_runs_away_is_outvoted() -> None:
    """Its clock turns by 2 ppm while it goes on to claim 2 us: nobody follows, and no bound is broken meanwhile."""
    fleet = fleet_with(Anchor(2_000, -200, 3.0))
    check(fleet, 6)
    fleet.hosts[FAULTY].clock.change_rate(fleet.t, 2_000)
    check(fleet, 10, first=0)
    own = fleet.hosts[FAULTY].cross_timestamp(fleet.t).host_ns - UTC_NS - round(fleet.t * NS)
    assert own > 19_000
    assert abs(fleet.utc_errors()[FAULTY]) < 2_000


def test_an_anchor_alone_is_followed_wherever_it_goes() -> None:
    """The counter-example: where nobody else carries UTC nothing tells its error, so fleet time has it too."""
    fleet = SimFleet(12, 8, seconds=30, anchors={FAULTY: Anchor(2_000, 1_000_000)})
    fleet.run(8)
    assert fleet.utc_errors().min() > 990_000
    assert np.abs(fleet.errors()).max() < 200
