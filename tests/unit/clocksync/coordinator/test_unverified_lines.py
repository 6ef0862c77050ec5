"""Hosts that may have been paused while nobody would have noticed: what their lines count for in a solve."""

from itertools import combinations

from tests.unit.clocksync.coordinator.reporting_fleet import ReportingFleet

from fabricpulse.clocksync.wire.messages import Line
from fabricpulse.clocksync.wire.suspicions import JUMPED, SUSPICIONS

_PAUSE_NS = 800_000_000


def _holds(fleet: ReportingFleet) -> bool:
    """Whether no two hosts are further apart than their bounds."""
    return all(
        abs(fleet.error_ns(one) - fleet.error_ns(other)) <= fleet.bound_ns(one) + fleet.bound_ns(other)
        for one, other in combinations(fleet.hosts, 2)
    )


def _running(anchors: dict[str, tuple[int, int]] | None = None) -> ReportingFleet:
    fleet = ReportingFleet(count=5, anchors=anchors or {})
    fleet.run(20)
    return fleet


def test_a_fleet_does_not_follow_its_only_anchor_over_a_pause() -> None:
    """That machine, and its UTC with it, has lost time while its sidecar was restarted: the fleet's UTC is right."""
    fleet = _running({"h01": (0, 2_000)})
    fleet.clock_ns["h01"], fleet.anchors["h01"] = -_PAUSE_NS, (-_PAUSE_NS, 2_000)
    fleet.unverified = {"h01"}
    for _ in range(5):
        fleet.run()
        assert all(abs(fleet.error_ns(host)) <= 1_000 for host in fleet.hosts if host != "h01")
        assert fleet.suspects() == {"h01": SUSPICIONS[JUMPED]}
        assert _holds(fleet)


def test_a_pause_of_another_host_is_no_jump() -> None:
    """It is unverified for that; the correction that it gets is narrow enough to exclude its line at once."""
    fleet = _running()
    fleet.clock_ns["h01"] = -_PAUSE_NS
    fleet.unverified = {"h01"}
    fleet.run()
    assert fleet.suspects() == {}
    assert all(abs(fleet.error_ns(host)) <= fleet.bound_ns(host) < 2_000 for host in fleet.hosts)


def test_the_larger_part_goes_on_though_all_of_its_sidecars_restart() -> None:
    """The fabric is cut, and only the smaller part's lines are verified: it is not the fleet for that."""
    fleet = _running()
    fleet.part = {"h03", "h04"}
    fleet.unverified = {"h00", "h01", "h02"}
    for _ in range(5):
        fleet.run()
        assert not fleet.fleet.no_quorum
        moments = {host: fleet.lines[host].ref_host_ns // 10**9 for host in fleet.hosts}
        assert min(moments[host] for host in fleet.unverified) > max(moments[host] for host in fleet.part)
        assert _holds(fleet)


def test_one_verified_line_does_not_outvote_all_others() -> None:
    """All sidecars but one are restarted together, and the one's line is off: the others agree with each other."""
    fleet = _running()
    line = fleet.lines["h04"]
    fleet.lines["h04"] = Line(line.ref_host_ns, line.correction_ns + 100_000, line.rate_ppt, line.bound_ns)
    fleet.unverified = {"h00", "h01", "h02", "h03"}
    fleet.run(2)
    assert all(abs(fleet.error_ns(host)) <= 1_000 for host in fleet.hosts)


def test_a_root_that_moves_is_charged_for_it_though_its_line_is_unverified() -> None:
    """Its links are congested one way while its sidecar restarts, by less than they may hide."""
    fleet = _running()
    root = fleet.fleet.root
    fleet.hides_ns[root] = 6_000
    fleet.edge_errors_ns = {(root, other): 5_000 for other in fleet.hosts if other != root}
    fleet.unverified = {root}
    for _ in range(3):
        fleet.run()
        assert abs(fleet.error_ns(root)) > 4_000
        assert _holds(fleet)


def test_of_two_hosts_the_verified_one_goes_on() -> None:
    """The root of the timeline was paused: the other does not follow it."""
    fleet = ReportingFleet(count=2)
    fleet.run(10)
    root = fleet.fleet.root
    fleet.clock_ns[root] = -_PAUSE_NS
    fleet.unverified = {root}
    fleet.run()
    assert all(abs(fleet.error_ns(host)) <= 1_000 for host in fleet.hosts)
    assert _holds(fleet)
