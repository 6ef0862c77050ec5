"""Reports of hosts that are in no membership: bounded together, whatever names they have."""

import pytest

from fabricpulse.diagnosis.daemon.outside_fleet import KEPT_S, HostsOutsideFleet
from fabricpulse.diagnosis.daemon.service import DiagnosisService
from fabricpulse.diagnosis.daemon.worker_messages import Declared
from fabricpulse.diagnosis.wire.messages import PROTOCOL, EdgeName, EvidenceReport

EDGES = tuple(EdgeName("e0", f"p{number}", "e0") for number in range(84))


def admitted(outside, names, now_s=0.0):
    return sum(outside.admits(name, len(EDGES), now_s) for name in names)


def test_hosts_outside_are_bounded_and_members_are_not():
    """Ten times a hundred edges, by whatever name; a member is taken all the same, and one that becomes a member makes
    room for another one.
    """
    members = {"m1"}
    outside = HostsOutsideFleet(members.__contains__, most_edges=1000)
    assert admitted(outside, (f"x{number}" for number in range(500))) == 10
    assert admitted(outside, ["m1", "x3"]) == 2
    members.add("x3")
    assert outside.admits("x3", None, 1.0)
    assert admitted(outside, ["y1", "y2"]) == 1


def test_who_is_silent_makes_room_when_the_diagnosis_has_forgotten_it():
    """Not before: another name every second would otherwise be another host in memory every second."""
    outside = HostsOutsideFleet(lambda _: False, most_edges=1000)
    assert admitted(outside, (f"x{number}" for number in range(10))) == 10
    assert outside.admits("x0", None, 100.0)
    assert admitted(outside, (f"y{number}" for number in range(20)), KEPT_S - 1) == 0
    assert admitted(outside, (f"y{number}" for number in range(20)), KEPT_S + 20) == 9


def test_a_host_that_has_more_edges_now_is_counted_once():
    outside = HostsOutsideFleet(lambda _: False, most_edges=1000)
    for now_s in range(50):
        assert outside.admits("x", 900, float(now_s))
    assert not outside.admits("x", 1000, 50.0)
    assert admitted(outside, ["y"]) == 0


def test_a_report_that_is_not_taken_is_refused_with_the_reason():
    service = DiagnosisService(
        Declared({}, {}), lambda _: True, is_member=lambda name: name == "m1", most_edges_outside=150
    )
    service.process.put = lambda _: True

    def report(host):
        return EvidenceReport(PROTOCOL, host, 1, 8, 150.0, 0.0, b"", edges=EDGES)

    assert not service.take(report("x1"), 1.0)
    with pytest.raises(ValueError, match="membership"):
        service.take(report("x2"), 2.0)
    assert not service.take(report("m1"), 3.0)
