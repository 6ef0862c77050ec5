"""UTC steps by a second, and every host's clock with it."""

from tests.unit.clocksync.coordinator.reporting_fleet import ReportingFleet

_S = 10**9


def test_fleet_time_goes_to_utc_without_a_jump_and_nobody_is_blamed() -> None:
    """All hosts are asked for the same second, in one step, and all take the same way there: 500 us each second."""
    fleet = ReportingFleet(anchors=dict.fromkeys(("h02", "h03", "h04"), (0, 100)))
    fleet.run(8)
    for host in fleet.hosts:
        fleet.step_clock(host, -_S)
    fleet.anchors = dict.fromkeys(fleet.anchors, (-_S, 100))
    fleet.run()
    for seconds in (0, 1, 30):
        fleet.run(seconds)
        assert fleet.suspects() == {}
        for host in fleet.hosts:
            assert abs(fleet.error_ns(host) + _S) <= fleet.bound_ns(host) < 2_000
    assert {fleet.shown_ns[host] + fleet.clock_ns[host] for host in fleet.hosts} == {-31 * 500_000}
